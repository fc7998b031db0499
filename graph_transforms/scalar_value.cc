// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/scalar_value.h"

#include <cmath>

namespace caesura {
namespace {

std::optional<double> Element(const Tensor& tensor) {
  std::optional<double> out;
  if (tensor.elements() != 1) return out;
  DispatchNumeric(tensor.dtype(), [&](auto tag) {
    out = static_cast<double>(*tensor.data<typename decltype(tag)::type>());
  });
  return out;
}

// Element `index` of what a Shape node puts out.
std::optional<double> DimOf(const Node& shape, int64_t index) {
  const auto& dims = shape.input(0)->type().shape;
  if (!dims) return std::nullopt;
  const auto rank = static_cast<int64_t>(dims->size());
  const int64_t start = shape.Attr<int64_t>("start", 0), end = shape.Attr<int64_t>("end", rank);
  const int64_t first = start < 0 ? start + rank : start,
                last = end < 0 ? end + rank : std::min(end, rank);
  const int64_t at = index < 0 ? last + index : first + index;
  if (at < first || at >= last || at < 0 || !(*dims)[at].known()) return std::nullopt;
  return static_cast<double>((*dims)[at].value);
}

}  // namespace

std::optional<double> ScalarValue(const Value* value,
                                  const std::unordered_set<std::string>& parameters) {
  if (value == nullptr) return std::nullopt;
  const Graph& graph = *value->graph();
  if (const Tensor* tensor = graph.Initializer(value)) {
    const bool fixed = parameters.count(value->name()) == 0 && !graph.IsGraphInput(value);
    return fixed ? Element(*tensor) : std::nullopt;
  }
  const Node* node = value->producer();
  if (node == nullptr || !node->domain().empty()) return std::nullopt;
  const std::string& op = node->op_type();
  if (op == "Shape") return DimOf(*node, 0) && !DimOf(*node, 1) ? DimOf(*node, 0) : std::nullopt;
  if (op == "Gather" || op == "Slice") {
    const auto index = ScalarValue(node->input(1), parameters);
    const Node* shape = node->input(0)->producer();
    const auto& dims = value->type().shape;
    const bool one = op == "Gather" || (dims && dims->size() == 1 && dims->front().value == 1);
    if (!index || !one || shape == nullptr || !shape->Is("Shape")) return std::nullopt;
    return DimOf(*shape, static_cast<int64_t>(*index));
  }
  const auto a = ScalarValue(node->input(0), parameters);
  if (!a) return std::nullopt;
  const bool casts = op == "Cast" || op == "CastLike";
  if (casts && !IsFloating(value->dtype())) return std::nullopt;
  if (casts || op == "Identity" || op == "Reshape" || op == "Squeeze" || op == "Unsqueeze")
    return a;
  if (op == "Sqrt") return std::sqrt(*a);
  if (op == "Reciprocal") return 1 / *a;
  const auto b = ScalarValue(node->input(1), parameters);
  if (!b) return std::nullopt;
  if (op == "Mul") return *a * *b;
  if (op == "Div" && IsFloating(value->dtype())) return *a / *b;
  if (op == "Pow") return std::pow(*a, *b);
  return std::nullopt;
}

}  // namespace caesura
