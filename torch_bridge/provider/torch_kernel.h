// SPDX-License-Identifier: Apache-2.0
// Parts that kernels that call PyTorch share: inputs as at::Tensors, results into planned outputs,
// exceptions into Status.
#ifndef CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_KERNEL_H_
#define CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_KERNEL_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <new>
#include <string>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura::torch {

// The facts about an input, or about a planned output.
struct TensorSpec {
  bool present = false;
  c10::ScalarType type = c10::kFloat;
  Shape shape;
  c10::Device device = c10::kCPU;
};
using TensorSpecs = std::vector<TensorSpec>;

// Runs `call`, which returns a Status, and turns what PyTorch throws into one.
template <typename Call>
Status Guarded(const std::string& label, Call call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return OutOfMemory(label + " memory ran out");
  } catch (const c10::OutOfMemoryError& error) {
    return OutOfMemory(label + " " + error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return InvalidArgument(label + " " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return InvalidArgument(label + " " + error.what());
  }
}

// The inputs' facts of a kernel on `device`, but for the inputs that are `on_host`. Refuses inputs
// that are no tensors, or of types that PyTorch does not have.
Result<TensorSpecs> InputSpecs(const KernelInfo& info, c10::Device device,
                               const std::function<bool(int)>& on_host);
// The facts about outputs that the factory has set, on `device`.
TensorSpecs PlannedOutputs(const KernelInfo& info, c10::Device device);

// Tensors without bytes, for calls that are made for their results' sizes; undefined where absent.
std::vector<at::Tensor> MetaInputs(const TensorSpecs& specs);
// The inputs [first, last) as tensors on the context's bytes.
std::vector<at::Tensor> BorrowInputs(const KernelContext& context, const TensorSpecs& specs,
                                     size_t first, size_t last);

// Fails where result i is missing, undefined or of a type without a DType.
Status CheckResult(const std::string& label, const std::vector<at::Tensor>& results, int i);
// Sets the outputs to the results' types and shapes.
Status PlanResults(KernelInfo& info, const std::vector<at::Tensor>& results);
// Copies the results into the outputs, but for those that stand there already. Fails where they are
// not as planned.
Status CopyResults(const std::string& label, KernelContext& context, const TensorSpecs& outputs,
                   const std::vector<at::Tensor>& results);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_KERNEL_H_
