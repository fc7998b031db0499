// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/movement_elimination.h"

#include <algorithm>
#include <numeric>

#include "core/graph/op_def.h"
#include "graph_transforms/constant_ints.h"
#include "graph_transforms/replacements.h"

namespace caesura {
namespace {

// True if every value of `from` is one of `to`.
bool Holds(DType to, DType from) {
  if (to == from) return true;
  const auto digits = [](DType dtype) {  // of integers that are exact
    switch (dtype) {
      case DType::kFloat64: return 53;
      case DType::kFloat32: return 24;
      case DType::kFloat16: return 11;
      case DType::kBFloat16: return 8;
      default: return 0;
    }
  };
  const DTypeSet floats = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
  const DTypeSet wholes = {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64};
  if (from == DType::kBool) return floats.Contains(to) || wholes.Contains(to);
  const int bits = static_cast<int>(DTypeSize(from)) * 8;
  if (wholes.Contains(from))
    return wholes.Contains(to) ? DTypeSize(to) > DTypeSize(from) : digits(to) >= bits;
  // The halves differ in range; both are within the wider ones.
  return floats.Contains(from) &&
         (to == DType::kFloat64 || (to == DType::kFloat32 && from != DType::kFloat64));
}

std::vector<int64_t> PermutationOf(const Node& node) {
  const Value* input = node.input(0);
  if (const auto* perm = node.FindAttr<std::vector<int64_t>>("perm")) return *perm;
  if (input == nullptr || !input->type().shape) return {};
  std::vector<int64_t> reversed(input->type().shape->size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return reversed;
}

bool IsReshaping(const Node& node) { return OpDefOf(node).view == OpDef::View::kReshape; }

// The value that the node's output is, after the node has been made to read past the one before it.
// Null: another value.
Value* SimplifyTranspose(Node& node, const Node& before) {
  const std::vector<int64_t> first = PermutationOf(before), second = PermutationOf(node);
  if (first.empty() || first.size() != second.size()) return nullptr;
  std::vector<int64_t> both;
  for (int64_t axis : second) both.push_back(first[static_cast<size_t>(axis)]);
  if (std::is_sorted(both.begin(), both.end())) return before.input(0);
  node.SetAttribute("perm", std::move(both));
  node.SetInput(0, before.input(0));
  return nullptr;
}

// Reads past all nodes in front that only give another shape, up to one that is there for others
// too: where that has to copy, as after a Transpose, its copy serves all.
void SimplifyReshape(Node& node) {
  const auto dims = ConstantInts(node.input(1));
  if (!dims || std::find(dims->begin(), dims->end(), 0) != dims->end()) return;
  Value* from = node.input(0);
  auto passes_on = [](const Value* between) {
    const Node* before = between->producer();
    return before != nullptr && IsReshaping(*before) && before->input(0) != nullptr &&
           between->uses().size() == 1 && !between->graph()->IsGraphOutput(between);
  };
  while (passes_on(from)) from = from->producer()->input(0);
  if (from != node.input(0)) node.SetInput(0, from);
}

Value* SimplifyCast(Node& node, const Node& before) {
  Value* input = before.input(0);
  if (input == nullptr || !Holds(before.output(0)->dtype(), input->dtype())) return nullptr;
  if (node.output(0)->dtype() == input->dtype()) return input;
  // A saturating cast from another type may differ.
  if (node.HasAttribute("saturate") || node.HasAttribute("round_mode")) return nullptr;
  node.SetInput(0, input);
  return nullptr;
}

class MovementElimination : public Pass {
 public:
  const char* name() const override { return "movement_elimination"; }
  Result<bool> Run(Model& model) override { return RunOn(*model.graph); }

 private:
  static bool RunOn(Graph& graph) {
    bool changed = false;
    Replacements replacements;
    std::unordered_set<const Node*> gone;
    for (const auto& node : graph.nodes()) {
      for (Graph* body : node->Subgraphs()) changed |= RunOn(*body);
      const Node* before = node->input(0) == nullptr ? nullptr : node->input(0)->producer();
      if (before == nullptr) continue;
      const Value* read = node->input(0);
      Value* same = nullptr;
      if (node->Is("Transpose") && before->Is("Transpose"))
        same = SimplifyTranspose(*node, *before);
      if (node->Is("Reshape")) SimplifyReshape(*node);
      if (node->Is("Cast") && before->Is("Cast")) same = SimplifyCast(*node, *before);
      changed |= node->input(0) != read;
      // A graph output keeps its name, and so the node that makes it.
      if (same == nullptr || graph.IsGraphOutput(node->output(0))) continue;
      replacements.Replace(node->output(0), same);
      gone.insert(node.get());
    }
    replacements.Finish(graph);
    graph.RemoveNodes(gone);
    return changed || !gone.empty();
  }
};

}  // namespace

std::shared_ptr<Pass> MakeMovementEliminationPass() {
  return std::make_shared<MovementElimination>();
}

}  // namespace caesura
