// SPDX-License-Identifier: Apache-2.0
// Ops that take or place a part of a tensor: Slice, CenterCropPad, Trilu, ReverseSequence.
#include <algorithm>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/walks/strided_copy.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// The common middle of both shapes moves; the rest of the output, if any, is zero.
Status CreateCenterCropPad(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const DType dtype = info.InputDType(0);
  std::vector<int64_t> axes(shape.rank());
  std::iota(axes.begin(), axes.end(), 0);
  axes = info.Attr<std::vector<int64_t>>("axes", axes);
  ASSIGN_OR_RETURN(const std::vector<int> checked, CheckAxes(info, axes, shape.rank()));
  const std::vector<int64_t> target = info.HostInts(1);
  if (target.size() != checked.size()) {
    return info.Invalid("shape: expected " + std::to_string(checked.size()) + " values, got " +
                        std::to_string(target.size()));
  }
  std::vector<int64_t> dims = shape.dims();
  for (size_t i = 0; i < checked.size(); ++i) dims[checked[i]] = target[i];
  ASSIGN_OR_RETURN(const Shape out, CheckDims(info, dims, dtype));
  StridedBox box;
  box.src_strides = shape.Strides();
  box.dst_strides = out.Strides();
  for (int a = 0; a < shape.rank(); ++a) {
    box.extents.push_back(std::min(shape[a], out[a]));
    box.src_offset += std::max<int64_t>(0, (shape[a] - out[a]) / 2) * box.src_strides[a];
    box.dst_offset += std::max<int64_t>(0, (out[a] - shape[a]) / 2) * box.dst_strides[a];
  }
  const bool covers = Shape(box.extents) == out;
  ASSIGN_OR_RETURN(StridedCopy copy, StridedCopy::Make(info, dtype, std::move(box)));
  info.SetOutput(0, dtype, out);
  info.SetCompute([copy, covers, dtype, count = out.elements()](KernelContext& context) {
    void* y = context.Output<void>(0);
    if (!covers) FillElements(dtype, nullptr, y, count);
    copy.Run(context.Input<void>(0), y);
  });
  return {};
}

// Keeps columns [first, last) of each row of a stack of matrices and zeroes the others.
template <typename T>
void KeepTriangle(const T* x, T* y, const Shape& shape, int64_t k, bool upper) {
  const int64_t columns = shape[shape.rank() - 1], rows = shape[shape.rank() - 2];
  const int64_t total = columns == 0 ? 0 : shape.Elements(0, shape.rank() - 1);
  for (int64_t i = 0; i < total; ++i, x += columns, y += columns) {
    // Clamped before the addition: k may be any int64.
    const int64_t diagonal = i % rows + std::clamp(k, -rows - 1, columns + 1);
    const int64_t first = upper ? std::clamp<int64_t>(diagonal, 0, columns) : 0;
    const int64_t last = upper ? columns : std::clamp<int64_t>(diagonal + 1, 0, columns);
    std::fill_n(y, first, T());
    if (x != y) std::copy(x + first, x + last, y + first);
    std::fill_n(y + last, columns - last, T());
  }
}

Status CreateTrilu(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  if (shape.rank() < 2)
    return info.Invalid("input: expected rank 2 or more, got " + shape.ToString());
  if (info.HasInput(1)) RETURN_IF_ERROR(CheckDType(info, 1, {DType::kInt64}));
  const bool upper = info.Attr<int64_t>("upper", 1) != 0;
  info.SetOutput(0, info.InputDType(0), shape);
  DispatchStorage(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([shape, upper, has_k = info.HasInput(1)](KernelContext& context) {
      const int64_t* k = has_k ? context.Input<int64_t>(1) : nullptr;
      KeepTriangle(context.Input<T>(0), context.Output<T>(0), shape, k == nullptr ? 0 : *k, upper);
    });
  });
  return {};
}

// x as [time, batch, inner] with the given strides; the first lens[b] steps of sequence b change
// their order.
struct SequenceLayout {
  int64_t time, batch, inner;
  int64_t time_stride, batch_stride;
};

template <typename T>
Status ReverseSequences(const SequenceLayout& at, const T* x, const int64_t* lens, T* y,
                        const std::string& label) {
  for (int64_t b = 0; b < at.batch; ++b) {
    if (lens[b] < 0 || lens[b] > at.time) {
      return InvalidArgument(label + " sequence_lens: expected 0 to " + std::to_string(at.time) +
                             ", got " + std::to_string(lens[b]));
    }
    for (int64_t t = 0; t < at.time && at.inner > 0; ++t) {
      const int64_t from = t < lens[b] ? lens[b] - 1 - t : t;
      const T* source = x + from * at.time_stride + b * at.batch_stride;
      std::copy(source, source + at.inner, y + t * at.time_stride + b * at.batch_stride);
    }
  }
  return {};
}

Status CreateReverseSequence(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const int64_t time = info.Attr<int64_t>("time_axis", 0),
                batch = info.Attr<int64_t>("batch_axis", 1);
  if (shape.rank() < 2 || (time != 0 && time != 1) || batch != 1 - time) {
    return info.Invalid(
        "expected rank 2 or more, and time_axis and batch_axis 0 and 1 in some order; got " +
        shape.ToString() + ", " + std::to_string(time) + " and " + std::to_string(batch));
  }
  RETURN_IF_ERROR(CheckDType(info, 1, {DType::kInt64}));
  if (info.InputShape(1) != Shape{shape[static_cast<int>(batch)]}) {
    return info.Invalid("sequence_lens: expected one a sequence, got shape " +
                        info.InputShape(1).ToString());
  }
  const std::vector<int64_t> strides = shape.Strides();
  const SequenceLayout layout = {shape[static_cast<int>(time)], shape[static_cast<int>(batch)],
                                 shape.Elements(2, shape.rank()), strides[time], strides[batch]};
  info.SetOutput(0, info.InputDType(0), shape);
  DispatchStorage(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([layout, label = info.node().Label()](KernelContext& context) {
      return ReverseSequences(layout, context.Input<T>(0), context.Input<int64_t>(1),
                              context.Output<T>(0), label);
    });
  });
  return {};
}

}  // namespace

void RegisterSlice(KernelRegistry& registry) {
  registry.Add({.op_type = "Slice",
                .host_inputs = {-2},
                .create = CreateMoves<SliceMoves>});  // all but the data
  registry.Add({.op_type = "CenterCropPad", .host_inputs = {1}, .create = CreateCenterCropPad});
  registry.Add({.op_type = "Trilu", .aliases = {MayReuse(0, 0)}, .create = CreateTrilu});
  registry.Add({.op_type = "ReverseSequence", .create = CreateReverseSequence});
}

}  // namespace caesura
