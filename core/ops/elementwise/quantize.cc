// SPDX-License-Identifier: Apache-2.0
// QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear. Scales and zero points (one for all,
// one an index of the axis, or one a block) are brought to float in scratch first; then the tensor
// is walked in rows along which a scale either stands still or moves with the elements, a tile of
// floats at a time.
#include <cmath>
#include <limits>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/range_quantizer.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/small_types.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

constexpr int64_t kQuantizeTile = 256;

// Which scale belongs to which element: x seen as [outer, axis, inner], scales as [outer or 1,
// groups, inner or 1].
struct Granularity {
  int64_t outer = 1, axis = 1, inner = 1;
  int64_t groups = 1;  // scales along the axis
  int64_t block = 1;   // elements of the axis that share a scale
  bool blocked = false;
  int64_t scales = 1;  // in all
};

Result<Granularity> PerBlock(const KernelInfo& info, Granularity g, int axis, int64_t block) {
  const Shape& x = info.InputShape(0);
  Shape expected = x;
  expected[axis] = block > 0 ? (x[axis] + block - 1) / block : 0;
  if (block <= 0 || info.InputShape(1) != expected) {
    return info.Invalid("blocked scale: expected shape " + expected.ToString() +
                        " with block_size " + std::to_string(block) + ", got " +
                        info.InputShape(1).ToString());
  }
  g.blocked = true;
  g.block = block;
  g.groups = expected[axis];
  return g;
}

Result<Granularity> FindGranularity(const KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  const Shape& scale = info.InputShape(1);
  Granularity g;
  g.scales = scale.elements();
  g.inner = x.elements();
  const int64_t block = info.Attr<int64_t>("block_size", 0);
  if (scale.rank() <= 1 && scale.elements() == 1) return g;
  Result<int> axis = NormalizeAxis(info.Attr<int64_t>("axis", 1), x.rank());
  if (!axis.ok()) {
    if (x.rank() != 1) return info.Invalid(axis.status().message());
    axis = 0;
  }
  g.outer = x.Elements(0, *axis);
  g.axis = x[*axis];
  g.inner = x.Elements(*axis + 1, x.rank());
  if (block != 0) return PerBlock(info, g, *axis, block);
  if (scale.rank() != 1 || scale[0] != g.axis) {
    return info.Invalid("scale: expected a scalar or [" + std::to_string(g.axis) + "], got " +
                        scale.ToString());
  }
  g.groups = g.axis;
  return g;
}

// Calls fn(first element, count, first scale, whether the scale moves along) for each row, tile by
// tile.
template <typename Fn>
void ForEachTile(const Granularity& g, int threads, Fn&& fn) {
  // A row holds the elements of one group where they lie together, otherwise the inner elements of
  // one index.
  const bool whole = g.inner > 1 || g.groups == 1;
  const bool by_axis = !whole && !g.blocked;  // [outer] rows, in which scale follows element
  const int64_t per_outer = by_axis ? 1 : whole ? g.axis : g.groups;
  const int64_t length = by_axis ? g.axis : whole ? g.inner : g.block;
  const bool moves = by_axis || (g.blocked && g.inner > 1);
  const int64_t rows = length == 0 ? 0 : g.outer * per_outer;
  const int64_t tiles = std::max<int64_t>(1, (length + kQuantizeTile - 1) / kQuantizeTile);
  ParallelFor(
      threads, rows * tiles, kParallelGrain / kQuantizeTile, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
          const int64_t row = t / tiles, from = t % tiles * kQuantizeTile;
          const int64_t o = row / per_outer, i = row % per_outer;
          const int64_t row_length =
              whole || by_axis ? length : std::min(length, g.axis - i * g.block);
          const int64_t count = std::min(kQuantizeTile, row_length - from);
          if (count <= 0) continue;
          const int64_t start = (o * g.axis + (whole || by_axis ? i : i * g.block)) * g.inner;
          const int64_t group = whole ? i / g.block : i;
          const int64_t scale = g.blocked                  ? (o * g.groups + group) * g.inner
                                : g.groups == 1 || by_axis ? 0
                                                           : group;
          fn(start + from, count, scale + (moves ? from : 0), moves);
        }
      });
}

// Scales or zero points of any type as floats.
void LoadAsFloat(DType dtype, const void* source, float* out, int64_t count) {
  auto load = [&](auto tag) {
    const auto* x = static_cast<const typename decltype(tag)::type*>(source);
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(x[i]);
  };
  if (DispatchNumeric(dtype, load)) return;
  const std::array<float, 256> values = DecodeTable(dtype);
  for (int64_t i = 0; i < count; ++i) out[i] = values[static_cast<const uint8_t*>(source)[i]];
}

// Scale and zero point of a node, as its compute function finds them.
struct Parameters {
  DType scale_dtype;
  DType zero_dtype = DType::kUndefined;  // kUndefined: absent
  int64_t count;
  size_t scale_scratch, zero_scratch;

