// SPDX-License-Identifier: Apache-2.0
#include "core/ops/movement/shape_of.h"

#include <algorithm>

#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

Status CreateShape(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const int64_t rank = shape.rank();
  auto bound = [&](const char* name, int64_t fallback) {
    const int64_t value = info.Attr<int64_t>(name, fallback);
    return std::clamp<int64_t>(value < 0 ? value + rank : value, 0, rank);
  };
  const int64_t start = bound("start", 0), end = std::max(start, bound("end", rank));
  std::vector<int64_t> dims(shape.begin() + start, shape.begin() + end);
  info.SetOutput(0, DType::kInt64, Shape{static_cast<int64_t>(dims.size())});
  info.SetCompute([dims = std::move(dims)](KernelContext& context) {
    std::copy(dims.begin(), dims.end(), context.Output<int64_t>(0));
  });
  return {};
}

Status CreateSize(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, DType::kInt64, Shape{});
  info.SetCompute([count](KernelContext& context) { *context.Output<int64_t>(0) = count; });
  return {};
}

}  // namespace

void RegisterShapes(KernelRegistry& registry) {
  auto add = [&](const char* op, KernelFactory create) {
    registry.Add({.op_type = op,
                  .host_outputs = {0},
                  .unread_inputs = {0},
                  .strided_inputs = {0},
                  .create = create});
  };
  add("Shape", CreateShape);
  add("Size", CreateSize);
}

}  // namespace caesura
