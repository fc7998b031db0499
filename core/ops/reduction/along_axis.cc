// SPDX-License-Identifier: Apache-2.0
// Ops along one axis: CumSum, CumProd, ArgMax, ArgMin, TopK.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

constexpr int64_t kColumns = 256;

// A tensor seen as [outer, count, inner] around the axis.
struct AxisView {
  int64_t outer, count, inner;
  int64_t column_blocks() const { return (inner + kColumns - 1) / kColumns; }
  // Blocks of columns that are worked off one by one, and how many of them are worth a thread.
  int64_t items() const { return outer * column_blocks(); }
  int64_t grain() const {
    return std::max<int64_t>(
        1, kParallelGrain / std::max<int64_t>(1, count * std::min(inner, kColumns)));
  }
};

AxisView ViewAxis(const Shape& shape, int axis) {
  return {shape.Elements(0, axis), shape[axis], shape.Elements(axis + 1, shape.rank())};
}

// Calls fn(offset of the block's first element, columns) for the blocks of `view` on some thread.
template <typename Fn>
void ForColumnBlocks(const AxisView& view, int threads, Fn fn) {
  ParallelFor(threads, view.items(), view.grain(), [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const int64_t outer = item / view.column_blocks(),
                    column = item % view.column_blocks() * kColumns;
      fn(outer, column, std::min(kColumns, view.inner - column));
    }
  });
}

struct ScanMode {
  bool exclusive, reverse;
};

// Floats run in double (halves in float), integers wrap around.
template <typename T>
using ScanAccumulator =
    std::conditional_t<std::is_integral_v<T>, uint64_t,
                       std::conditional_t<std::is_same_v<T, float>, double, Accumulator<T>>>;

template <bool kProduct, typename T>
void Scan(const AxisView& view, ScanMode mode, const T* x, T* y, int threads) {
  using A = ScanAccumulator<T>;
  ForColumnBlocks(view, threads, [&](int64_t outer, int64_t column, int64_t columns) {
    A acc[kColumns];
    std::fill(acc, acc + columns, A(kProduct ? 1 : 0));
    for (int64_t i = 0; i < view.count; ++i) {
      const int64_t row = mode.reverse ? view.count - 1 - i : i;
      const int64_t offset = (outer * view.count + row) * view.inner + column;
      for (int64_t j = 0; j < columns; ++j) {
        const A value = static_cast<A>(x[offset + j]), before = acc[j];
        acc[j] = kProduct ? before * value : before + value;
        y[offset + j] = static_cast<T>(mode.exclusive ? before : acc[j]);
      }
    }
  });
}

// Scan for an axis without neighbours: one running value.
template <bool kProduct, typename T>
void ScanLines(const AxisView& view, ScanMode mode, const T* x, T* y, int threads) {
  using A = ScanAccumulator<T>;
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, view.count));
  ParallelFor(threads, view.outer, grain, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      A acc = kProduct ? 1 : 0;
      for (int64_t i = 0; i < view.count; ++i) {
        const int64_t place = line * view.count + (mode.reverse ? view.count - 1 - i : i);
        const A value = static_cast<A>(x[place]), before = acc;
        acc = kProduct ? before * value : before + value;
        y[place] = static_cast<T>(mode.exclusive ? before : acc);
      }
    }
  });
}

template <bool kProduct>
Status CreateScan(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const std::vector<int64_t> axes = info.HostInts(1);
  if (axes.size() != 1)
    return info.Invalid("axis: expected one number, got " + std::to_string(axes.size()));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, axes[0], shape.rank()));
  const AxisView view = ViewAxis(shape, axis);
  const ScanMode mode = {info.Attr<int64_t>("exclusive", 0) != 0,
                         info.Attr<int64_t>("reverse", 0) != 0};
  info.SetOutput(0, info.InputDType(0), shape);
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([view, mode, threads = info.threads()](KernelContext& context) {
      const T* x = context.Input<T>(0);
      T* y = context.Output<T>(0);
      if (view.inner == 1) {
        ScanLines<kProduct>(view, mode, x, y, threads);
      } else {
        Scan<kProduct>(view, mode, x, y, threads);
      }
    });
  });
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(info.InputDType(0)));
}

template <typename T>
bool IsNaN(const T& x) {
  return x != x;
}

// The first (or last) place of the extreme; a NaN beats every number, as in NumPy.
template <bool kMax, typename T>
void ArgExtreme(const AxisView& view, bool last_index, const T* x, int64_t* y, int threads) {
  using A = Accumulator<T>;
  ForColumnBlocks(view, threads, [&](int64_t outer, int64_t column, int64_t columns) {
    A best[kColumns];
    int64_t place[kColumns];
    const T* rows = x + outer * view.count * view.inner + column;
    for (int64_t j = 0; j < columns; ++j) {
      best[j] = rows[j];
      place[j] = 0;
    }
    for (int64_t i = 1; i < view.count; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const A value = rows[i * view.inner + j];
        const bool ahead = kMax ? value > best[j] : value < best[j];
        const bool tie = last_index && (value == best[j] || (IsNaN(value) && IsNaN(best[j])));
        if (ahead || tie || (IsNaN(value) && !IsNaN(best[j]))) {
          best[j] = value;
          place[j] = i;
        }
      }
    }
    std::copy(place, place + columns, y + outer * view.inner + column);
  });
}

