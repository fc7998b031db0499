// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/split_slices.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/graph/graph_edit.h"
#include "core/graph/op_schema.h"
#include "graph_transforms/constant_ints.h"
#include "graph_transforms/matching.h"
#include "graph_transforms/replacements.h"
#include "graph_transforms/same_dims.h"

namespace caesura {
namespace {

struct Part {
  Node* slice;
  int64_t axis, first, last;
  bool empty() const { return first >= last; }
};

// The one number that input `i` holds, or `otherwise` where it is left out.
std::optional<int64_t> Number(const Node& node, int i, std::optional<int64_t> otherwise) {
  const Value* value = node.input(i);
  if (value == nullptr) return otherwise;
  return ConstantInt(value);
}

// The part of a tensor of that type that a Slice takes, where it steps by one along one axis;
// `from`: the input with its starts.
std::optional<Part> PartOf(Node& node, const ValueType& type, int from) {
  const auto first = Number(node, from, {}), last = Number(node, from + 1, {}),
             axis = Number(node, from + 2, 0), step = Number(node, from + 3, 1);
  if (!first || !last || !axis || step != 1 || !type.is_tensor() || !IsFloating(type.dtype) ||
      !type.shape)
    return {};
  const auto rank = static_cast<int64_t>(type.shape->size());
  const int64_t at = *axis < 0 ? *axis + rank : *axis;
  if (at < 0 || at >= rank || !(*type.shape)[at].known()) return {};
  const int64_t size = (*type.shape)[at].value;
  const auto place = [size](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
  };
  return Part{&node, at, place(*first), place(*last)};
}

// Sorts the parts.
bool Cover(std::vector<Part>& parts, int64_t size) {
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.first < b.first; });
  int64_t end = 0;
  for (const Part& part : parts) {
    if (part.first != end || part.empty()) return false;
    end = part.last;
  }
  return end == size;
}

// True if `node` and all parts may become one node.
bool AreOf(const Node& node, const std::vector<Part>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const Part& part) { return MayBecomeOne(node, *part.slice); });
}

bool SplitParts(Graph& graph) {
  std::map<std::pair<uint32_t, int64_t>, std::vector<Part>>
      sliced;  // by the position of the first and the axis
  std::unordered_map<const Value*, uint32_t> firsts;
  for (uint32_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = *graph.nodes()[n];
    if (!node.Is("Slice")) continue;
    if (const std::optional<Part> part = PartOf(node, node.input(0)->type(), 1);
        part && !part->empty()) {
      sliced[{firsts.try_emplace(node.input(0), n).first->second, part->axis}].push_back(*part);
    }
  }
  GraphEdit edit(graph);
  for (auto& [key, parts] : sliced) {
    Node* earliest = parts.front().slice;
    Value* x = earliest->input(0);
    if (parts.size() < 2 || !Cover(parts, (*x->type().shape)[key.second].value)) continue;
    if (!AreOf(*earliest, parts)) continue;
    std::vector<int64_t> sizes;
    std::vector<Value*> outputs;
    for (const Part& part : parts) {
      sizes.push_back(part.last - part.first);
      outputs.push_back(graph.ReleaseOutputs(part.slice)[0]);
      edit.Remove(*part.slice);
    }
    const Shape count{static_cast<int64_t>(sizes.size())};
    Value* split =
        graph.AddInitializer(graph.UniqueName("split_slices"), Tensor::Of<int64_t>(count, sizes));
    edit.InsertBefore(*earliest, {"Split",
                                  {x, split},
                                  std::move(outputs),
                                  {{"axis", key.second}},
                                  "",
                                  graph.UniqueName(earliest->name() + ".split")});
  }
  return edit.Finish();
}

// An Add of tensors of one known shape.
bool IsSum(const Node* node) {
  if (node == nullptr || !node->Is("Add") || node->output(0) == nullptr) return false;
  const ValueType& sum = node->output(0)->type();
  return sum.is_tensor() && sum.shape &&
         std::all_of(node->inputs().begin(), node->inputs().end(), [&](const Value* x) {
           return x != nullptr && x->type().is_tensor() && x->type().shape &&
                  SameDims(*x->type().shape, *sum.shape);
         });
}

// A sum of tensors, through the Adds whose results nothing else reads.
struct Sum {
  std::vector<Value*> terms;
  std::unordered_set<const Node*> nodes;
};

bool OnlyReadOnce(const Graph& graph, const Value* value) {
  return value->uses().size() == 1 && !graph.IsGraphOutput(value) && value->graph() == &graph;
}

Sum SumOf(const Graph& graph, const Node& root) {
  Sum sum;
  std::vector<Value*> open(root.inputs().rbegin(), root.inputs().rend());  // the next one last
  sum.nodes.insert(&root);
  while (!open.empty()) {
    Value* x = open.back();
    open.pop_back();
    if (!IsSum(x->producer()) || !OnlyReadOnce(graph, x) || !MayBecomeOne(root, *x->producer())) {
      sum.terms.push_back(x);
      continue;
    }
    sum.nodes.insert(x->producer());
    open.insert(open.end(), x->producer()->inputs().rbegin(), x->producer()->inputs().rend());
  }
  return sum;
}

