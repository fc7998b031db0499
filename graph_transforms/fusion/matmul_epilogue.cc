// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/matmul_epilogue.h"

#include "core/graph/graph_edit.h"
#include "graph_transforms/matching.h"
#include "graph_transforms/same_dims.h"

namespace caesura {
namespace {

constexpr int kBias = 2, kAddend = 3;  // inputs of FusedMatMul

// The input of the product that `term` can become; -1: none.
int Slot(const Node& product, const Value& sum, const Value& term) {
  const auto& shape = product.output(0)->type().shape;
  if (!shape || !term.type().shape || shape->size() < 2 || term.dtype() != sum.dtype()) return -1;
  if (term.type().shape->size() == 1 && SameDim(term.type().shape->front(), shape->back())) {
    const bool fits = product.input(kBias) == nullptr && product.input(kAddend) == nullptr;
    const bool typed = term.dtype() == product.input(0)->dtype();
    return fits && typed && product.Attr<float>("alpha", 1.0f) == 1.0f ? kBias : -1;
  }
  return product.input(kAddend) == nullptr && SameDims(*shape, *term.type().shape) ? kAddend : -1;
}

class MatMulEpilogue : public Pass {
 public:
  const char* name() const override { return "matmul_epilogue"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::vector<Node*> readers;
    for (const auto& node : graph.nodes()) {
      if (node->Is("Add") && kFloatTypes.Contains(node->output(0)->dtype()))
        readers.push_back(node.get());
      if (IsWideningCast(*node)) readers.push_back(node.get());
    }
    GraphEdit edit(graph);
    for (Node* node : readers) {
      if (node->Is("Cast")) FuseCast(graph, edit, node);
      else FuseSum(graph, edit, node);
    }
    return edit.Finish();
  }

 private:
  // The product that makes `value`, if only `reader` reads that and both may be one node.
  static const Node* ProductOf(const Graph& graph, const Value* value, const Node& reader) {
    const Node* product = value == nullptr ? nullptr : value->producer();
    const bool own = product != nullptr && value->uses().size() == 1 &&
                     !graph.IsGraphOutput(value) && MayBecomeOne(*product, reader);
    return own && (product->Is("MatMul") || product->Is("FusedMatMul", kCaesuraDomain)) ? product
                                                                                        : nullptr;
  }

  // The product with other inputs and attributes, in the place of `reader`.
  static void Replace(Graph& graph, GraphEdit& edit, const Node* product, Node* reader,
                      std::vector<Value*> inputs, AttributeMap attributes) {
    Node* fused =
        edit.Replace(*reader, {"FusedMatMul", std::move(inputs), graph.ReleaseOutputs(reader),
                               std::move(attributes), kCaesuraDomain, reader->name() + ".product"});
    fused->set_source(product->source());
    edit.Remove(*product);
  }

  static void FuseSum(Graph& graph, GraphEdit& edit, Node* sum) {
    for (int side : {0, 1}) {
      Value *factor = sum->input(side), *term = sum->input(1 - side);
      if (factor == nullptr || term == nullptr || factor == term) continue;
      const Node* product = ProductOf(graph, factor, *sum);
      const int slot = product == nullptr ? -1 : Slot(*product, *sum->output(0), *term);
      if (slot < 0) continue;
      std::vector<Value*> inputs = product->inputs();
      inputs.resize(slot + 1, nullptr);
      inputs[slot] = term;
      return Replace(graph, edit, product, sum, std::move(inputs), product->attributes());
    }
  }

  static void FuseCast(Graph& graph, GraphEdit& edit, Node* cast) {
    const Node* product = ProductOf(graph, cast->input(0), *cast);
    if (product == nullptr || product->input(kAddend) != nullptr) return;
    AttributeMap attributes = product->attributes();
    attributes["dtype"] = static_cast<int64_t>(DType::kFloat32);
    Replace(graph, edit, product, cast, product->inputs(), std::move(attributes));
  }
};

}  // namespace

std::shared_ptr<Pass> MakeMatMulEpiloguePass() { return std::make_shared<MatMulEpilogue>(); }

}  // namespace caesura
