// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/weight_packing.h"

#include <map>
#include <utility>

#include "core/base/status_macros.h"
#include "core/graph/graph_edit.h"
#include "core/kernels/gemm/dnnl_ops.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

// Weights that fit in a core's own cache are read there in any order.
constexpr int64_t kLargeWeights = int64_t{1} << 17;

class WeightPacking : public Pass {
 public:
  const char* name() const override { return "weight_packing"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::vector<Node*> products;
    for (const auto& node : graph.nodes()) {
      const bool product =
          node->Is("MatMul") || node->Is("FusedMatMul", kCaesuraDomain) || IsPlainGemm(*node);
      if (product && HasLargeWeights(graph, *node)) products.push_back(node.get());
    }
    std::map<std::pair<const Value*, bool>, Value*>
        packed;  // by weights and whether they come transposed
    GraphEdit edit(graph);
    for (Node* node : products) {
      const bool transposed = node->Attr<int64_t>("transB", 0) != 0;
      auto [entry, fresh] = packed.try_emplace({node->input(1), transposed}, nullptr);
      if (fresh) {
        ASSIGN_OR_RETURN(entry->second, Pack(graph, node->input(1), transposed));
      }
      if (entry->second != nullptr) Replace(graph, edit, node, entry->second);
    }
    if (!edit.Finish()) return false;
    for (const auto& [key, value] : packed) {
      const Value* weights = key.first;
      if (value != nullptr && weights->uses().empty() && !graph.IsGraphOutput(weights))
        graph.RemoveInitializer(weights);
    }
    graph.RemoveUnusedValues();
    return true;
  }

 private:
  static bool HasLargeWeights(const Graph& graph, const Node& node) {
    const Value* weights = node.input(1);
    const Tensor* tensor = weights == nullptr ? nullptr : graph.Initializer(weights);
    const bool constant = tensor != nullptr && !graph.IsGraphInput(weights);
    return constant && tensor->dtype() == DType::kFloat32 && tensor->shape().rank() == 2 &&
           tensor->elements() >= kLargeWeights && node.input(0)->dtype() == DType::kFloat32;
  }

  // Null where the weights are best as they are.
  static Result<Value*> Pack(Graph& graph, const Value* weights, bool transposed) {
    const Tensor& from = *graph.Initializer(weights);
    const int64_t k = from.shape()[transposed ? 1 : 0], n = from.shape()[transposed ? 0 : 1];
    std::vector<int64_t> strides = {n, 1};
    if (transposed) strides = {1, k};
    ASSIGN_OR_RETURN(Tensor packed, PackDnnlWeights(from, k, n, std::move(strides)));
    return packed.defined() ? graph.AddInitializer(weights->name() + ".packed", std::move(packed))
                            : nullptr;
  }

  static void Replace(Graph& graph, GraphEdit& edit, Node* node, Value* weights) {
    AttributeMap attributes =
        node->Is("FusedMatMul", kCaesuraDomain) ? node->attributes() : AttributeMap();
    attributes.erase("transB");
    std::vector<Value*> inputs = node->inputs();
    inputs[1] = weights;
    edit.Replace(*node, {"PackedMatMul", std::move(inputs), graph.ReleaseOutputs(node),
                         std::move(attributes), kCaesuraDomain, node->name() + ".packed"});
  }
};

}  // namespace

std::shared_ptr<Pass> MakeWeightPackingPass() { return std::make_shared<WeightPacking>(); }

}  // namespace caesura
