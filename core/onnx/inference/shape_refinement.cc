// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/inference/shape_refinement.h"

#include <set>

#include "core/graph/graph.h"

namespace caesura {
namespace {

// A product of numbers and symbols.
struct Product {
  int64_t number = 1;
  std::multiset<std::string> symbols;
  bool is_known = true;

  void Multiply(const Dim& dim) {
    if (dim.known()) {
      is_known = is_known && !__builtin_mul_overflow(number, dim.value, &number);
    } else if (dim.symbol.empty()) {
      is_known = false;
    } else {
      symbols.insert(dim.symbol);
    }
  }
};

// `whole` divided by `part`, where that is a number or a single symbol.
Dim Quotient(const Product& whole, const Product& part) {
  if (!whole.is_known || !part.is_known || part.number <= 0 || whole.number % part.number != 0)
    return {};
  std::multiset<std::string> rest = whole.symbols;
  for (const std::string& symbol : part.symbols) {
    auto it = rest.find(symbol);
    if (it == rest.end()) return {};
    rest.erase(it);
  }
  if (rest.empty()) return Dim{whole.number / part.number, ""};
  if (rest.size() == 1 && whole.number == part.number) return Dim{-1, *rest.begin()};
  return {};
}

struct SameAsInput {
  const char* domain;
  const char* op_type;
  DType dtype;  // of the output; kUndefined: that of the input
};

constexpr SameAsInput kSameAsInput[] = {
    {"", "GroupNormalization", DType::kUndefined},
    {"", "MeanVarianceNormalization", DType::kUndefined},
    {"ai.onnx.ml", "Imputer", DType::kUndefined},
    {"ai.onnx.ml", "Scaler", DType::kFloat32},
    {"ai.onnx.ml", "Normalizer", DType::kFloat32},
};

}  // namespace

void RefineReshape(const ValueType& input, const onnx::TensorShapeProto& target,
                   ValueType* output) {
  if (!input.shape || !output->shape ||
      target.dim_size() != static_cast<int>(output->shape->size()))
    return;
  int inferred = -1;
  Product whole, part;
  for (const Dim& dim : *input.shape) whole.Multiply(dim);
  for (int i = 0; i < target.dim_size(); ++i) {
    if (target.dim(i).has_dim_value() && target.dim(i).dim_value() == -1) {
      if (inferred >= 0) return;
      inferred = i;
    } else {
      part.Multiply((*output->shape)[static_cast<size_t>(i)]);
    }
  }
  if (inferred < 0) return;
  Dim& dim = (*output->shape)[static_cast<size_t>(inferred)];
  if (!dim.known() && dim.symbol.empty()) dim = Quotient(whole, part);
}

void RefineUninferred(const Node& node, ValueType* output) {
  const Value* input = node.input(0);
  if (input == nullptr || !input->type().is_tensor() || (output->is_tensor() && output->shape))
    return;
  for (const SameAsInput& row : kSameAsInput) {
    if (!node.Is(row.op_type, row.domain)) continue;
    *output = input->type();
    if (row.dtype != DType::kUndefined) output->dtype = row.dtype;
  }
}

void RefineCarried(const Node& loop, int i, ValueType* output) {
  const Value* start = loop.input(2 + i);
  const std::vector<Graph*> bodies = loop.Subgraphs();
  if (output->shape || start == nullptr || bodies.empty()) return;
  if (bodies[0]->outputs().size() <= static_cast<size_t>(1 + i)) return;
  const ValueType &first = start->type(), &last = bodies[0]->outputs()[1 + i]->type();
  if (!first.is_tensor() || !last.is_tensor() || !first.shape || !last.shape) return;
  if (first.dtype != last.dtype || first.shape->size() != last.shape->size()) return;
  *output = first;
  for (size_t d = 0; d < first.shape->size(); ++d) {
    if (!((*first.shape)[d] == (*last.shape)[d])) (*output->shape)[d] = {};
  }
}

}  // namespace caesura
