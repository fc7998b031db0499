// SPDX-License-Identifier: Apache-2.0
// The gradient rule of ops that a session was given together with a gradient hook
// (core/graph/op_def.h).
#include "core/graph/op_def.h"

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/graph/op_attributes.h"
#include "core/graph/op_schema.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/gradient/gradient_rules.h"

namespace caesura::gradient {
namespace {

class Hook : public GradientHook {
 public:
  explicit Hook(GradientContext& g) : g_(g), given_(g.node().inputs().size(), false) {}

  const Node& node() const override { return g_.node(); }
  Value* OutputGradient(int i) const override { return g_.dY(i).value(); }
  bool NeedsInputGradient(int i) const override { return g_.Needs(i); }
  Result<std::vector<Value*>> AddNode(const std::string& op_type, const std::vector<Value*>& inputs,
                                      AttributeMap attributes, const std::string& domain,
                                      const std::vector<bool>& present) override {
    NodeWriter& writer = g_.writer();
    attributes.erase(kInstanceAttribute);
    std::vector<Value*> outputs;
    for (const bool is_present : present)
      outputs.push_back(is_present ? writer.FreshValue(op_type) : nullptr);
    Node* added = writer.AddWithOutputs(op_type, inputs, outputs, std::move(attributes), domain);
    if (const OpDef* spec = FindOwnOp(*added)) {
      added->set_since_version(spec->since_version);
      if (!added->HasAttribute(kForwardNodeAttribute))
        added->SetAttribute(kForwardNodeAttribute, node().name());
    }
    RETURN_IF_ERROR(InferNodeTypes(writer.graph(), added));
    return outputs;
  }
  Value* AddConstant(Tensor tensor) override {
    Graph& graph = g_.writer().graph();
    return graph.AddInitializer(g_.writer().FreshName("constant"), std::move(tensor));
  }
  void SetInputGradient(int i, Value* gradient) override {
    if (i < 0 || i >= static_cast<int>(given_.size()) || gradient == nullptr) return;
    given_[i] = true;
    g_.SetInputGradient(i, g_.Wrap(gradient));
  }

  Status CheckComplete() const {
    std::string missing;
    for (int i = 0; i < static_cast<int>(given_.size()); ++i) {
      if (g_.Needs(i) && !given_[i]) missing += (missing.empty() ? "" : ", ") + std::to_string(i);
    }
    return missing.empty()
               ? Status()
               : Unsupported("its gradient hook gives no gradient for input(s) " + missing);
  }

 private:
  GradientContext& g_;
  std::vector<bool> given_;
};

void CallHook(GradientContext& g) {
  Hook hook(g);
  Status status = FindOwnOp(g.node())->gradient(hook);
  if (status.ok()) status = hook.CheckComplete();
  if (!status.ok()) g.Refuse("has no gradient: " + status.message());
}

}  // namespace

const GradientRule& HookRule() {
  static const auto* rule = new GradientRule{.function = CallHook};
  return *rule;
}

}  // namespace caesura::gradient
