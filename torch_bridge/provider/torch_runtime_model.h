// SPDX-License-Identifier: Apache-2.0
// The models that the torch runtime of model ops can load: TorchScript archives and AOTInductor
// packages. Part of the plug-in libcaesura_runtime_torch.so; errors are thrown, as plug-ins do.
#ifndef CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_RUNTIME_MODEL_H_
#define CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_RUNTIME_MODEL_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace caesura::torch {

// Thread safety: Forward from any thread.
class RuntimeModel {
 public:
  virtual ~RuntimeModel() = default;
  virtual std::vector<at::Tensor> Forward(const std::vector<at::Tensor>& inputs) const = 0;
  // True if autograd sees through Forward.
  virtual bool has_gradient() const = 0;

  const std::vector<std::string>& inputs() const { return inputs_; }
  const std::vector<std::string>& outputs() const { return outputs_; }

 protected:
  std::vector<std::string> inputs_, outputs_;
};

// From the bytes of either, which it does not need afterwards; what they are is found in them.
std::unique_ptr<RuntimeModel> LoadRuntimeModel(const void* bytes, size_t size,
                                               const std::map<std::string, std::string>& options);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_RUNTIME_MODEL_H_
