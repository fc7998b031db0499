// SPDX-License-Identifier: Apache-2.0
// An ONNX model in a loop of LibTorch: Module is a torch::nn::Module whose forward and backward are
// a split program, on the CPU or a GPU; TrainingStep runs whole steps on torch tensors.
//
//   auto net = std::make_shared<caesura::torch::Module>(caesura::ReadModel("net.onnx").value());
//   torch::optim::AdamW optimizer(net->parameters());
//   for (auto& batch : *loader) {
//     optimizer.zero_grad();
//     torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target).backward();
//     optimizer.step();
//   }
//
// All functions throw c10::Error, as LibTorch does.
#ifndef CAESURA_TORCH_BRIDGE_TORCH_MODULE_H_
#define CAESURA_TORCH_BRIDGE_TORCH_MODULE_H_

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "training/session/split_module.h"
#include "training/session/training_session.h"

namespace caesura::torch {

// The options of a Module.
struct ModuleOptions {
  // Initializers to train, as in StepOptions. The others are constants of the model.
  std::vector<std::string> trainable = {}, frozen = {};
  // The providers that the module may run on. It begins on the device of the first one. Empty: the
  // CPU, and GPUs that it is moved to.
  ProviderList providers = {};
  int threads = 0;    // per kernel; 0: CAESURA_NUM_THREADS, or what OpenMP would take
  uint64_t seed = 0;  // of dropout and other random ops
};

// Its parameters are the model's trained initializers under their names, a dot in a name being a
// submodule, and its buffers the running statistics of BatchNormalization. They are read where they
// stand: whatever writes to them (an optimizer, load, a NumPy view) is seen by the next forward. In
// train() mode batch statistics are used, running ones updated, and dropout drops; in eval() mode
// not.
//
// Any number of forwards may wait for their backward, which may outlive the module; with
// retain_graph one may be called again. A backward fails where a parameter or an input was changed
// in place after its forward, as far as PyTorch's version counters tell. Derivatives of derivatives
// are refused.
//
// It runs where its parameters and buffers are: after to(torch::kCUDA) on that GPU, by the provider
// among its options that serves it, or else by one of its own in PyTorch's memory
// (MakeCudaProviderOnTorch, with TF32 where PyTorch has it). Inputs must be there too, but for
// scalars; outputs and gradients are. Nothing is copied to the host but what nodes without a kernel
// for the GPU read. Work is in order with PyTorch's current stream, and the host does not wait. A
// module without parameters and buffers runs where its first input is.
//
// Thread safety: forward and backward from any thread, while nobody writes to parameters, changes
// the mode, the dtypes or the device.
class Module : public ::torch::nn::Module {
 public:
  explicit Module(Model model, ModuleOptions options = {});

  // The model's inputs by position to its outputs, which are the caller's. Gradients flow to
  // parameters and to those of the inputs that require them.
  std::vector<::torch::Tensor> forward_all(const std::vector<::torch::Tensor>& inputs);
  // For models of one input and one output.
  ::torch::Tensor forward(const ::torch::Tensor& input);

  // A copy with parameters of its own, on `device` or else where this one is.
  std::shared_ptr<::torch::nn::Module> clone(
      const std::optional<::torch::Device>& device = std::nullopt) const override;

 private:
  class Backward;
  struct State {
    std::string name;
    ::torch::Tensor tensor;
    const void* bytes;  // that the programs read
    bool is_parameter;
  };
  // A program is made for a mode, the inputs that gradients are wanted of, and a device.
  struct Variant {
    bool training;
    std::vector<std::string> wanted;
    Device device;
    bool operator==(const Variant&) const = default;
  };
  using Gpu = std::shared_ptr<const ExecutionProvider>;
  struct Specialization {
    Variant variant;
    std::shared_ptr<SplitModule> module;
    Gpu gpu;  // null: it runs on the host
  };
  void AddState(const std::string& name, bool is_parameter);
  ::torch::Device DeviceFor(const std::vector<::torch::Tensor>& inputs) const;
  ProviderList ProvidersOn(Device device);
  Specialization SpecializationFor(Variant variant);
  std::vector<::torch::Tensor> Differentiable(const Specialization& program,
                                              const NamedValues& feeds,
                                              std::map<std::string, ::torch::Tensor> sources);

  Model model_;
  ModuleOptions options_;
  std::vector<std::string> input_names_;
  std::vector<State> state_;
  std::mutex mutex_;  // of all below, and of what programs are made from: model_ and State::bytes
  std::vector<Specialization> specializations_;
  ProviderList own_;  // of GPUs that the options' providers do not serve
};

// Tensors by the names of a model's inputs, or of its parameters.
using TensorMap = std::map<std::string, ::torch::Tensor>;

// A TrainingSession that takes and returns torch tensors, without copying dense ones. Tensors on
// the GPU of one of its providers are read there, in order with PyTorch's current stream. Thread
// safety: as TrainingSession.
class TrainingStep {
 public:
  explicit TrainingStep(Model model, TrainingOptions options = {});
  // The loss before the update, as a float64 scalar.
  ::torch::Tensor step(const TensorMap& feeds);
  // The model's outputs in evaluation mode.
  std::vector<::torch::Tensor> predict(const TensorMap& feeds);
  // Views of trained parameters and running statistics by name, which the next step changes; copies
  // of those on a GPU.
  TensorMap parameters() const;
  TrainingSession& session() { return *session_; }

 private:
  // `feeds` for the session, whose work on them waits for PyTorch's.
  NamedValues Take(const TensorMap& feeds) const;
  // PyTorch's later work, on the feeds' memory too, waits for the session's.
  void LetGo() const;

  ProviderList providers_;
  std::unique_ptr<TrainingSession> session_;
};

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_TORCH_MODULE_H_
