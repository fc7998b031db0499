// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/cpu_fallback_modes.h"

#include <algorithm>

#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

constexpr int64_t kMaxConstantElements = 100;

bool IsSixteenBit(const Value* value) {
  return value->dtype() == DType::kFloat16 || value->dtype() == DType::kBFloat16;
}

bool HasHostKernel(const Node& node, const ShapeChains& chains) {
  return !chains.host().kernels().Find(node).empty();
}

// True for the inputs that the list takes for shapes.
bool IsShapeInput(const Node& node, int i) {
  if (node.Is("Range")) return true;
  if (node.Is("ConstantOfShape")) return i == 0;
  if (node.Is("Slice")) return i >= 1;
  return i == 1 && (node.Is("Reshape") || node.Is("Unsqueeze") || node.Is("Expand"));
}

}  // namespace

std::unordered_set<const Node*> ForwardFallback(const Graph& graph, const ShapeChains& chains) {
  std::unordered_set<const Node*> moved;
  std::unordered_set<const Value*> on_host;
  for (const auto& node : graph.nodes()) {
    bool fits = !chains.RunsOnHost(*node), any = false;
    for (int i = 0; i < static_cast<int>(node->inputs().size()); ++i) {
      const Value* input = node->input(i);
      if (input == nullptr) continue;
      const Tensor* constant = input->graph()->Initializer(input);
      const bool known = on_host.count(input) > 0 || graph.IsGraphInput(input);
      if (!known && (constant == nullptr || constant->elements() > kMaxConstantElements))
        fits = false;
      if (IsSixteenBit(input) || (on_host.count(input) > 0 && chains.ReadsOnHost(*node, i)))
        fits = false;
      any |= known;
    }
    fits = fits && any && HasHostKernel(*node, chains);
    if (fits) moved.insert(node.get());
    for (const Value* output : node->outputs()) {
      if (output != nullptr && (fits || chains.IsOnHost(output))) on_host.insert(output);
    }
  }
  return moved;
}

std::unordered_set<const Node*> SeedFallback(const Graph& graph, const ShapeChains& chains) {
  std::unordered_set<const Node*> moved = ForwardFallback(graph, chains), seen;
  std::vector<const Node*> open;
  auto visit = [&](const Value* value) {
    const Node* producer = value == nullptr ? nullptr : value->producer();
    if (producer == nullptr || producer->Is("Shape") || producer->Is("Size")) return;
    if (seen.insert(producer).second) open.push_back(producer);
  };
  for (const auto& node : graph.nodes()) {
    for (int i = 0; i < static_cast<int>(node->inputs().size()); ++i) {
      if (IsShapeInput(*node, i)) visit(node->input(i));
    }
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (HasHostKernel(*node, chains) && !chains.RunsOnHost(*node)) moved.insert(node);
    for (const Value* input : node->inputs()) visit(input);
  }
  return moved;
}

}  // namespace caesura
