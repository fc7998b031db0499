// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/mixed_precision.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <unordered_map>

#include "core/graph/graph_edit.h"
#include "core/graph/op_def.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

bool IsFloat32(const Value* value) {
  return value != nullptr && value->type().is_tensor() && value->dtype() == DType::kFloat32;
}

bool ReadsShape(const Node& node) { return node.Is("Shape") || node.Is("Size"); }

class HalfRewriter {
 public:
  HalfRewriter(Graph& graph, DType half) : graph_(graph), edit_(graph), half_(half) {}

  bool Run() {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
    bool changed = false;
    for (Node* node : nodes) {
      node_ = node;
      const OpDef& traits = OpDefOf(*node);
      const bool narrows = traits.computes_in_half || Follows(*node, traits.half_inputs);
      const int inputs = narrows ? traits.half_inputs : 0;
      if (inputs > 0 && IsFloat32(node->output(0))) {
        Narrow(node, inputs);
        changed = true;
      }
      if (ReadsShape(*node) && narrow_.count(node->input(0)) > 0)
        node->SetInput(0, narrow_.at(node->input(0)));
    }
    return edit_.Finish() || changed;
  }

 private:
  // A bias, a factor, a bound: goes along with the activations.
  bool IsSmallInitializer(const Value* value) const {
    const Tensor* tensor = graph_.Initializer(value);
    return tensor != nullptr && tensor->shape().rank() <= 1;
  }

  // True if the activations among the first inputs are in half already.
  bool Follows(const Node& node, int first_inputs) const {
    const int count = std::min(first_inputs, static_cast<int>(node.inputs().size()));
    bool any = false;
    for (int i = 0; i < count; ++i) {
      const Value* input = node.inputs()[i];
      if (!IsFloat32(input)) continue;
      if (narrow_.count(input) > 0) any = true;
      else if (!IsSmallInitializer(input)) return false;
    }
    return any;
  }

  ValueType HalfType(const Value& value) const {
    ValueType type = value.type();
    type.dtype = half_;
    return type;
  }

  NodeSpec Cast(Value* from, Value* to, DType dtype) {
    return {"Cast", {from},
            {to},   {{"to", static_cast<int64_t>(dtype)}},
            "",     graph_.UniqueName(from->name() + "/cast")};
  }

  // The value in half for the node that is at work: as it was made, or cast once for all readers,
  // ahead of its views.
  Value* Half(Value* value) {
    for (const auto* known : {&narrow_, &casts_}) {
      if (auto it = known->find(value); it != known->end()) return it->second;
    }
    Value* half = graph_.AddValue(value->name() + "/half", HalfType(*value));
    const Node* producer = value->producer();
    if (producer != nullptr && value->graph() == &graph_ &&
        OpDefOf(*producer).view != OpDef::View::kNone && IsFloat32(producer->input(0))) {
      std::vector<Value*> inputs = producer->inputs();
      inputs[0] = Half(inputs[0]);
      const Node* view = graph_.CloneNode(*producer, std::move(inputs), {half},
                                          graph_.UniqueName(producer->name() + "/half"));
      edit_.MoveBefore(*view, *node_);
    } else {
      edit_.InsertBefore(*node_, Cast(value, half, half_));
    }
    return casts_[value] = half;
  }

  // The node reads and makes half; casts after it are for those who want float32.
  void Narrow(Node* node, int inputs) {
    for (int i = 0; i < std::min<int>(inputs, static_cast<int>(node->inputs().size())); ++i) {
      if (IsFloat32(node->inputs()[i])) node->SetInput(i, Half(node->inputs()[i]));
    }
    const std::vector<Value*> outputs = graph_.ReleaseOutputs(node);
    for (size_t i = 0; i < outputs.size(); ++i) {
      Value* output = outputs[i];
      if (output == nullptr) continue;
      if (!IsFloat32(output)) {
        node->SetOutput(static_cast<int>(i), output);
        continue;
      }
      Value* half = graph_.AddValue(output->name() + "/half", HalfType(*output));
      node->SetOutput(static_cast<int>(i), half);
      narrow_[output] = half;
      edit_.InsertAfter(*node, Cast(half, output, DType::kFloat32));
    }
  }

  Graph& graph_;
  GraphEdit edit_;
  const DType half_;
  const Node* node_ = nullptr;                       // that is at work
  std::unordered_map<const Value*, Value*> narrow_;  // made in half
  std::unordered_map<const Value*, Value*> casts_;   // cast to half for those who compute in it
};

class MixedPrecision : public Pass {
 public:
  explicit MixedPrecision(DType half) : half_(half) {}
  const char* name() const override { return "mixed_precision"; }
  Result<bool> Run(Model& model) override { return HalfRewriter(*model.graph, half_).Run(); }

 private:
  const DType half_;
};

}  // namespace

std::shared_ptr<Pass> MakeMixedPrecisionPass(DType half) {
  assert(half == DType::kFloat16 || half == DType::kBFloat16);
  return std::make_shared<MixedPrecision>(half);
}

}  // namespace caesura
