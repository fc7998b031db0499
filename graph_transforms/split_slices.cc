// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/split_slices.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/graph/op_schema.h"

namespace caesura {
namespace {

struct Part {
  Node* slice;
  int64_t axis, first, last;
};

// The one number that input `i` holds, or `otherwise` where it is left out.
std::optional<int64_t> Number(const Node& node, int i, std::optional<int64_t> otherwise) {
  const Value* value = node.input(i);
  if (value == nullptr) return otherwise;
  const Tensor* tensor = value->graph()->IsGraphInput(value) ? nullptr : value->graph()->Initializer(value);
  if (tensor == nullptr || tensor->elements() != 1) return std::nullopt;
  return tensor->ToVector<int64_t>()[0];
}

// What a Slice takes of its input, where it steps by one along one axis.
std::optional<Part> PartOf(Node& node) {
  const auto first = Number(node, 1, {}), last = Number(node, 2, {}), axis = Number(node, 3, 0), step = Number(node, 4, 1);
  const ValueType& type = node.input(0)->type();
  if (!first || !last || !axis || step != 1 || !type.is_tensor() || !IsFloating(type.dtype) || !type.shape) return {};
  const auto rank = static_cast<int64_t>(type.shape->size());
  const int64_t at = *axis < 0 ? *axis + rank : *axis;
  if (at < 0 || at >= rank || !(*type.shape)[at].known()) return {};
  const int64_t size = (*type.shape)[at].value;
  const auto place = [size](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  return Part{&node, at, place(*first), place(*last)};
}

bool Cover(const std::vector<Part>& parts, int64_t size) {
  int64_t end = 0;
  for (const Part& part : parts) {
    if (part.first != end || part.last <= part.first) return false;
    end = part.last;
  }
  return end == size;
}

bool RunOn(Graph& graph) {
  bool changed = false;
  std::map<std::pair<uint32_t, int64_t>, std::vector<Part>> sliced;  // by the position of the first and the axis
  std::unordered_map<const Value*, uint32_t> firsts;
  for (uint32_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = *graph.nodes()[n];
    for (Graph* body : node.Subgraphs()) changed |= RunOn(*body);
    if (!node.Is("Slice")) continue;
    if (const std::optional<Part> part = PartOf(node)) {
      sliced[{firsts.try_emplace(node.input(0), n).first->second, part->axis}].push_back(*part);
    }
  }
  std::unordered_set<const Node*> gone;
  for (auto& [key, parts] : sliced) {
    Node* earliest = parts.front().slice;
    Value* x = earliest->input(0);
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
    if (parts.size() < 2 || !Cover(parts, (*x->type().shape)[key.second].value)) continue;
    std::vector<int64_t> sizes;
    std::vector<Value*> outputs;
    for (const Part& part : parts) {
      sizes.push_back(part.last - part.first);
      outputs.push_back(graph.ReleaseOutputs(part.slice)[0]);
      gone.insert(part.slice);
    }
    const Shape count{static_cast<int64_t>(sizes.size())};
    Value* split = graph.AddInitializer(graph.UniqueName("split_slices"), Tensor::Of<int64_t>(count, sizes));
    const size_t tail = graph.nodes().size();
    Node* node = graph.AddNode("Split", {x, split}, std::move(outputs), {{"axis", key.second}}, "",
                               graph.UniqueName(earliest->name() + ".split"));
    node->set_since_version(SinceVersion("Split", ""));
    node->set_phase(earliest->phase());
    node->set_source(earliest->source());
    graph.MoveTailBefore(tail, earliest);
  }
  graph.RemoveNodes(gone);
  return changed || !gone.empty();
}

class SplitSlices : public Pass {
 public:
  const char* name() const override { return "split_slices"; }
  Result<bool> Run(Model& model) override { return RunOn(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeSplitSlicesPass() { return std::make_shared<SplitSlices>(); }

}  // namespace caesura
