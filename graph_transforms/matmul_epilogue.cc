// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/matmul_epilogue.h"

#include <unordered_map>

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
    return fits && product.Attr<float>("alpha", 1.0f) == 1.0f ? kBias : -1;
  }
  return product.input(kAddend) == nullptr && SameDims(*shape, *term.type().shape) ? kAddend : -1;
}

bool IsProduct(const Node* node) {
  return node != nullptr && (node->Is("MatMul") || node->Is("FusedMatMul", kCaesuraDomain));
}

class MatMulEpilogue : public Pass {
 public:
  const char* name() const override { return "matmul_epilogue"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::vector<Node*> sums;
    for (const auto& node : graph.nodes()) {
      if (node->Is("Add") && kFloatTypes.Contains(node->output(0)->dtype())) sums.push_back(node.get());
    }
    std::unordered_map<const Node*, const Node*> replaced;  // by what stands in its place
    std::unordered_set<const Node*> gone;
    for (Node* sum : sums) {
      if (Node* fused = Fuse(graph, sum, &gone)) replaced[sum] = fused;
    }
    if (replaced.empty()) return false;
    std::vector<const Node*> order;
    for (const auto& node : graph.nodes()) {
      auto it = replaced.find(node.get());
      if (it != replaced.end() && gone.count(it->second) == 0) order.push_back(it->second);
      if (gone.count(node.get()) == 0 && !made_.count(node.get())) order.push_back(node.get());
    }
    graph.RemoveNodes(gone);
    graph.Reorder(order);
    made_.clear();
    return true;
  }

 private:
  // The product that takes the place of `sum`, if there is one.
  Node* Fuse(Graph& graph, Node* sum, std::unordered_set<const Node*>* gone) {
    for (int side : {0, 1}) {
      Value *factor = sum->input(side), *term = sum->input(1 - side);
      if (factor == nullptr || term == nullptr || factor == term) continue;
      const Node* product = factor->producer();
      if (!IsProduct(product) || factor->uses().size() != 1 || graph.IsGraphOutput(factor)) continue;
      const int slot = Slot(*product, *sum->output(0), *term);
      if (slot < 0) continue;
      std::vector<Value*> inputs = product->inputs();
      inputs.resize(slot + 1, nullptr);
      inputs[slot] = term;
      Node* fused = graph.AddNode("FusedMatMul", std::move(inputs), graph.ReleaseOutputs(sum), product->attributes(),
                                  kCaesuraDomain, sum->name() + ".product");
      fused->set_phase(sum->phase());
      fused->set_source(product->source());
      made_.insert(fused);
      gone->insert({sum, product});
      return fused;
    }
    return nullptr;
  }

  std::unordered_set<const Node*> made_;
};

}  // namespace

std::shared_ptr<Pass> MakeMatMulEpiloguePass() { return std::make_shared<MatMulEpilogue>(); }

}  // namespace caesura
