// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/onnx/buffer_marks.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/model_reader.h"
#include "training/adapters/adapter_facts.h"
#include "training/adapters/linear_layers.h"
#include "training/adapters/lora.h"

namespace caesura {
namespace {

// The nodes of the low-rank path beside one product.
struct LowRankPath {
  Node* end = nullptr;  // of the layer
  Value* output = nullptr;
  std::unordered_set<const Node*> nodes;
};

// The node of this type that alone reads the first output of `node`, or null.
Node* OnlyReader(const Node* node, const char* op_type) {
  const Value* value = node == nullptr ? nullptr : node->output(0);
  if (value == nullptr || value->uses().size() != 1) return nullptr;
  Node* reader = value->uses()[0].node;
  return reader->Is(op_type) ? reader : nullptr;
}

// The path that begins with A's Transpose.
std::optional<LowRankPath> PathFrom(Node* transpose, bool is_half) {
  Node* down = OnlyReader(transpose, "MatMul");
  Node* up = OnlyReader(down, "MatMul");
  Node* scaled = OnlyReader(up, "Mul");
  Node* sum = OnlyReader(scaled, "Add");
  Node* last = is_half ? OnlyReader(sum, "Cast") : sum;
  Node* swapped_b = up == nullptr || up->input(1) == nullptr ? nullptr : up->input(1)->producer();
  if (last == nullptr || swapped_b == nullptr || !swapped_b->Is("Transpose")) return std::nullopt;
  LowRankPath path;
  path.nodes = {transpose, down, swapped_b, up, scaled, sum, last};
  Node* end = sum->input(0)->producer();
  if (is_half) {
    const Node* wide_x = down->input(0)->producer();
    if (end == nullptr || !end->Is("Cast") || wide_x == nullptr || !wide_x->Is("Cast"))
      return std::nullopt;
    path.nodes.insert({end, wide_x});
    end = end->input(0)->producer();
  }
  path.end = end;
  path.output = last->output(0);
  return end == nullptr ? std::nullopt : std::optional(path);
}

class Merger {
 public:
  Merger(Graph& graph, const Adapter& adapter)
      : graph_(graph), scale_(adapter.alpha / static_cast<double>(adapter.rank)) {}

  // Why the layer cannot be merged; empty: it can.
  std::string Refusal(const LinearLayer& layer) const {
    if (!IsDifferentiable(graph_.Initializer(layer.weight)->dtype()))
      return "its weight '" + layer.weight->name() + "' is not floating but " +
             std::string(DTypeName(graph_.Initializer(layer.weight)->dtype()));
    for (const Value::Use& use : layer.weight->uses()) {
      const bool is_product = IsProduct(layer, use.node);
      const Value* swapped = use.node->Is("Transpose") ? use.node->output(0) : nullptr;
      const bool leads = swapped != nullptr &&
                         std::all_of(swapped->uses().begin(), swapped->uses().end(),
                                     [&](auto& next) { return IsProduct(layer, next.node); });
      if (!is_product && !leads)
        return "its weight '" + layer.weight->name() + "' is read by " + use.node->Label() +
               ", too";
    }
    return "";
  }

  Status Merge(const LinearLayer& layer, const Adapter::Layer& matrices) {
    Value* a = graph_.FindValue(NameOfA(layer.name));
    Value* b = graph_.FindValue(NameOfB(layer.name));
    std::vector<LowRankPath> paths;
    for (const Value::Use& use : a->uses()) {
      std::optional<LowRankPath> path = PathFrom(use.node, IsHalf(InputDType(layer)));
      if (path) paths.push_back(*std::move(path));
    }
    if (paths.size() != layer.products.size() || paths.size() != a->uses().size())
      return InvalidModel("layer '" + layer.name +
                          "': another program has changed the nodes of its adapter");
    for (LowRankPath& path : paths) {
      for (const Node* node : path.nodes) {
        if (node->output(0) == path.output) graph_.ReleaseOutputs(const_cast<Node*>(node));
      }
      graph_.RemoveNodes(path.nodes);
      graph_.ReleaseOutputs(path.end);
      path.end->SetOutput(0, path.output);
    }
    for (Value* value : {a, b}) {
      graph_.RemoveInput(value);
      graph_.RemoveInitializer(value);
    }
    return Add(layer, matrices);
  }

