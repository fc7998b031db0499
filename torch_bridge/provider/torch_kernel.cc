// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/provider/torch_kernel.h"

#include <ATen/Functions.h>

#include "core/base/status_macros.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {

Result<TensorSpecs> InputSpecs(const KernelInfo& info, c10::Device device,
                               const std::function<bool(int)>& on_host) {
  TensorSpecs specs(info.input_count());
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i)) continue;
    if (!info.input(i).is_tensor)
      return info.Refuse("takes tensors only; input " + std::to_string(i) + " is none");
    const auto type = ScalarTypeOf(info.InputDType(i));
    if (!type)
      return info.Refuse(std::string("PyTorch has no type for ") + DTypeName(info.InputDType(i)));
    specs[i] = {true, *type, info.InputShape(i), on_host(i) ? c10::Device(c10::kCPU) : device};
  }
  return specs;
}

TensorSpecs PlannedOutputs(const KernelInfo& info, c10::Device device) {
  TensorSpecs out(info.output_count());
  for (int i = 0; i < info.output_count(); ++i) {
    const OutputInfo& planned = info.outputs()[i];
    if (info.HasOutput(i)) out[i] = {true, *ScalarTypeOf(planned.dtype), planned.shape, device};
  }
  return out;
}

std::vector<at::Tensor> MetaInputs(const TensorSpecs& specs) {
  std::vector<at::Tensor> out(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto options = at::TensorOptions().dtype(specs[i].type).device(c10::kMeta);
    if (specs[i].present) out[i] = at::empty(specs[i].shape.dims(), options);
  }
  return out;
}

std::vector<at::Tensor> BorrowInputs(const KernelContext& context, const TensorSpecs& specs,
                                     size_t first, size_t last) {
  std::vector<at::Tensor> out(last - first);
  for (size_t i = first; i < last; ++i) {
    if (!specs[i].present) continue;
    void* data = const_cast<void*>(context.Input<void>(static_cast<int>(i)));
    out[i - first] = BorrowBytes(data, specs[i].type, specs[i].shape, specs[i].device);
  }
  return out;
}

Status CheckResult(const std::string& label, const std::vector<at::Tensor>& results, int i) {
  const size_t k = static_cast<size_t>(i);
  if (k < results.size() && results[k].defined() &&
      DTypeOf(results[k].scalar_type()) != DType::kUndefined)
    return {};
  return InvalidArgument(label + " the operator gives no tensor for output " + std::to_string(i));
}

Status PlanResults(KernelInfo& info, const std::vector<at::Tensor>& results) {
  for (int i = 0; i < info.output_count(); ++i) {
    if (!info.HasOutput(i)) continue;
    RETURN_IF_ERROR(CheckResult(info.node().Label(), results, i));
    info.SetOutput(i, DTypeOf(results[i].scalar_type()), Shape(results[i].sizes().vec()));
  }
  return {};
}

Status CopyResults(const std::string& label, KernelContext& context, const TensorSpecs& outputs,
                   const std::vector<at::Tensor>& results) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].present) continue;
    RETURN_IF_ERROR(CheckResult(label, results, static_cast<int>(i)));
    const bool as_planned = results[i].scalar_type() == outputs[i].type &&
                            results[i].sizes() == c10::IntArrayRef(outputs[i].shape.dims());
    if (!as_planned) {
      return Internal(label + " output " + std::to_string(i) +
                      " is not what the operator's meta kernel promised");
    }
    void* data = context.Output<void>(static_cast<int>(i));
    if (results[i].const_data_ptr() == data && results[i].is_contiguous())
      continue;  // an out variant wrote it there
    BorrowBytes(data, outputs[i].type, outputs[i].shape, outputs[i].device).copy_(results[i]);
  }
  return {};
}

}  // namespace caesura::torch
