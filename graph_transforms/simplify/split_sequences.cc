// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/split_sequences.h"

#include <algorithm>
#include <optional>

#include "core/graph/graph_edit.h"
#include "graph_transforms/constant_ints.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

// A node of more outputs than this would cost more than the sequence that it replaces.
constexpr int64_t kMaxParts = 4096;

// The sizes of the parts, when they are known.
std::optional<std::vector<int64_t>> PartSizes(const Node& node) {
  const Value* input = node.input(0);
  const auto& shape = input->type().shape;
  if (!shape) return std::nullopt;
  const int rank = static_cast<int>(shape->size());
  int64_t axis = node.Attr<int64_t>("axis", 0);
  if (axis < 0) axis += rank;
  const Value* stated = node.input(1);
  const auto split = ConstantInts(stated);
  if (axis < 0 || axis >= rank || (stated != nullptr && !split)) return std::nullopt;
  if (split && stated->graph()->Initializer(stated)->shape().rank() == 1) return split;
  if (split && split->size() != 1) return std::nullopt;
  const int64_t extent = (*shape)[axis].value;
  const int64_t part = split ? split->front() : 1;
  if (extent <= 0 || part <= 0 || extent / part >= kMaxParts) return std::nullopt;
  std::vector<int64_t> sizes(extent / part, part);
  if (extent % part != 0) sizes.push_back(extent % part);
  return sizes;
}

bool TakenOutAtConstants(const Value& sequence) {
  if (sequence.graph()->IsGraphOutput(&sequence) || sequence.uses().empty()) return false;
  return std::all_of(sequence.uses().begin(), sequence.uses().end(), [&](const Value::Use& use) {
    return use.index == 0 && use.node->Is("SequenceAt") && use.node->graph() == sequence.graph() &&
           ConstantInt(use.node->input(1)).has_value();
  });
}

// Replaces the node and those that take its parts, where it can.
void Replace(Graph& graph, GraphEdit& edit, Node& node) {
  Value* sequence = node.output(0);
  const auto sizes = PartSizes(node);
  if (!sizes || node.Attr<int64_t>("keepdims", 1) == 0 || !TakenOutAtConstants(*sequence)) return;
  const int64_t count = static_cast<int64_t>(sizes->size());
  std::vector<std::pair<Node*, int64_t>> takers;
  for (const Value::Use& use : sequence->uses()) {
    int64_t position = *ConstantInt(use.node->input(1));
    if (position < 0) position += count;
    if (position < 0 || position >= count || graph.IsGraphOutput(use.node->output(0))) return;
    if (!MayBecomeOne(node, *use.node)) return;
    takers.emplace_back(use.node, position);
  }
  Value* split =
      graph.AddInitializer(sequence->name() + "_sizes", Tensor::Of<int64_t>(Shape{count}, *sizes));
  std::vector<Value*> parts;
  for (int64_t i = 0; i < count; ++i) {
    ValueType type = node.input(0)->type();
    int64_t axis = node.Attr<int64_t>("axis", 0);
    if (axis < 0) axis += static_cast<int64_t>(type.shape->size());
    (*type.shape)[axis] = Dim{(*sizes)[i], ""};
    parts.push_back(graph.AddValue(sequence->name() + "_part", std::move(type)));
  }
  edit.Replace(node,
               {"Split", {node.input(0), split}, parts, {{"axis", node.Attr<int64_t>("axis", 0)}}});
  for (const auto& [taker, position] : takers) {
    graph.ReplaceAllUses(taker->output(0), parts[position]);
    edit.Remove(*taker);
  }
}

bool SplitSequencesOf(Graph& graph) {
  bool changed = false;
  GraphEdit edit(graph);
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    Node& node = *graph.nodes()[i];
    for (Graph* body : node.Subgraphs()) changed |= SplitSequencesOf(*body);
    if (node.Is("SplitToSequence") && node.input(0)->type().is_tensor()) Replace(graph, edit, node);
  }
  return edit.Finish() || changed;
}

class SplitSequences : public Pass {
 public:
  const char* name() const override { return "split_sequences"; }
  Result<bool> Run(Model& model) override { return SplitSequencesOf(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeSplitSequencesPass() { return std::make_shared<SplitSequences>(); }

}  // namespace caesura
