// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/norm_fusion.h"

#include "core/graph/graph_edit.h"
#include "graph_transforms/matching.h"
#include "graph_transforms/same_dims.h"
#include "graph_transforms/scalar_value.h"

namespace caesura {
namespace {

class NormFuser {
 public:
  NormFuser(Graph& graph, const std::unordered_set<std::string>& parameters)
      : graph_(graph), parameters_(parameters), edit_(graph) {}

  bool Run() {
    std::vector<Node*> products;
    for (const auto& node : graph_.nodes()) {
      if (node->Is("Mul")) products.push_back(node.get());
    }
    for (Node* node : products) {
      whole_ = node;
      if (!Fuse(node, 0)) Fuse(node, 1);
    }
    return edit_.Finish();
  }

 private:
  // The node of ONNX's `op_type` that makes the value and may be a part of the norm, or null.
  const Node* Part(const Value* value, const char* op_type) const {
    const Node* node = MadeBy(value, op_type);
    return node != nullptr && MayBecomeOne(*whole_, *node) ? node : nullptr;
  }

  bool IsNumber(const Value* value, double number) const {
    const auto found = ScalarValue(value, parameters_);
    return found && *found == number;
  }

  bool IsSquare(const Value* value, const Value* x) const {
    if (const Node* power = Part(value, "Pow"))
      return power->input(0) == x && IsNumber(power->input(1), 2);
    const Node* product = Part(value, "Mul");
    return product != nullptr && product->input(0) == x && product->input(1) == x;
  }

  // Only over the last axis, which stays as one.
  bool IsRowMean(const Node& mean, const Value* x) const {
    const auto axis = ScalarValue(mean.input(1), parameters_);
    const auto rank = static_cast<double>(x->type().shape->size());
    return mean.Attr<int64_t>("keepdims", 1) == 1 && axis && (*axis == -1 || *axis == rank - 1);
  }

  // epsilon, where `value` is sqrt(mean(x^2) + epsilon).
  std::optional<double> EpsilonOfRoot(const Value* value, const Value* x) const {
    const Node* root = Part(value, "Sqrt");
    const Node* sum = root == nullptr ? nullptr : Part(root->input(0), "Add");
    for (int side : {0, 1}) {
      const Node* mean = sum == nullptr ? nullptr : Part(sum->input(side), "ReduceMean");
      if (mean == nullptr || !IsRowMean(*mean, x) || !IsSquare(mean->input(0), x)) continue;
      return ScalarValue(sum->input(1 - side), parameters_);
    }
    return std::nullopt;
  }

  // x and epsilon, where `value` is x divided by that root.
  Value* Normalized(const Node& node, double* epsilon) const {
    for (int side : {0, 1}) {
      Value* x = node.input(side);
      const Value* other = node.input(1 - side);
      if (x == nullptr || !x->type().is_tensor() || !x->type().shape || x->type().shape->empty())
        continue;
      std::optional<double> found;
      if (node.Is("Div") && side == 0) found = EpsilonOfRoot(other, x);
      if (const Node* inverse = Part(other, "Reciprocal"); inverse != nullptr && node.Is("Mul")) {
        found = EpsilonOfRoot(inverse->input(0), x);
      }
      if (!found) continue;
      *epsilon = *found;
      return x;
    }
    return nullptr;
  }

  // `side`: the factor of `product` that is normalised; the other one is the scale.
  bool Fuse(Node* product, int side) {
    const Value* normalized = product->input(side);
    Value* scale = product->input(1 - side);
    const Node* node = normalized == nullptr ? nullptr : normalized->producer();
    if (node == nullptr || scale == nullptr || normalized->uses().size() != 1 ||
        graph_.IsGraphOutput(normalized) || !MayBecomeOne(*whole_, *node)) {
      return false;
    }
    double epsilon = 0;
    Value* x = Normalized(*node, &epsilon);
    const auto& row = scale->type().shape;
    if (x == nullptr || !row || row->size() != 1 || !SameDim(row->front(), x->type().shape->back()))
      return false;
    if (x->type().dtype == DType::kFloat64) return false;  // the op's epsilon is a float
    edit_.Replace(*product, {"RMSNormalization",
                             {x, scale},
                             graph_.ReleaseOutputs(product),
                             {{"axis", int64_t{-1}}, {"epsilon", static_cast<float>(epsilon)}},
                             "",
                             graph_.UniqueName(product->name() + ".norm")});
    return true;
  }

  Graph& graph_;
  const std::unordered_set<std::string>& parameters_;
  GraphEdit edit_;
  const Node* whole_ = nullptr;  // that the parts are looked for of
};

class NormFusion : public Pass {
 public:
  explicit NormFusion(std::unordered_set<std::string> parameters)
      : parameters_(std::move(parameters)) {}
  const char* name() const override { return "norm_fusion"; }
  Result<bool> Run(Model& model) override { return NormFuser(*model.graph, parameters_).Run(); }

 private:
  const std::unordered_set<std::string> parameters_;
};

}  // namespace

std::shared_ptr<Pass> MakeNormFusionPass(std::unordered_set<std::string> parameters) {
  return std::make_shared<NormFusion>(std::move(parameters));
}

}  // namespace caesura