template <bool kMax>
Status CreateArgExtreme(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), shape.rank()));
  const AxisView view = ViewAxis(shape, axis);
  if (view.count == 0 && view.outer * view.inner > 0)
    return info.Invalid("axis: there is no element to choose from");
  std::vector<int64_t> dims = shape.dims();
  if (info.Attr<int64_t>("keepdims", 1) != 0) {
    dims[axis] = 1;
  } else {
    dims.erase(dims.begin() + axis);
  }
  info.SetOutput(0, DType::kInt64, Shape(dims));
  const bool last_index = info.Attr<int64_t>("select_last_index", 0) != 0;
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([view, last_index, threads = info.threads()](KernelContext& context) {
      ArgExtreme<kMax>(view, last_index, context.Input<T>(0), context.Output<int64_t>(0), threads);
    });
  });
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(info.InputDType(0)));
}

// Which of equal elements are taken: the first (ONNX), or those that PyTorch takes, whose topk
// calls the same functions of the standard library.
enum class Ties { kFirst, kAsPyTorch };

struct TopKSpec {
  AxisView view;
  int64_t k;
  bool largest, sorted;
  Ties ties;
  int64_t parts;  // lines are split over so many threads, each with its own order buffer
};

// NaN counts as larger than every number (NumPy's sort, PyTorch's topk); equal values keep their
// order.
template <typename T>
bool Precedes(const T& a, const T& b, bool largest) {
  const T& high = largest ? a : b;
  const T& low = largest ? b : a;
  return high > low || (IsNaN(high) && !IsNaN(low));
}

template <typename T>
void TopKLine(const TopKSpec& at, const T* x, int64_t* order, T* values, int64_t* indices) {
  const int64_t step = at.view.inner;
  int64_t* const end = order + at.view.count;
  std::iota(order, end, int64_t{0});
  auto ahead = [&](int64_t i, int64_t j) { return Precedes(x[i * step], x[j * step], at.largest); };
  if (at.ties == Ties::kFirst) {
    std::partial_sort(order, order + at.k, end,
                      [&](int64_t i, int64_t j) { return ahead(i, j) || (i < j && !ahead(j, i)); });
  } else if (at.k * 64 <= at.view.count) {
    std::partial_sort(order, order + at.k, end, ahead);
  } else if (at.k > 0) {
    std::nth_element(order, order + at.k - 1, end, ahead);
    if (at.sorted) std::sort(order, order + at.k - 1, ahead);
  }
  for (int64_t i = 0; i < at.k; ++i) {
    if (values != nullptr) values[i * step] = x[order[i] * step];
    if (indices != nullptr) indices[i * step] = order[i];
  }
}

template <typename T>
void TopK(const TopKSpec& at, const T* x, int64_t* orders, T* values, int64_t* indices) {
  const int64_t lines = at.view.outer * at.view.inner;
  ParallelFor(static_cast<int>(at.parts), at.parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      for (int64_t line = lines * part / at.parts; line < lines * (part + 1) / at.parts; ++line) {
        const int64_t outer = line / at.view.inner, column = line % at.view.inner;
        const int64_t from = outer * at.view.count * at.view.inner + column,
                      to = outer * at.k * at.view.inner + column;
        TopKLine(at, x + from, orders + part * at.view.count,
                 values == nullptr ? nullptr : values + to,
                 indices == nullptr ? nullptr : indices + to);
      }
    }
  });
}

template <Ties ties>
Status CreateTopK(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", -1), shape.rank()));
  const std::vector<int64_t> k = info.HostInts(1);
  if (k.size() != 1 || k[0] < 0 || k[0] > shape[axis]) {
    return info.Invalid("K: expected one number from 0 to " + std::to_string(shape[axis]));
  }
  TopKSpec spec = {ViewAxis(shape, axis),
                   k[0],
                   info.Attr<int64_t>("largest", 1) != 0,
                   info.Attr<int64_t>("sorted", 1) != 0,
                   ties,
                   1};
  const int64_t lines = spec.view.outer * spec.view.inner;
  const int64_t worthwhile = lines * spec.view.count / kParallelGrain;
  spec.parts = std::max<int64_t>(1, std::min({int64_t{info.threads()}, lines, worthwhile}));
  Shape out = shape;
  out[axis] = k[0];
  info.SetOutput(0, info.InputDType(0), out);
  info.SetOutput(1, DType::kInt64, out);
  const size_t orders =
      lines == 0 ? 0 : info.BookScratch(spec.parts * spec.view.count * sizeof(int64_t));
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spec, orders](KernelContext& context) {
      TopK(spec, context.Input<T>(0), context.Scratch<int64_t>(orders), context.Output<T>(0),
           context.Output<int64_t>(1));
    });
  });
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(info.InputDType(0)));
}

}  // namespace

void RegisterAlongAxis(KernelRegistry& registry) {
  const std::vector<Alias> reuse = {MayReuse(0, 0)};
  registry.Add({.op_type = "CumSum",
                .types = kNumericTypes,
                .host_inputs = {1},
                .aliases = reuse,
                .create = CreateScan<false>});
  registry.Add({.op_type = "CumProd",
                .types = kNumericTypes,
                .host_inputs = {1},
                .aliases = reuse,
                .create = CreateScan<true>});
  registry.Add({.op_type = "ArgMax", .types = kNumericTypes, .create = CreateArgExtreme<true>});
  registry.Add({.op_type = "ArgMin", .types = kNumericTypes, .create = CreateArgExtreme<false>});
  registry.Add({.op_type = "TopK",
                .types = kNumericTypes,
                .host_inputs = {1},
                .create = CreateTopK<Ties::kFirst>});
  registry.Add({.op_type = "TopK",
                .domain = kCaesuraDomain,
                .types = kNumericTypes,
                .host_inputs = {1},
                .create = CreateTopK<Ties::kAsPyTorch>});
}

}  // namespace caesura
