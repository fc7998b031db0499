// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/constant_ints.h"

namespace caesura {

std::optional<std::vector<int64_t>> ConstantInts(const Value* value) {
  if (value == nullptr || value->graph()->IsGraphInput(value)) return std::nullopt;
  const Tensor* tensor = value->graph()->Initializer(value);
  if (tensor == nullptr || (tensor->dtype() != DType::kInt64 && tensor->dtype() != DType::kInt32))
    return std::nullopt;
  return tensor->ToVector<int64_t>();
}

std::optional<int64_t> ConstantInt(const Value* value) {
  const auto elements = ConstantInts(value);
  if (!elements || elements->size() != 1) return std::nullopt;
  return elements->front();
}

}  // namespace caesura
