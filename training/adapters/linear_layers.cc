// SPDX-License-Identifier: Apache-2.0
#include "training/adapters/linear_layers.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "core/base/names.h"

namespace caesura {
namespace {

// The initializer that a matrix is made of, or null.
Value* SourceOf(Value* matrix) {
  while (matrix != nullptr && matrix->graph()->Initializer(matrix) == nullptr) {
    const Node* node = matrix->producer();
    const bool passes = node != nullptr && (node->Is("Transpose") || node->Is("DequantizeLinear") ||
                                            node->Is("Cast") || node->Is("Identity"));
    matrix = passes ? node->input(0) : nullptr;
  }
  return matrix;
}

// The layer that a node alone makes, without a name.
std::optional<LinearLayer> LayerOf(Node* node) {
  LinearLayer layer{"", SourceOf(node->input(1)), {node}};
  const Value* x = node->input(0);
  if (layer.weight == nullptr || layer.weight->name().ends_with(kLoraA) ||
      layer.weight->name().ends_with(kLoraB))
    return std::nullopt;
  if (x == nullptr || !IsDifferentiable(x->dtype())) return std::nullopt;
  if (node->Is("MatMulNBits", kContribDomain)) {
    layer.in = node->Attr<int64_t>("K", 0);
    layer.out = node->Attr<int64_t>("N", 0);
    return layer;
  }
  const bool is_gemm = node->Is("Gemm");
  if (!is_gemm && !node->Is("MatMul")) return std::nullopt;
  if (is_gemm && (node->Attr<int64_t>("transA", 0) != 0 || node->Attr<float>("alpha", 1) != 1))
    return std::nullopt;
  const std::optional<Shape> shape = node->input(1)->type().ConcreteShape();
  if (!shape || shape->rank() != 2) return std::nullopt;
  const bool transposed = is_gemm && node->Attr<int64_t>("transB", 0) != 0;
  layer.in = (*shape)[transposed ? 1 : 0];
  layer.out = (*shape)[transposed ? 0 : 1];
  return layer;
}

// The path of the module, if torch.onnx has left a Linear's: "fc (torch.nn.modules.linear.Linear)
// at net.py:5".
std::string LinearModule(const Node& node) {
  const std::string& source = node.source();
  const size_t open = source.find(" ("), close = source.find(')');
  if (open == source.npos || close == source.npos || close < open) return "";
  const std::string type = source.substr(open + 2, close - open - 2);
  return type == "Linear" || type.ends_with(".Linear") ? source.substr(0, open) : "";
}

// "fc" of "fc.weight", "fc.MatMul.weight_Q4" and "fc.qweight".
std::string WithoutEnding(std::string name) {
  const size_t bits = name.rfind("_Q");
  if (bits != name.npos && bits + 2 < name.size() &&
      name.find_first_not_of("0123456789", bits + 2) == name.npos)
    name.resize(bits);
  for (const char* end : {".weight", ".qweight", ".MatMul"}) {
    if (name.ends_with(end)) name.resize(name.size() - std::string(end).size());
  }
  return name;
}

// "layers.0.fc" of the node "/layers.0/fc/MatMul", as PyTorch's older exporter writes it; its
// weights have numbers.
std::string OlderPath(const Node& node) {
  const std::string& name = node.name();
  const size_t end = name.rfind('/');
  if (name.empty() || name[0] != '/' || end == 0 || end == name.npos) return "";
  std::string path = name.substr(1, end - 1);
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
}

std::string NameOf(const LinearLayer& layer) {
  const Node& node = *layer.products[0];
  const std::string& weight = layer.weight->name();
  std::string name = LinearModule(node);
  if (name.empty() && weight.starts_with("onnx::")) name = OlderPath(node);
  return name.empty() ? WithoutEnding(weight) : name;
}

}  // namespace

std::vector<LinearLayer> LinearLayers(const Graph& graph) {
  std::vector<LinearLayer> layers;
  std::unordered_map<const Value*, size_t> by_weight;
  for (const auto& node : graph.nodes()) {
    std::optional<LinearLayer> layer = LayerOf(node.get());
    if (!layer) continue;
    const auto [it, is_new] = by_weight.emplace(layer->weight, layers.size());
    if (is_new) layers.push_back(*std::move(layer));
    else if (layers[it->second].in == layer->in && layers[it->second].out == layer->out)
      layers[it->second].products.push_back(node.get());
  }
  std::unordered_map<std::string, int> counts;
  for (LinearLayer& layer : layers) ++counts[layer.name = NameOf(layer)];
  for (LinearLayer& layer : layers) {
    if (counts[layer.name] > 1) layer.name = layer.weight->name();
  }
  return layers;
}

bool IsTarget(const std::string& target, const LinearLayer& layer) {
  const auto matches = [&](const Node* node) { return MatchesName(target, node->name()); };
  return MatchesName(target, layer.name) || layer.name.ends_with("." + target) ||
         MatchesName(target, layer.weight->name()) ||
         std::any_of(layer.products.begin(), layer.products.end(), matches);
}

}  // namespace caesura
