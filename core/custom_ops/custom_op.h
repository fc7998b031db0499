// SPDX-License-Identifier: Apache-2.0
// Ops of the user's own, known to the sessions that they are given to and to no other: to checks,
// type inference, placement, execution and, by a gradient hook, training.
//
//   CustomOp scale;
//   scale.schema = {.op_type = "Scale", .type_of_output = {0}, .domain = "mine"};
//   scale.schema.gradient = ScaleGradient;                         // core/graph/op_def.h
//   scale.kernels = {{.op_type = "Scale", .domain = "mine", .types = {DType::kFloat32},
//                     .create = CreateScale}};
//   SessionOptions options;
//   options.custom_ops.ops = {scale};
//   Status added = options.custom_ops.AddLibrary("libmine.so");    // core/plugin/caesura_op.h
//
// State: what belongs to a node of one session is an OpInstance, made once, with the session. What
// belongs to one run lives in scratch memory of the kernel (KernelInfo::BookScratch) or in a
// RunStatePool. Kernels keep nothing else: they run in many threads at the same time. On a device
// they put their work on KernelContext::device_stream().
#ifndef CAESURA_CORE_CUSTOM_OPS_CUSTOM_OP_H_
#define CAESURA_CORE_CUSTOM_OPS_CUSTOM_OP_H_

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/graph/op_def.h"
#include "core/kernels/kernel.h"
#include "core/plugin/caesura_op.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// --- options: strings by name, for one node, or for all nodes of an op type ---
//
//   OpOptions options;
//   options.ForNode("detector").Update({{"device", "CPU"}, {"threads", "2"}});
//   options.ForOp("ModelOp", "ai.caesura").Update("threads", "1");
//   session_options.custom_ops.options = options;
//
// If several places name an option, the first of these counts:
//   1. the session's options of the node, by its name
//   2. those that the node brings along in its model (attributes option_names and option_values)
//   3. the session's options of the op type
//   4. what the op's own description gives as default
// A node that a gradient hook has added has the options of the node that it belongs to.
//
// Values: copies share nothing. Thread safety: as a std::map.

// Options by name, each name once.
class OptionSet {
 public:
  OptionSet() = default;
  OptionSet(std::initializer_list<std::pair<const std::string, std::string>> values)
      : values_(values) {}

  // Adds an option; kInvalidArgument when it is there already.
  Status Append(const std::string& key, std::string value);
  // Sets options, whether they are there or not; others stay.
  void Update(const std::string& key, std::string value) { values_[key] = std::move(value); }
  void Update(const OptionSet& other);
  void Remove(const std::string& key) { values_.erase(key); }
  bool Has(const std::string& key) const { return values_.count(key) > 0; }
  // kNotFound, listing what there is.
  Result<std::string> Get(const std::string& key) const;
  const std::map<std::string, std::string>& values() const { return values_; }
  bool empty() const { return values_.empty(); }

  // "device=CPU;threads=2", in order of the names; "\", ";", "=" and line ends are escaped. Parse
  // takes it again.
  std::string Serialise() const;
  static Result<OptionSet> Parse(const std::string& text);

  bool operator==(const OptionSet& other) const { return values_ == other.values_; }

 private:
  std::map<std::string, std::string> values_;
};

// A session's options of nodes and of op types.
class OpOptions {
 public:
  // To read and to change; made empty when they are not there yet.
  OptionSet& ForNode(const std::string& node_name) { return nodes_[node_name]; }
  OptionSet& ForOp(const std::string& op_type, const std::string& domain) {
    return ops_[{domain, op_type}];
  }
  const std::map<std::string, OptionSet>& nodes() const { return nodes_; }
  // By domain and op type.
  const std::map<std::pair<std::string, std::string>, OptionSet>& ops() const { return ops_; }

  // All options of the node, by the order of precedence above; `defaults` are the op's own.
  // kInvalidModel where the node's attributes are no options.
  Result<OptionSet> Resolve(const Node& node, const OptionSet& defaults = {}) const;

 private:
  std::map<std::string, OptionSet> nodes_;
  std::map<std::pair<std::string, std::string>, OptionSet> ops_;
};

// --- ops ---

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
