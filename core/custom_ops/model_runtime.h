// SPDX-License-Identifier: Apache-2.0
// Runtimes of model ops by name, and the models that they have loaded.
#ifndef CAESURA_CORE_CUSTOM_OPS_MODEL_RUNTIME_H_
#define CAESURA_CORE_CUSTOM_OPS_MODEL_RUNTIME_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/custom_ops/custom_op.h"
#include "core/custom_ops/model_types.h"
#include "core/plugin/caesura_op.h"

namespace caesura {

// Bytes of a model; what they view is kept alive by the owner.
struct ModelBytes {
  std::shared_ptr<const void> owner;
  const void* data = nullptr;
  size_t size = 0;
};

// A model that a runtime has loaded. Thread safety: all methods from any thread.
class LoadedModel {
 public:
  static Result<std::shared_ptr<LoadedModel>> Load(const CaesuraModelRuntime& runtime,
                                                   const OpNodeInfo& node, const ModelBytes& model,
                                                   const ModelBytes& weights);

  const CaesuraModelRuntime& runtime() const { return runtime_; }
  // The runtime's answer: dtypes may be undefined and shapes open.
  const ModelTypes& types() const { return types_; }
  // Ok where the runtime has a gradient of this very model.
  Status CheckGradient() const;
  // Bytes whose addresses stand for the model stay as long as it.
  void Keep(std::vector<Tensor> sources) { sources_ = std::move(sources); }
  // `function` (the runtime's run or run_gradient) with a run state that no other call has.
  Status Run(CaesuraStatus* (*function)(void*, CaesuraContext*), CaesuraContext& context) const;

 private:
  using Handle = std::unique_ptr<void, void (*)(void*)>;
  struct RunState {
    Handle handle;
  };
  LoadedModel(const CaesuraModelRuntime& runtime, void* model);

  const CaesuraModelRuntime runtime_;
  Handle model_;
  ModelTypes types_;
  std::vector<Tensor> sources_;
  mutable RunStatePool<RunState> runs_;  // after the model: gone before it
};

// Thread safety: all methods from any thread.
class ModelRuntimes {
 public:
  explicit ModelRuntimes(std::vector<CaesuraModelRuntime> given) : given_(std::move(given)) {}
  // Among those given, then by the name of a plug-in. kNotFound says where it was looked for.
  Result<CaesuraModelRuntime> Find(const std::string& name);
  // The model of a node, from the attributes `model` and `weights`, or the files that `model_file`
  // and `weights_file` name. Nodes of equal bytes, runtime and options share one while it is in
  // use.
  Result<std::shared_ptr<LoadedModel>> Load(const OpNodeInfo& node);

 private:
  const std::vector<CaesuraModelRuntime> given_;
  std::mutex mutex_;
  std::map<std::string, CaesuraModelRuntime> found_;
  std::map<std::string, std::weak_ptr<LoadedModel>> loaded_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_CUSTOM_OPS_MODEL_RUNTIME_H_