// True if a SliceGrad's input is known to have the part's sizes, of a tensor with those dims.
bool HasItsSizes(const Part& part, std::vector<Dim> dims) {
  if (part.slice->input(0) == nullptr) return false;
  const ValueType& type = part.slice->input(0)->type();
  dims[part.axis] = Dim{part.last - part.first, ""};
  return type.is_tensor() && type.shape && SameDims(*type.shape, dims);
}

// The SliceGrads among a sum's terms along one axis that fill all of it; none where they do not.
std::vector<Part> PartsOf(const Graph& graph, const Node& root, const Sum& sum,
                          const std::vector<Dim>& shape) {
  std::map<int64_t, std::vector<Part>> along;
  for (Value* term : sum.terms) {
    Node* node = term->producer();
    if (node == nullptr || !node->Is("SliceGrad", kCaesuraDomain) || !OnlyReadOnce(graph, term))
      continue;
    const std::optional<Part> part = PartOf(*node, term->type(), 2);
    if (part && HasItsSizes(*part, shape)) along[part->axis].push_back(*part);
  }
  for (auto& [axis, parts] : along) {
    if (parts.size() > 1 && Cover(parts, shape[axis].value) && AreOf(root, parts)) return parts;
  }
  return {};
}

bool IsEmptyPart(const Value* term) {
  Node* node = term->producer();
  if (node == nullptr || !node->Is("SliceGrad", kCaesuraDomain)) return false;
  const std::optional<Part> part = PartOf(*node, term->type(), 2);
  return part && part->empty();
}

// Replaces the SliceGrads that fill the sum's tensor by one Concat, and drops those of no elements.
void JoinSum(Graph& graph, GraphEdit& edit, Replacements& replacements, Node* root) {
  Sum sum = SumOf(graph, *root);
  Value* result = root->output(0);
  const ValueType type = result->type();
  const size_t count = sum.terms.size();
  if (!std::all_of(sum.terms.begin(), sum.terms.end(), IsEmptyPart))
    std::erase_if(sum.terms, IsEmptyPart);
  const std::vector<Part> parts = PartsOf(graph, *root, sum, *type.shape);
  if (parts.empty() &&
      (sum.terms.size() == count || (sum.terms.size() == 1 && graph.IsGraphOutput(result))))
    return;
  for (const Node* node : sum.nodes) edit.Remove(*node);
  if (parts.empty() && sum.terms.size() == 1) return replacements.Replace(result, sum.terms[0]);
  auto add = [&](const char* op, std::vector<Value*> inputs, AttributeMap attributes, bool last) {
    std::vector<Value*> outputs =
        last ? graph.ReleaseOutputs(root) : std::vector{graph.AddValue("", type)};
    edit.InsertBefore(*root, {op, std::move(inputs), outputs, std::move(attributes), "",
                              graph.UniqueName(root->name())});
    return outputs[0];
  };
  if (!parts.empty()) {
    std::vector<Value*> inputs;
    for (const Part& part : parts) {
      inputs.push_back(part.slice->input(0));
      std::erase(sum.terms, part.slice->output(0));
      edit.Remove(*part.slice);
    }
    sum.terms.insert(sum.terms.begin(), add("Concat", std::move(inputs), {{"axis", parts[0].axis}},
                                            sum.terms.empty()));
  }
  Value* total = sum.terms[0];
  for (size_t i = 1; i < sum.terms.size(); ++i)
    total = add("Add", {total, sum.terms[i]}, {}, i + 1 == sum.terms.size());
}

bool JoinGradients(Graph& graph) {
  std::vector<Node*> roots;
  for (const auto& node : graph.nodes()) {
    const Value* sum = IsSum(node.get()) ? node->output(0) : nullptr;
    if (sum == nullptr || (OnlyReadOnce(graph, sum) && IsSum(sum->uses()[0].node))) continue;
    roots.push_back(node.get());
  }
  Replacements replacements;
  GraphEdit edit(graph);
  for (Node* root : roots) JoinSum(graph, edit, replacements, root);
  replacements.Finish(graph);
  return edit.Finish();
}

bool SplitSlicesOf(Graph& graph) {
  bool changed = false;
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) changed |= SplitSlicesOf(*body);
  }
  changed |= SplitParts(graph);
  return JoinGradients(graph) || changed;
}

class SplitSlices : public Pass {
 public:
  const char* name() const override { return "split_slices"; }
  Result<bool> Run(Model& model) override { return SplitSlicesOf(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeSplitSlicesPass() { return std::make_shared<SplitSlices>(); }

}  // namespace caesura