  const float* Scales(KernelContext& context) const {
    float* out = context.Scratch<float>(scale_scratch);
    LoadAsFloat(scale_dtype, context.Input<void>(1), out, count);
    return out;
  }
  const float* Zeros(KernelContext& context) const {
    float* out = context.Scratch<float>(zero_scratch);
    std::fill_n(out, count, 0.0f);
    if (zero_dtype != DType::kUndefined)
      LoadAsFloat(zero_dtype, context.Input<void>(2), out, count);
    return out;
  }
};

Result<Parameters> FindParameters(KernelInfo& info, const Granularity& g) {
  Parameters p;
  p.scale_dtype = info.InputDType(1);
  p.count = g.scales;
  if (info.HasInput(2)) {
    if (info.InputShape(2) != info.InputShape(1) && info.InputShape(2).elements() != g.scales) {
      return info.Invalid("zero point: expected the scale's shape " +
                          info.InputShape(1).ToString() + ", got " + info.InputShape(2).ToString());
    }
    p.zero_dtype = info.InputDType(2);
  }
  p.scale_scratch = info.BookScratch(static_cast<size_t>(g.scales) * sizeof(float));
  p.zero_scratch = info.BookScratch(static_cast<size_t>(g.scales) * sizeof(float));
  return p;
}

// --- QuantizeLinear ---

// The type in which x / scale is rounded: the attribute `precision`, otherwise the type of the
// scale, where that is a 16-bit float; otherwise float.
template <typename Half>
void RoundTile(float* tile, int64_t count) {
  for (int64_t i = 0; i < count; ++i) tile[i] = Half(tile[i]);
}

template <typename T>
void DivideTile(const T* x, const float* scale, bool moves, float* tile, int64_t count) {
  using Real = std::conditional_t<std::is_same_v<T, int32_t>, double, float>;
  for (int64_t i = 0; i < count; ++i) {
    tile[i] = static_cast<float>(static_cast<Real>(x[i]) / static_cast<Real>(scale[moves ? i : 0]));
  }
}

// Round half to even, add the zero point, cut to the range. NaN becomes the lowest value.
template <typename T>
void StoreIntegers(const float* tile, const float* zero, bool moves, IntegerRange range, T* y,
                   int64_t count) {
  const float lowest = static_cast<float>(range.lowest),
              highest = static_cast<float>(range.highest);
  const int64_t step = moves ? 1 : 0;
  OnBestIsa([=] {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float q = std::nearbyint(tile[i]) + zero[i * step];
      const float raised = q > lowest ? q : lowest;
      y[i] = static_cast<T>(static_cast<int32_t>(raised < highest ? raised : highest));
    }
  });
}

// Writes a tile in the quantized type.
struct QuantizedStore {
  DType dtype;
  IntegerRange range;
  SmallFloatEncoder encoder;

  void operator()(const float* tile, const float* zero, bool moves, void* y, int64_t at,
                  int64_t count) const {
    switch (dtype) {
      case DType::kUInt16:
        return StoreIntegers(tile, zero, moves, range, static_cast<uint16_t*>(y) + at, count);
      case DType::kInt16:
        return StoreIntegers(tile, zero, moves, range, static_cast<int16_t*>(y) + at, count);
      case DType::kUInt8:
      case DType::kUInt4:
      case DType::kUInt2:
        return StoreIntegers(tile, zero, moves, range, static_cast<uint8_t*>(y) + at, count);
      case DType::kInt8:
      case DType::kInt4:
      case DType::kInt2:
        return StoreIntegers(tile, zero, moves, range, static_cast<int8_t*>(y) + at, count);
      default: break;
    }
    uint8_t* out = static_cast<uint8_t*>(y) + at;
    for (int64_t i = 0; i < count; ++i) out[i] = encoder(tile[i] + zero[moves ? i : 0]);
  }
};

constexpr DTypeSet kQuantizedTypes =
    kFloat8Types | kSubByteIntegers |
    DTypeSet{DType::kFloat4E2M1, DType::kUInt8, DType::kInt8, DType::kUInt16, DType::kInt16};

Result<DType> QuantizedType(const KernelInfo& info) {
  const DType asked = static_cast<DType>(info.Attr<int64_t>("output_dtype", 0));
  DType dtype = asked == DType::kUndefined ? DType::kUInt8 : asked;
  if (info.HasInput(2)) {
    if (asked != DType::kUndefined && asked != info.InputDType(2)) {
      return info.Invalid("output_dtype differs from the type of the zero point");
    }
    dtype = info.InputDType(2);
  }
  if (!kQuantizedTypes.Contains(dtype)) return info.Refuse("does not quantize to this output type");
  return dtype;
}

template <typename T>
void SetQuantizeCompute(KernelInfo& info, const Granularity& g, const Parameters& p,
                        const QuantizedStore& store) {
  DType precision = static_cast<DType>(info.Attr<int64_t>("precision", 0));
  if (precision == DType::kUndefined) precision = info.InputDType(1);
  info.SetOutput(0, store.dtype, info.InputShape(0));
  info.SetCompute([=, threads = info.threads()](KernelContext& context) {
    const T* x = context.Input<T>(0);
    void* y = context.Output<void>(0);
    const float* scales = p.Scales(context);
    const float* zeros = p.Zeros(context);
    ForEachTile(g, threads, [&](int64_t at, int64_t count, int64_t scale, bool moves) {
      float tile[kQuantizeTile];
      DivideTile(x + at, scales + scale, moves, tile, count);
      if (precision == DType::kFloat16) RoundTile<Float16>(tile, count);
      if (precision == DType::kBFloat16) RoundTile<BFloat16>(tile, count);
      store(tile, zeros + scale, moves, y, at, count);
    });
  });
}

