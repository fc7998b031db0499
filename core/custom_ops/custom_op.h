// SPDX-License-Identifier: Apache-2.0
// Ops of the user's own, known to the sessions that they are given to and to no other: to checks,
// type inference, placement, execution and, by a gradient hook, training.
//
//   CustomOp scale;
//   scale.schema = {.op_type = "Scale", .type_of_output = {0}, .domain = "mine"};
//   scale.schema.gradient = ScaleGradient;                         // core/graph/gradient_hook.h
//   scale.kernels = {{.op_type = "Scale", .domain = "mine", .types = {DType::kFloat32},
//                     .create = CreateScale}};
//   SessionOptions options;
//   options.custom_ops.ops = {scale};
//   RETURN_IF_ERROR(options.custom_ops.AddLibrary("libmine.so"));  // core/plugin/caesura_op.h
//
// State: what belongs to a node of one session is an OpInstance, made once, with the session. What
// belongs to one run lives in scratch memory of the kernel (KernelInfo::BookScratch) or in a
// RunStatePool. Kernels keep nothing else: they run in many threads at the same time. On a device
// they put their work on KernelContext::device_stream().
#ifndef CAESURA_CORE_CUSTOM_OPS_CUSTOM_OP_H_
#define CAESURA_CORE_CUSTOM_OPS_CUSTOM_OP_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/custom_ops/op_options.h"
#include "core/graph/graph.h"
#include "core/graph/op_def.h"
#include "core/kernels/kernel.h"
#include "core/plugin/caesura_op.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// The facts about a node when its instance is made. All of it is copies: an instance may keep it.
struct OpNodeInfo {
  // An input or output of the node.
  struct Argument {
    bool present = false;
    std::string name;
    ValueType type;   // as the graph declares or infers it: dims may be symbols
    Tensor constant;  // of an input whose value is part of the model and not trained; undefined
                      // otherwise
  };
  std::string name, op_type, domain;
  int version = 1;  // of the schema that the node follows
  std::vector<Argument> inputs, outputs;
  AttributeMap attributes;
  OptionSet options;         // every option that the op knows, by OpOptions' order of precedence
  std::string model_folder;  // Model::folder

  // The attribute as T, or `fallback` when it is absent or of another kind.
  template <typename T>
  T Attr(const std::string& attribute, T fallback) const {
    auto it = attributes.find(attribute);
    const T* found = it == attributes.end() ? nullptr : std::get_if<T>(&it->second);
    return found == nullptr ? fallback : *found;
  }
};

// A node of a session. Immutable once made, and used by all plans and runs of the session at the
// same time; it outlives them.
class OpInstance {
 public:
  virtual ~OpInstance() = default;
  // As KernelDef::create, for memory of `provider`. What SetCompute is given may refer to the
  // instance and the provider. Thread safety: from any thread.
  virtual Status CreateKernel(KernelInfo& info, const ExecutionProvider& provider) const = 0;
};

// An op of the user's: its schema, its kernels and its gradient. Sessions copy it.
struct CustomOp {
  // Counts (optional and variadic arguments by minimum and maximum), types and shapes, gradient.
  // The domain is the user's, or caesura's for a name that caesura has not. Several versions of an
  // op are several CustomOps.
  OpDef schema;
  // Best first; their op type, domain and versions are the schema's, whatever they say. `create`
  // may be null where create_instance is there: then the instance makes the kernel.
  std::vector<KernelDef> kernels;
  // Called once for each node of the op, while the session is made; may be null.
  std::function<Result<std::shared_ptr<const OpInstance>>(const OpNodeInfo&)> create_instance;
  // The kernels work on the memory of this provider: the name of one of the session's providers;
  // empty: the first one of the host.
  std::string provider;
  // The options that the op knows, with their defaults; others are an error that lists these.
  OptionSet options;
  // create_instance checks options itself: it is given whatever the user has said.
  bool checks_options = false;
};

// A member of a session's options. A value: sessions keep copies.
struct CustomOps {
  std::vector<CustomOp> ops;
  OpOptions options;
  // For model ops (core/custom_ops/model_op.h), before those that are found by name.
  std::vector<CaesuraModelRuntime> model_runtimes = {};
  // Adds the ops and model runtimes of a shared library (core/plugin/caesura_plugin.h), which stays
  // loaded.
  Status AddLibrary(const std::string& path);
};

// The custom ops of one session, and the instances of its nodes. Thread safety: none; what it gives
// out (providers) may be used from any thread once the session is made.
class OpBinding {
 public:
  // Fails with kInvalidArgument on ops that are there twice, that are ONNX's or caesura's, or that
  // have no kernel.
  static Result<std::unique_ptr<OpBinding>> Create(const CustomOps& custom_ops);

  // Makes the ops known to the model's graph: checks its nodes, infers its types anew.
  Status Declare(Model& model);
  // Declares them, and makes instances. `trained`: names of initializers whose values change.
  Status Attach(Model& model, const std::vector<std::string>& trained = {});
  // Makes instances for nodes that have come since (of gradients).
  Status MakeInstances(Graph& graph);
  // `providers`, and after each one those kernels of the custom ops that work on its memory.
  // kInvalidArgument when the provider that an op names is not among them.
  Result<ProviderList> WithKernels(const ProviderList& providers) const;

 private:
  using Instances = std::vector<std::shared_ptr<const OpInstance>>;
  OpBinding() = default;
  Status AddOp(CustomOp op);
  const CustomOp* Find(const Node& node) const;
  Status Adopt(Graph& graph, const Model& model, std::vector<std::string>* names);
  Status MakeInstance(Node* node);
  Result<OptionSet> OptionsOf(const Node& node, const CustomOp& op) const;
  OpNodeInfo Describe(const Node& node) const;

  std::vector<CustomOp> ops_;
  OpOptions options_;
  std::string model_folder_;
  std::unordered_set<std::string> trained_;
  std::shared_ptr<OpDefSet> schemas_ = std::make_shared<OpDefSet>();
  // By the number that the node carries; shared with the kernels. Grows while the session is made.
  std::shared_ptr<Instances> instances_ = std::make_shared<Instances>();
  bool is_used_ = false;  // the model has a node of these ops
};

// Objects that each belong to one call at a time: for what a kernel must write to and cannot book
// as scratch. Thread safety: all methods from any thread. It outlives what it has lent.
template <typename T>
class RunStatePool {
 public:
  // An idle object, or what `make` returns (Result<std::unique_ptr<T>>).
  template <typename Make>
  Result<std::unique_ptr<T>> Borrow(Make&& make) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<T> out = std::move(idle_.back());
        idle_.pop_back();
        return out;
      }
    }
    return make();
  }
  // One that has failed is not given back.
  void Return(std::unique_ptr<T> state) {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(state));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_CUSTOM_OPS_CUSTOM_OP_H_
