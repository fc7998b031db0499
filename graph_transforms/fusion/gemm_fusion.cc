// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/gemm_fusion.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "core/graph/graph_edit.h"
#include "graph_transforms/matching.h"
#include "graph_transforms/same_dims.h"

namespace caesura {
namespace {

bool IsMatrix(const Value* value) {
  return value != nullptr && value->type().shape && value->type().shape->size() == 2;
}

bool SwapsAxes(const Node& node) {
  return node.Is("Transpose") && IsMatrix(node.input(0)) &&
         node.Attr<std::vector<int64_t>>("perm", {1, 0}) == std::vector<int64_t>{1, 0};
}

// The factor that `node` multiplies `value` with, if it is a constant that `alpha` can be.
std::optional<float> ConstantFactor(const Graph& graph, const Node& node, const Value* value) {
  if (!node.Is("Mul")) return std::nullopt;
  const Value* other = node.input(node.input(0) == value ? 1 : 0);
  const Tensor* tensor = graph.Initializer(other);
  if (tensor == nullptr || graph.IsGraphInput(other) || tensor->shape().rank() != 0)
    return std::nullopt;
  const double factor =
      tensor->dtype() == DType::kFloat64 ? *tensor->data<double>() : double{*tensor->data<float>()};
  const auto alpha = static_cast<float>(factor);
  if (alpha != factor || alpha == 0 || !std::isfinite(alpha)) return std::nullopt;
  return alpha;
}

// A product on its way to be a Gemm.
struct Product {
  Value *a, *b, *c = nullptr;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1, beta = 1;

  static std::optional<Product> Of(const Node& node) {
    const bool is_gemm = node.Is("Gemm");
    if (!is_gemm && !node.Is("MatMul")) return std::nullopt;
    const DType dtype = node.output(0)->dtype();
    if (dtype != DType::kFloat32 && dtype != DType::kFloat64) return std::nullopt;
    if (!IsMatrix(node.input(0)) || !IsMatrix(node.input(1))) return std::nullopt;
    Product p{node.input(0), node.input(1)};
    if (!is_gemm) return p;
    p.c = node.input(2);
    p.transpose_a = node.Attr<int64_t>("transA", 0) != 0;
    p.transpose_b = node.Attr<int64_t>("transB", 0) != 0;
    p.alpha = node.Attr<float>("alpha", 1);
    if (p.c != nullptr) p.beta = node.Attr<float>("beta", 1);
    return p;
  }

  bool TakeTransposedFactors() {
    bool changed = false;
    for (auto [factor, transpose] : {std::pair{&a, &transpose_a}, std::pair{&b, &transpose_b}}) {
      const Node* before = (*factor)->producer();
      if (before == nullptr || !SwapsAxes(*before)) continue;
      *factor = before->input(0);
      *transpose = !*transpose;
      changed = true;
    }
    return changed;
  }

  // True if `reader`, which alone reads `value`, is part of the product now.
  bool Take(const Graph& graph, const Node& reader, const Value* value) {
    if (c == nullptr && SwapsAxes(reader)) {
      std::swap(a, b);
      std::swap(transpose_a, transpose_b);
      transpose_a = !transpose_a;
      transpose_b = !transpose_b;
      return true;
    }
    if (const auto factor = c == nullptr ? ConstantFactor(graph, reader, value) : std::nullopt) {
      alpha *= *factor;
      return true;
    }
    if (c != nullptr || !reader.Is("Add") || !IsMatrix(value)) return false;
    Value* term = reader.input(reader.input(0) == value ? 1 : 0);
    const auto &shape = value->type().shape, &added = term->type().shape;
    if (!added || term == value) return false;
    const bool is_row = added->size() == 1 && SameDim(added->front(), shape->back());
    if (is_row || SameDims(*shape, *added)) c = term;
    return c != nullptr;
  }

  NodeSpec Spec(std::vector<Value*> outputs, const std::string& name) const {
    std::vector<Value*> inputs = {a, b};
    if (c != nullptr) inputs.push_back(c);
    AttributeMap attributes;
    if (transpose_a) attributes["transA"] = int64_t{1};
    if (transpose_b) attributes["transB"] = int64_t{1};
    if (alpha != 1) attributes["alpha"] = alpha;
    if (beta != 1) attributes["beta"] = beta;
    return {"Gemm", std::move(inputs), std::move(outputs), std::move(attributes), "", name};
  }
};

// The only reader of what `node` makes, if both may be one node.
Node* OnlyReader(const Graph& graph, const Node& node) {
  const Value* output = node.output(0);
  if (output->uses().size() != 1 || graph.IsGraphOutput(output)) return nullptr;
  Node* reader = output->uses().front().node;
  return reader->graph() == &graph && MayBecomeOne(node, *reader) ? reader : nullptr;
}

bool FuseProducts(Graph& graph) {
  bool changed = false;
  std::vector<Node*> products;
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) changed |= FuseProducts(*body);
    if (Product::Of(*node)) products.push_back(node.get());
  }
  GraphEdit edit(graph);
  for (Node* node : products) {
    Product product = *Product::Of(*node);
    const bool takes_factors = product.TakeTransposedFactors();
    std::vector<Node*> parts = {node};
    for (Node* next = OnlyReader(graph, *node);
         next != nullptr && product.Take(graph, *next, parts.back()->output(0));
         next = OnlyReader(graph, *next))
      parts.push_back(next);
    if (!takes_factors && parts.size() == 1) continue;
    Node* last = parts.back();
    edit.Replace(*last, product.Spec(graph.ReleaseOutputs(last), node->name()))
        ->set_source(node->source());
    for (const Node* part : parts) edit.Remove(*part);
  }
  return edit.Finish() || changed;
}

class GemmFusion : public Pass {
 public:
  const char* name() const override { return "gemm_fusion"; }
  Result<bool> Run(Model& model) override { return FuseProducts(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeGemmFusionPass() { return std::make_shared<GemmFusion>(); }

}  // namespace caesura