Status CreateQuantize(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Granularity g, FindGranularity(info));
  ASSIGN_OR_RETURN(const DType dtype, QuantizedType(info));
  ASSIGN_OR_RETURN(const Parameters p, FindParameters(info, g));
  const bool saturate = info.Attr<int64_t>("saturate", 1) != 0;
  const QuantizedStore store{dtype, RangeOf(dtype), {dtype, saturate}};
  auto set = [&](auto tag) { SetQuantizeCompute<typename decltype(tag)::type>(info, g, p, store); };
  if (DispatchFloat(info.InputDType(0), set) || DispatchDType<int32_t>(info.InputDType(0), set))
    return {};
  return info.Refuse(std::string("does not quantize ") + DTypeName(info.InputDType(0)));
}

// --- DequantizeLinear ---

template <typename X, typename Y, typename Read>
void SetDequantizeCompute(KernelInfo& info, const Granularity& g, const Parameters& p, Read read) {
  info.SetOutput(0, kDTypeOf<Y>, info.InputShape(0));
  info.SetCompute([=, threads = info.threads()](KernelContext& context) {
    const X* x = context.Input<X>(0);
    Y* y = context.Output<Y>(0);
    const float* scales = p.Scales(context);
    const float* zeros = p.Zeros(context);
    ForEachTile(g, threads, [&](int64_t at, int64_t count, int64_t scale, bool moves) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t s = scale + (moves ? i : 0);
        y[at + i] = static_cast<Y>((read(x[at + i]) - zeros[s]) * scales[s]);
      }
    });
  });
}

template <typename Y>
void SetDequantizeTo(KernelInfo& info, const Granularity& g, const Parameters& p) {
  auto set = [&](auto tag) {
    using X = typename decltype(tag)::type;
    SetDequantizeCompute<X, Y>(info, g, p, [](X x) { return static_cast<float>(x); });
  };
  if (DispatchDType<int8_t, uint8_t, int16_t, uint16_t, int32_t>(info.InputDType(0), set)) return;
  auto table = std::make_shared<const std::array<float, 256>>(DecodeTable(info.InputDType(0)));
  SetDequantizeCompute<uint8_t, Y>(info, g, p, [table](uint8_t x) { return (*table)[x]; });
}

Status CreateDequantize(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Granularity g, FindGranularity(info));
  ASSIGN_OR_RETURN(const Parameters p, FindParameters(info, g));
  if (info.HasInput(2) && info.InputDType(2) != info.InputDType(0)) {
    return info.Invalid(std::string("zero point: expected ") + DTypeName(info.InputDType(0)) +
                        ", got " + DTypeName(info.InputDType(2)));
  }
  DType to = static_cast<DType>(info.Attr<int64_t>("output_dtype", 0));
  if (to == DType::kUndefined) to = info.InputDType(1);
  auto set = [&](auto tag) { SetDequantizeTo<typename decltype(tag)::type>(info, g, p); };
  if (DispatchFloat(to, set)) return {};
  return info.Refuse("does not dequantize to this output type");
}

// --- DynamicQuantizeLinear ---

void QuantizeByRange(const float* x, int64_t count, uint8_t* y, float* y_scale, uint8_t* y_zero) {
  const RangeQuantizer quantizer = RangeQuantizer::Of(x, count);
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<uint8_t>(quantizer(x[i]));
  if (y_scale != nullptr) *y_scale = quantizer.scale;
  if (y_zero != nullptr) *y_zero = static_cast<uint8_t>(quantizer.zero);
}

Status CreateDynamicQuantize(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, DType::kUInt8, info.InputShape(0));
  info.SetOutput(1, DType::kFloat32, Shape{});
  info.SetOutput(2, DType::kUInt8, Shape{});
  info.SetCompute([count](KernelContext& context) {
    QuantizeByRange(context.Input<float>(0), count, context.Output<uint8_t>(0),
                    context.Output<float>(1), context.Output<uint8_t>(2));
  });
  return {};
}

constexpr DTypeSet kDequantizedTypes = kQuantizedTypes | DTypeSet{DType::kInt32};

}  // namespace

void RegisterQuantize(KernelRegistry& registry) {
  registry.Add({.op_type = "QuantizeLinear",
                .types = kFloatTypes | DTypeSet{DType::kInt32},
                .create = CreateQuantize});
  registry.Add(
      {.op_type = "DequantizeLinear", .types = kDequantizedTypes, .create = CreateDequantize});
  registry.Add({.op_type = "DynamicQuantizeLinear",
                .types = {DType::kFloat32},
                .create = CreateDynamicQuantize});
}

}  // namespace caesura
