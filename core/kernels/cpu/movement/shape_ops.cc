// SPDX-License-Identifier: Apache-2.0
// Ops on shapes: Shape and Size; and the views Reshape, Flatten, Squeeze, Unsqueeze.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/movement/kernel_list.h"
#include "core/kernels/cpu/movement/strided_copy.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/factory_checks.h"

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

// The output is the input under another shape of as many elements.
Status ViewAs(KernelInfo& info, std::vector<int64_t> dims) {
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements();
  ASSIGN_OR_RETURN(Shape out, CheckDims(info, std::move(dims), dtype));
  if (out.elements() != count) {
    return info.Invalid("cannot make " + out.ToString() + " of " + info.InputShape(0).ToString());
  }
  const Shape& shape = info.InputShape(0);
  const Layout& layout = info.input(0).layout;
  info.SetOutput(0, dtype, std::move(out));
  info.SetReshapedView();
  if (!layout.dense()) {
    ASSIGN_OR_RETURN(StridedCopy copy, StridedCopy::Make(info, dtype,
                                                         {shape.dims(), StridesOf(shape, layout),
                                                          shape.Strides(), layout.offset, 0}));
    info.SetCompute([copy](KernelContext& context) {
      copy.Run(context.Input<void>(0), context.Output<void>(0));
    });
    return {};
  }
  info.SetCompute([dtype, count, threads = info.threads()](KernelContext& context) {
    const void* from = context.Input<void>(0);
    void* to = context.Output<void>(0);
    if (from != to) ParallelCopy(dtype, from, to, count, threads);
  });
  return {};
}

Status CreateReshape(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  std::vector<int64_t> dims = info.HostInts(1);
  const bool keep_zero = info.Attr<int64_t>("allowzero", 0) != 0;
  // A dim of -1 takes what is left. Dims that a 0 copies stand on both sides and cancel, so that
  // empty tensors work.
  int64_t unknown = -1, known = 1, left = 1;
  std::vector<bool> copied(std::max<size_t>(dims.size(), shape.rank()), false);
  for (size_t i = 0; i < dims.size(); ++i) {
    copied[i] = dims[i] == 0 && !keep_zero;
    const bool bad = dims[i] < 0 ? dims[i] != -1 || unknown >= 0
                                 : copied[i] && static_cast<int>(i) >= shape.rank();
    if (bad || (dims[i] > 0 && __builtin_mul_overflow(known, dims[i], &known))) {
      return info.Invalid("shape: " + Shape(dims).ToString() + " does not fit " + shape.ToString());
    }
    if (dims[i] == 0 && keep_zero) known = 0;
    if (dims[i] == -1) unknown = static_cast<int64_t>(i);
    if (copied[i]) dims[i] = shape[static_cast<int>(i)];
  }
  for (int a = 0; a < shape.rank(); ++a) left *= copied[a] ? 1 : shape[a];
  if (unknown >= 0) {
    if (known == 0 || left % known != 0) {
      return info.Invalid("shape: " + Shape(dims).ToString() + " leaves no dim for -1, given " +
                          shape.ToString());
    }
    dims[unknown] = left / known;
  }
  return ViewAs(info, std::move(dims));
}

Status CreateFlatten(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  int64_t axis = info.Attr<int64_t>("axis", 1);
  if (axis < 0) axis += shape.rank();
  if (axis < 0 || axis > shape.rank())
    return info.Invalid("axis: out of range for " + shape.ToString());
  const int split = static_cast<int>(axis);
  return ViewAs(info, {shape.Elements(0, split), shape.Elements(split, shape.rank())});
}

Status CreateSqueeze(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  std::vector<bool> drops(shape.rank(), false);
  if (info.HasInput(1)) {
    ASSIGN_OR_RETURN(const std::vector<int> axes, CheckAxes(info, info.HostInts(1), shape.rank()));
    for (int axis : axes) {
      if (shape[axis] != 1) {
        return info.Invalid("axes: axis " + std::to_string(axis) + " of " + shape.ToString() +
                            " is not 1");
      }
      drops[axis] = true;
    }
  } else {
    for (int a = 0; a < shape.rank(); ++a) drops[a] = shape[a] == 1;
  }
  std::vector<int64_t> dims;
  for (int a = 0; a < shape.rank(); ++a) {
    if (!drops[a]) dims.push_back(shape[a]);
  }
  return ViewAs(info, std::move(dims));
}

Status CreateUnsqueeze(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const std::vector<int64_t> listed = info.HostInts(1);
  const int rank = shape.rank() + static_cast<int>(listed.size());
  ASSIGN_OR_RETURN(const std::vector<int> axes, CheckAxes(info, listed, rank));
  std::vector<int64_t> dims(rank, -1);
  for (int axis : axes) dims[axis] = 1;
  auto next = shape.begin();
  for (int64_t& dim : dims) {
    if (dim < 0) dim = *next++;
  }
  return ViewAs(info, std::move(dims));
}

}  // namespace

void RegisterShapeOps(KernelRegistry& registry) {
  registry.Add({.op_type = "Shape",
                .host_outputs = {0},
                .unread_inputs = {0},
                .strided_inputs = {0},
                .create = CreateShape});
  registry.Add({.op_type = "Size",
                .host_outputs = {0},
                .unread_inputs = {0},
                .strided_inputs = {0},
                .create = CreateSize});
  registry.Add({.op_type = "Reshape",
                .host_inputs = {1},
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateReshape});
  registry.Add({.op_type = "Flatten",
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateFlatten});
  registry.Add({.op_type = "Squeeze",
                .host_inputs = {1},
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateSqueeze});
  registry.Add({.op_type = "Unsqueeze",
                .host_inputs = {1},
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateUnsqueeze});
}

}  // namespace caesura
