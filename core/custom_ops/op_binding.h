// SPDX-License-Identifier: Apache-2.0
// OpBinding: the custom ops of a session, bound to the nodes of its graphs.
#ifndef CAESURA_CORE_CUSTOM_OPS_OP_BINDING_H_
#define CAESURA_CORE_CUSTOM_OPS_OP_BINDING_H_

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/custom_ops/custom_op.h"

namespace caesura {

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

}  // namespace caesura

#endif  // CAESURA_CORE_CUSTOM_OPS_OP_BINDING_H_
