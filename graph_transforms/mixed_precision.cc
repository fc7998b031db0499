// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/mixed_precision.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "core/graph/node_metadata.h"
#include "core/graph/op_traits.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

bool IsFloat32(const Value* value) {
  return value != nullptr && value->type().is_tensor() && value->dtype() == DType::kFloat32;
}

bool ReadsShape(const Node& node) { return node.Is("Shape") || node.Is("Size"); }

class Rewriter {
 public:
  Rewriter(Graph& graph, DType half) : graph_(graph), half_(half) {}

  bool Run() {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
    bool changed = false;
    for (Node* node : nodes) {
      node_ = node;
      const OpTraits& traits = TraitsOf(*node);
      const bool narrows = traits.computes_in_half || Follows(*node, traits.half_inputs);
      const int inputs = narrows ? traits.half_inputs : 0;
      std::vector<Node*> widened;
      if (inputs > 0 && IsFloat32(node->output(0))) {
        Narrow(node, inputs, &widened);
        changed = true;
      }
      if (ReadsShape(*node) && narrow_.count(node->input(0)) > 0)
        node->SetInput(0, narrow_.at(node->input(0)));
      order_.push_back(node);
      order_.insert(order_.end(), widened.begin(), widened.end());
    }
    if (changed) graph_.Reorder(order_);
    return changed;
  }

 private:
  // A bias, a factor, a bound: goes along with the activations.
  bool IsSmallInitializer(const Value* value) const {
    const Tensor* tensor = graph_.Initializer(value);
    return tensor != nullptr && tensor->shape().rank() <= 1;
  }

  // Whether the activations among the first inputs are in half already.
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

  // For the node that is at work.
  Node* AddCast(Value* from, Value* to, DType dtype) {
    Node* cast = graph_.AddNode("Cast", {from}, {to}, {{"to", static_cast<int64_t>(dtype)}}, "",
                                graph_.UniqueName(from->name() + "/cast"));
    CopyMetadata(*node_, cast);
    return cast;
  }

  // The value in half: as it was made, or cast once for all readers, ahead of its views.
  Value* Half(Value* value) {
    for (const auto* known : {&narrow_, &casts_}) {
      if (auto it = known->find(value); it != known->end()) return it->second;
    }
    Value* half = graph_.AddValue(value->name() + "/half", HalfType(*value));
    const Node* producer = value->producer();
    if (producer != nullptr && value->graph() == &graph_ &&
        TraitsOf(*producer).view != OpTraits::View::kNone && IsFloat32(producer->input(0))) {
      std::vector<Value*> inputs = producer->inputs();
      inputs[0] = Half(inputs[0]);
      Node* view =
          graph_.AddNode(producer->op_type(), std::move(inputs), {half}, producer->attributes(), "",
                         graph_.UniqueName(producer->name() + "/half"));
      view->set_since_version(producer->since_version());
      CopyMetadata(*producer, view);
      order_.push_back(view);
    } else {
      order_.push_back(AddCast(value, half, half_));
    }
    return casts_[value] = half;
  }

  // Reads and makes half; `widened` cast its outputs back for those who want float32.
  void Narrow(Node* node, int inputs, std::vector<Node*>* widened) {
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
      widened->push_back(AddCast(half, output, DType::kFloat32));
    }
  }

  Graph& graph_;
  const DType half_;
  const Node* node_ = nullptr;
  std::vector<const Node*> order_;
  std::unordered_map<const Value*, Value*> narrow_;  // made in half
  std::unordered_map<const Value*, Value*> casts_;   // cast to half for those who compute in it
};

class MixedPrecision : public Pass {
 public:
  explicit MixedPrecision(DType half) : half_(half) {}
  const char* name() const override { return "mixed_precision"; }
  Result<bool> Run(Model& model) override { return Rewriter(*model.graph, half_).Run(); }

 private:
  const DType half_;
};

}  // namespace

std::shared_ptr<Pass> MakeMixedPrecisionPass(DType half) {
  return std::make_shared<MixedPrecision>(half);
}

}  // namespace caesura
