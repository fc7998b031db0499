// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/shape_simplification.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "graph_transforms/constant_ints.h"
#include "graph_transforms/replacements.h"

namespace caesura {
namespace {

using Dims = std::vector<Dim>;

bool IsNumber(const Dim& dim) { return dim.known(); }

class Simplifier {
 public:
  explicit Simplifier(const Graph& top) {
    std::map<std::string, int> counts;
    for (const Value* input : top.inputs()) {
      for (const Dim& dim : input->type().shape.value_or(Dims())) ++counts[dim.symbol];
    }
    for (const auto& [symbol, count] : counts) {
      if (count > 1) shared_symbols_.insert(symbol);
    }
  }

  bool RunOn(Graph& graph) {
    bool changed = false;
    Replacements replacements;
    std::unordered_set<const Node*> gone;
    std::map<std::pair<std::string, size_t>, Value*>
        first;  // symbol and rank: the value that is this dim
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      Node& node = *graph.nodes()[n];
      for (Graph* body : node.Subgraphs()) changed |= RunOn(*body);
      std::optional<Dims> dims = ElementsOf(node);
      Value* output = node.output(0);
      if (!dims || output == nullptr || output->dtype() != DType::kInt64 || !output->type().shape)
        continue;
      known_[output] = *dims;
      Value* same = nullptr;
      if (std::all_of(dims->begin(), dims->end(), IsNumber)) {
        same = ConstantOf(graph, *output, *dims);
      } else if (dims->size() == 1) {
        const auto [it, fresh] =
            first.try_emplace({dims->front().symbol, output->type().shape->size()}, output);
        if (!fresh) same = it->second;
      }
      if (same == nullptr || graph.IsGraphOutput(output)) continue;
      known_[same] = *std::move(dims);
      replacements.Replace(output, same);
      gone.insert(&node);
    }
    replacements.Finish(graph);
    graph.RemoveNodes(gone);
    return changed || !gone.empty();
  }

 private:
  static Value* ConstantOf(Graph& graph, const Value& output, const Dims& dims) {
    std::vector<int64_t> numbers;
    for (const Dim& dim : dims) numbers.push_back(dim.value);
    const Shape shape =
        output.type().shape->empty() ? Shape{} : Shape{static_cast<int64_t>(numbers.size())};
    return graph.AddInitializer(output.name() + "_value", Tensor::Of<int64_t>(shape, numbers));
  }

  // The elements of an integer value of rank 0 or 1; nothing where one is neither a number nor a
  // symbol.
  std::optional<Dims> Elements(const Value* value) const {
    if (value == nullptr) return std::nullopt;
    if (auto it = known_.find(value); it != known_.end()) return it->second;
    const std::optional<std::vector<int64_t>> numbers = Numbers(value);
    if (!numbers) return std::nullopt;
    Dims dims;
    for (int64_t number : *numbers) dims.push_back(Dim{number, ""});
    // Negative ones stand for something else.
    if (!std::all_of(dims.begin(), dims.end(), IsNumber)) return std::nullopt;
    return dims;
  }

  static std::optional<std::vector<int64_t>> Numbers(const Value* value) {
    const Tensor* tensor = value == nullptr ? nullptr : value->graph()->Initializer(value);
    return tensor != nullptr && tensor->shape().rank() <= 1 ? ConstantInts(value) : std::nullopt;
  }

  std::optional<Dims> ShapeOf(const Value* value) const {
    if (value == nullptr || !value->type().is_tensor() || !value->type().shape) return std::nullopt;
    Dims dims = *value->type().shape;
    for (const Dim& dim : dims) {
      if (!dim.known() && (dim.symbol.empty() || shared_symbols_.count(dim.symbol)))
        return std::nullopt;
    }
    return dims;
  }

