// SPDX-License-Identifier: Apache-2.0
// GatherGrad, SliceGrad, PadGrad (core/ops). Sums of float16 and bfloat16 run in float.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/walks/tap_chain.h"
#include "core/kernels/walks/element_walk.h"
#include "core/ops/movement/pad_maps.h"
#include "core/ops/movement/pad_spec.h"
#include "core/kernels/walks/strided_copy.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/slice_spec.h"

namespace caesura {
namespace {

// The shape of X, from host input `input`.
Result<Shape> TargetShape(const KernelInfo& info, int input) {
  return CheckDims(info, info.HostInts(input), info.InputDType(0));
}

Status CheckGradientShape(const KernelInfo& info, const Shape& expected) {
  if (info.InputShape(0) == expected) return {};
  return info.Invalid("dY: expected shape " + expected.ToString() + ", got " +
                      info.InputShape(0).ToString());
}

constexpr int64_t kColumnBlock = 128;

struct GatherGradSpec {
  int64_t outer, dim, inner, count;
  int threads;
};

// sums[o, indices[i], :] += dy[o, i, :] from `base`, which may be `sums`, or from zero where it is
// null. Split over outer and blocks of columns, so that slices that meet are added in order,
// whatever the number of threads.
template <typename T, typename I>
void AddSlices(const GatherGradSpec& at, const T* dy, const I* indices, const T* base,
               Accumulator<T>* sums) {
  using A = Accumulator<T>;
  if (static_cast<const void*>(base) != sums) {
    ParallelFor(at.threads, at.outer * at.dim * at.inner, 8 * kParallelGrain,
                [&](int64_t first, int64_t last) {
                  if (base == nullptr) std::fill(sums + first, sums + last, A(0));
                  else std::copy(base + first, base + last, sums + first);
                });
  }
  if (at.count == 0) return;
  const int64_t blocks = (at.inner + kColumnBlock - 1) / kColumnBlock;
  const int64_t grain = std::max<int64_t>(
      1, kParallelGrain / std::max<int64_t>(1, at.count * std::min(at.inner, kColumnBlock)));
  ParallelFor(at.threads, at.outer * blocks, grain, [&](int64_t first, int64_t last) {
    if (at.inner == 1 && at.count == 1) {
      A* to = sums + Wrap(indices[0], at.dim);
      for (int64_t o = first; o < last; ++o) to[o * at.dim] += static_cast<A>(dy[o]);
      return;
    }
    for (int64_t item = first; item < last; ++item) {
      const int64_t o = item / blocks, column = item % blocks * kColumnBlock;
      const int64_t columns = std::min(kColumnBlock, at.inner - column);
      A* block = sums + o * at.dim * at.inner + column;
      const T* from = dy + o * at.count * at.inner + column;
      for (int64_t i = 0; i < at.count; ++i, from += at.inner) {
        A* to = block + Wrap(indices[i], at.dim) * at.inner;
        for (int64_t j = 0; j < columns; ++j) to[j] += static_cast<A>(from[j]);
      }
    }
  });
}

template <typename T, typename I>
void SetGatherGrad(KernelInfo& info, const GatherGradSpec& spec) {
  using A = Accumulator<T>;
  constexpr bool kDirect = std::is_same_v<T, A>;
  const int64_t total = spec.outer * spec.dim * spec.inner;
  const size_t scratch = kDirect ? 0 : info.BookScratch(total * sizeof(A));
  const bool has_base = info.HasInput(3);
  info.SetCompute([spec, total, scratch, has_base,
                   label = info.node().Label()](KernelContext& context) -> Status {
    const I* indices = context.Input<I>(1);
    RETURN_IF_ERROR(CheckIndices(indices, spec.count, spec.dim, label));
    const T* base = has_base ? context.Input<T>(3) : nullptr;
    T* y = context.Output<T>(0);
    if constexpr (kDirect) {
      AddSlices(spec, context.Input<T>(0), indices, base, y);
    } else {
      A* sums = context.Scratch<A>(scratch);
      AddSlices(spec, context.Input<T>(0), indices, base, sums);
      for (int64_t i = 0; i < total; ++i) y[i] = static_cast<T>(sums[i]);
    }
    return {};
  });
}

Status CreateGatherGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Shape shape, TargetShape(info, 2));
  const Shape& indices = info.InputShape(1);
  RETURN_IF_ERROR(CheckDType(info, 1, kIndexTypes));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), shape.rank()));
  std::vector<int64_t> expected(shape.begin(), shape.begin() + axis);
  expected.insert(expected.end(), indices.begin(), indices.end());
  expected.insert(expected.end(), shape.begin() + axis + 1, shape.end());
  RETURN_IF_ERROR(CheckGradientShape(info, Shape(expected)));
  if (info.HasInput(3) &&
      (info.InputShape(3) != shape || info.InputDType(3) != info.InputDType(0))) {
    return info.Invalid("base: expected " + std::string(DTypeName(info.InputDType(0))) +
                        shape.ToString() + ", got " + DTypeName(info.InputDType(3)) +
                        info.InputShape(3).ToString());
  }
  const GatherGradSpec spec = {shape.Elements(0, axis), shape[axis],
                               shape.Elements(axis + 1, shape.rank()), indices.elements(),
                               info.threads()};
  info.SetOutput(0, info.InputDType(0), shape);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    DispatchDType<int32_t, int64_t>(info.InputDType(1), [&](auto index_tag) {
      SetGatherGrad<typename decltype(tag)::type, typename decltype(index_tag)::type>(info, spec);
    });
  });
  return {};
}