 private:
  static bool IsProduct(const LinearLayer& layer, const Node* node) {
    return std::find(layer.products.begin(), layer.products.end(), node) != layer.products.end();
  }

  // The weight plus B A times the scale.
  Status Add(const LinearLayer& layer, const Adapter::Layer& matrices) {
    const Tensor& weight = *graph_.Initializer(layer.weight);
    // [out, in], as B A is, unless a MatMul reads it as it is or a Gemm does without transB.
    const Node& reader = *layer.weight->uses()[0].node;
    const bool is_out_in = !IsProduct(layer, &reader) || reader.Attr<int64_t>("transB", 0) != 0;
    Result<Tensor> sum = Tensor::Allocate(weight.dtype(), weight.shape());
    RETURN_IF_ERROR(sum.status());
    const auto run = [&](auto wide) {
      using Wide = decltype(wide);
      const std::vector<Wide> a = matrices.a.ToVector<Wide>(), b = matrices.b.ToVector<Wide>();
      std::vector<Wide> row(static_cast<size_t>(layer.in));
      const int64_t rank = matrices.a.shape()[0];
      DispatchNumeric(weight.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (int64_t o = 0; o < layer.out; ++o) {
          std::fill(row.begin(), row.end(), Wide(0));
          for (int64_t r = 0; r < rank; ++r) {
            for (int64_t i = 0; i < layer.in; ++i) row[i] += b[o * rank + r] * a[r * layer.in + i];
          }
          for (int64_t i = 0; i < layer.in; ++i) {
            const int64_t at = is_out_in ? o * layer.in + i : i * layer.out + o;
            sum->data<T>()[at] = static_cast<T>(static_cast<Wide>(weight.data<T>()[at]) +
                                                row[i] * static_cast<Wide>(scale_));
          }
        }
      });
    };
    if (weight.dtype() == DType::kFloat64) run(double());
    else run(float());
    graph_.SetInitializer(layer.weight, *std::move(sum));
    return {};
  }

  Graph& graph_;
  const double scale_;
};

}  // namespace

Result<Model> MergeAdapter(const Model& model) {
  ASSIGN_OR_RETURN(const Adapter adapter, AdapterOf(model));
  ASSIGN_OR_RETURN(const AdapterFacts facts, ReadAdapterFacts(model));
  Model out = model.Clone();
  Merger merger(*out.graph, adapter);
  std::vector<LinearLayer> layers;
  std::string wrong;
  size_t found = 0;
  for (LinearLayer& layer : LinearLayers(*out.graph)) {
    if (adapter.layers.count(layer.name) == 0) continue;
    ++found;
    const std::string refusal = merger.Refusal(layer);
    if (!refusal.empty()) wrong += "\n  layer '" + layer.name + "': " + refusal;
    layers.push_back(std::move(layer));
  }
  if (found != adapter.layers.size())
    return InvalidModel("merge: the model lacks layers that its adapter is for");
  if (!wrong.empty()) return Unsupported("merge: the adapter stays apart:" + wrong);
  for (const LinearLayer& layer : layers)
    RETURN_IF_ERROR(merger.Merge(layer, adapter.layers.at(layer.name)).WithPrefix("merge: "));
  std::unordered_set<std::string> marked = MarkedBuffers(out);
  for (const std::string& name : facts.frozen) marked.erase(name);
  SetMarkedBuffers(marked, &out);
  RemoveAdapterFacts(&out);
  out.graph->RemoveUnusedValues();
  RETURN_IF_ERROR(InferShapes(out));
  return out;
}

}  // namespace caesura