  // The facts about the node's output 0.
  std::optional<Dims> ElementsOf(const Node& node) const {
    if (node.Is("Shape")) return ShapePart(node);
    if (node.Is("Size")) {
      const std::optional<Dims> dims = ShapeOf(node.input(0));
      int64_t size = 1;
      if (!dims || !std::all_of(dims->begin(), dims->end(), IsNumber)) return std::nullopt;
      for (const Dim& dim : *dims) size *= dim.value;
      return Dims{Dim{size, ""}};
    }
    if (node.Is("Gather")) return Gathered(node);
    if (node.Is("Slice")) return Sliced(node);
    if (node.Is("Concat")) return Joined(node);
    const bool same = node.Is("Identity") || node.Is("Squeeze") || node.Is("Unsqueeze");
    if (!same || node.output(0) == nullptr) return std::nullopt;
    const auto& shape = node.output(0)->type().shape;
    return shape && shape->size() <= 1 ? Elements(node.input(0)) : std::nullopt;
  }

  // Only the dims that are asked for need be known.
  std::optional<Dims> ShapePart(const Node& node) const {
    const Value* input = node.input(0);
    if (input == nullptr || !input->type().is_tensor() || !input->type().shape) return std::nullopt;
    Dims dims = *input->type().shape;
    const int64_t rank = static_cast<int64_t>(dims.size());
    const auto place = [&](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
    };
    const int64_t start = place(node.Attr<int64_t>("start", 0)),
                  end = place(node.Attr<int64_t>("end", rank));
    if (start > 0 || end < rank)
      dims = start < end ? Dims(dims.begin() + start, dims.begin() + end) : Dims();
    return AreKnown(dims) ? std::optional<Dims>(std::move(dims)) : std::nullopt;
  }

  // Reads single dims of a Shape whose other dims may be unknown.
  std::optional<Dims> Gathered(const Node& node) const {
    const std::optional<std::vector<int64_t>> indices = Numbers(node.input(1));
    if (!indices || node.Attr<int64_t>("axis", 0) != 0 || node.input(0) == nullptr)
      return std::nullopt;
    const Node* shape = node.input(0)->producer();
    std::optional<Dims> from = Elements(node.input(0));
    const bool of_shape = shape != nullptr && shape->Is("Shape") && shape->input(0) != nullptr;
    const bool whole = of_shape && !shape->HasAttribute("start") && !shape->HasAttribute("end");
    if (!from && whole) from = shape->input(0)->type().shape;
    if (!from) return std::nullopt;
    Dims dims;
    for (int64_t index : *indices) {
      const int64_t at = index < 0 ? index + static_cast<int64_t>(from->size()) : index;
      if (at < 0 || at >= static_cast<int64_t>(from->size())) return std::nullopt;
      dims.push_back((*from)[static_cast<size_t>(at)]);
    }
    return AreKnown(dims) ? std::optional<Dims>(std::move(dims)) : std::nullopt;
  }

  std::optional<Dims> Sliced(const Node& node) const {
    const std::optional<Dims> from = Elements(node.input(0));
    const auto starts = Numbers(node.input(1)), ends = Numbers(node.input(2)),
               steps = Numbers(node.input(4));
    if (!from || !starts || !ends || starts->size() != 1 || ends->size() != 1) return std::nullopt;
    if (node.input(4) != nullptr && (!steps || (*steps)[0] != 1)) return std::nullopt;
    const int64_t size = static_cast<int64_t>(from->size());
    const auto place = [&](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    const int64_t start = place((*starts)[0]), end = std::max(start, place((*ends)[0]));
    return Dims(from->begin() + start, from->begin() + end);
  }

  std::optional<Dims> Joined(const Node& node) const {
    Dims dims;
    for (const Value* input : node.inputs()) {
      const std::optional<Dims> part = Elements(input);
      if (!part) return std::nullopt;
      dims.insert(dims.end(), part->begin(), part->end());
    }
    return dims;
  }

  bool AreKnown(const Dims& dims) const {
    return std::all_of(dims.begin(), dims.end(), [&](const Dim& dim) {
      return dim.known() || (!dim.symbol.empty() && !shared_symbols_.count(dim.symbol));
    });
  }

  std::set<std::string> shared_symbols_;
  std::unordered_map<const Value*, Dims> known_;
};

class ShapeSimplification : public Pass {
 public:
  const char* name() const override { return "shape_simplification"; }
  Result<bool> Run(Model& model) override { return Simplifier(*model.graph).RunOn(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeShapeSimplificationPass() {
  return std::make_shared<ShapeSimplification>();
}

}  // namespace caesura