// dX is zero but for the box, which dY fills.
Status SetPlacement(KernelInfo& info, const Shape& shape, StridedBox box) {
  const DType dtype = info.InputDType(0);
  const int64_t count = shape.elements();
  const bool covers = Shape(box.extents).elements() == count;
  ASSIGN_OR_RETURN(StridedCopy copy, StridedCopy::Make(info, dtype, std::move(box)));
  info.SetOutput(0, dtype, shape);
  info.SetCompute([copy, covers, dtype, count](KernelContext& context) {
    void* dx = context.Output<void>(0);
    if (!covers) FillElements(dtype, nullptr, dx, count);
    copy.Run(context.Input<void>(0), dx);
  });
  return {};
}

Status CreateSliceGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Shape shape, TargetShape(info, 1));
  ASSIGN_OR_RETURN(const SliceSpec spec, ResolveSlice(info, shape, 2));
  RETURN_IF_ERROR(CheckGradientShape(info, spec.shape));
  StridedBox box;
  box.extents = spec.shape.dims();
  box.src_strides = spec.shape.Strides();
  box.dst_strides = spec.strides;
  box.dst_offset = spec.offset;
  return SetPlacement(info, shape, std::move(box));
}

// Every element of dY is added to the element of X that it copied.
Status SetPadCopiesGrad(KernelInfo& info, const Shape& shape, std::vector<AxisMap> maps) {
  std::vector<AxisTaps> axes(shape.rank());
  for (int a = 0; a < shape.rank(); ++a) {
    AxisTaps& taps = axes[a];
    taps.in = shape[a];
    taps.out = static_cast<int64_t>(maps[a].size());
    bool identity = taps.in == taps.out;
    for (int64_t i = 0; identity && i < taps.out; ++i) identity = maps[a][i] == i;
    if (identity) continue;
    taps.taps = 1;
    taps.index = std::move(maps[a]);
    taps.weight.assign(taps.out, 1);
  }
  info.SetOutput(0, info.InputDType(0), shape);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TapChain<T, Accumulator<T>> chain(info, shape, axes, true, 0);
    info.SetCompute([chain](KernelContext& context) { chain.Run(context); });
  });
  return {};
}

Status CreatePadGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Shape shape, TargetShape(info, 1));
  ASSIGN_OR_RETURN(const PadAmounts amounts, ReadPadAmounts(info, shape, 2, 3));
  RETURN_IF_ERROR(CheckGradientShape(info, amounts.padded));
  // Constant padding is a placement the other way round: the part of dY that came from X.
  if (info.Attr<std::string>("mode", "constant") == "constant")
    return SetPlacement(info, shape, Reversed(PadBox(shape, amounts)));
  ASSIGN_OR_RETURN(std::vector<AxisMap> maps, ResolvePad(info, shape, 2, 3));
  return SetPadCopiesGrad(info, shape, std::move(maps));
}

}  // namespace

void RegisterMovementGrad(KernelRegistry& registry) {
  const char* domain = kCaesuraDomain;
  registry.Add({.op_type = "GatherGrad",
                .domain = domain,
                .types = kFloatTypes,
                .host_inputs = {2},
                .aliases = {MayReuse(3, 0)},
                .create = CreateGatherGrad});
  registry.Add({.op_type = "SliceGrad",
                .domain = domain,
                .types = kFloatTypes,
                .host_inputs = {-2},
                .create = CreateSliceGrad});
  registry.Add({.op_type = "PadGrad",
                .domain = domain,
                .types = kFloatTypes,
                .host_inputs = {-2},
                .create = CreatePadGrad});
}

}  // namespace caesura
