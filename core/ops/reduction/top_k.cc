// SPDX-License-Identifier: Apache-2.0
// TopK, and the order of PyTorch's topk and sort.
#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/reduction/axis_view.h"

namespace caesura {
namespace {

// Which of equal elements are taken: the first (ONNX), or those that PyTorch's topk or its sort
// takes, which call the same functions of the standard library.
enum class Ties { kFirst, kAsTopK, kAsSort };

struct TopKSpec {
  AxisView view;
  int64_t k;
  bool largest, sorted;
  Ties ties;
  int64_t parts;   // lines are split over so many threads, each with its own order buffer
  int64_t padded;  // elements of a line of keys; 0: the order is found without keys
};

// NaN counts as larger than every number (NumPy's sort, PyTorch's topk); equal values keep their
// order.
template <typename T>
bool Precedes(const T& a, const T& b, bool largest) {
  const T& high = largest ? a : b;
  const T& low = largest ? b : a;
  return high > low || (IsNaN(high) && !IsNaN(low));
}

// The order by comparisons of elements, which is PyTorch's among equal ones.
template <typename T>
void OrderLine(const TopKSpec& at, const T* x, int64_t* order) {
  const int64_t step = at.view.inner;
  int64_t* const end = order + at.view.count;
  std::iota(order, end, int64_t{0});
  auto ahead = [&](int64_t i, int64_t j) { return Precedes(x[i * step], x[j * step], at.largest); };
  if (at.ties == Ties::kFirst) {
    std::partial_sort(order, order + at.k, end,
                      [&](int64_t i, int64_t j) { return ahead(i, j) || (i < j && !ahead(j, i)); });
  } else if (at.ties == Ties::kAsSort) {
    std::sort(order, end, ahead);
  } else if (at.k * 64 <= at.view.count) {
    std::partial_sort(order, order + at.k, end, ahead);
  } else if (at.k > 0) {
    std::nth_element(order, order + at.k - 1, end, ahead);
    if (at.sorted) std::sort(order, order + at.k - 1, ahead);
  }
}

constexpr int64_t kKeyRun = 8;  // keys that a network of comparisons sorts

// Batcher's network for eight keys. Minima and maxima of numbers by value are no jumps.
inline void SortRun(uint64_t* keys) {
  constexpr int kPairs[][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6},
                               {5, 7}, {1, 2}, {5, 6}, {0, 4}, {1, 5}, {2, 6}, {3, 7},
                               {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
  uint64_t k[kKeyRun];
  std::copy_n(keys, kKeyRun, k);
#pragma GCC unroll 19
  for (const auto& [i, j] : kPairs) {
    const uint64_t a = k[i], b = k[j];
    k[i] = a < b ? a : b;
    k[j] = a < b ? b : a;
  }
  std::copy_n(k, kKeyRun, keys);
}

// Sorts `count` keys, which is kKeyRun times a power of two, with `spare` as memory of that size:
// runs are merged from both ends at once, so that no comparison decides where to jump. Gives the
// one of the two that holds the result.
uint64_t* SortKeys(uint64_t* keys, uint64_t* spare, int64_t count) {
  for (int64_t i = 0; i < count; i += kKeyRun) SortRun(keys + i);
  for (int64_t run = kKeyRun; run < count; run *= 2) {
    for (int64_t i = 0; i < count; i += 2 * run) {
      const uint64_t* from = keys + i;
      uint64_t* to = spare + i;
      int64_t left = 0, right = run, left_end = run - 1, right_end = 2 * run - 1;
      for (int64_t n = 0; n < run; ++n) {
        const uint64_t a = from[left], b = from[right], c = from[left_end], d = from[right_end];
        const int64_t takes_left = a <= b, takes_right = c <= d;
        to[n] = a < b ? a : b;
        to[2 * run - 1 - n] = c < d ? d : c;
        left += takes_left;
        right += 1 - takes_left;
        right_end -= takes_right;
        left_end -= 1 - takes_right;
      }
    }
    std::swap(keys, spare);
  }
  return keys;
}

// A number whose order is that of floats: NaN is the largest, both zeros are one.
inline uint32_t OrderedBits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return x != x ? 0xFFFFFFFFu : ordered;
}

// The order by keys that hold an element and its place; false where equal elements are among those
// that are taken, or beside the last of them, whose order PyTorch's functions decide.
template <typename T>
bool OrderLineByKeys(const TopKSpec& at, const T* x, uint64_t* keys, int64_t* order) {
  const int64_t count = at.view.count;
  const uint32_t flip = at.largest ? 0xFFFFFFFFu : 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = OrderedBits(static_cast<float>(x[i * at.view.inner])) ^ flip;
    keys[i] = uint64_t{bits} << 32 | static_cast<uint64_t>(i);
  }
  std::fill(keys + count, keys + at.padded, ~uint64_t{0});
  const uint64_t* sorted = SortKeys(keys, keys + at.padded, at.padded);
  bool equal = false;
  for (int64_t i = 1; i <= std::min(at.k, count - 1); ++i)
    equal |= sorted[i - 1] >> 32 == sorted[i] >> 32;
  if (equal && at.ties != Ties::kFirst) return false;
  for (int64_t i = 0; i < at.k; ++i) order[i] = static_cast<int64_t>(sorted[i] & 0xFFFFFFFFu);
  return true;
}

// Memory of one thread.
struct LineScratch {
  int64_t* order;
  uint64_t* keys;
};

template <typename T>
void TopKLine(const TopKSpec& at, const T* x, LineScratch scratch, T* values, int64_t* indices) {
  const int64_t step = at.view.inner;
  bool ordered = false;
  if constexpr (sizeof(T) <= sizeof(float) && !std::is_integral_v<T>) {
    ordered = at.padded > 0 && OrderLineByKeys(at, x, scratch.keys, scratch.order);
  }
  if (!ordered) OrderLine(at, x, scratch.order);
  for (int64_t i = 0; i < at.k; ++i) {
    const int64_t place = scratch.order[i];
    if (values != nullptr) values[i * step] = x[place * step];
    if (indices != nullptr) indices[i * step] = place;
  }
}

template <typename T>
void TopK(const TopKSpec& at, const T* x, LineScratch scratch, T* values, int64_t* indices) {
  const int64_t lines = at.view.outer * at.view.inner;
  ParallelFor(static_cast<int>(at.parts), at.parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      for (int64_t line = lines * part / at.parts; line < lines * (part + 1) / at.parts; ++line) {
        const int64_t outer = line / at.view.inner, column = line % at.view.inner;
        const int64_t from = outer * at.view.count * at.view.inner + column,
                      to = outer * at.k * at.view.inner + column;
        TopKLine(at, x + from,
                 {scratch.order + part * at.view.count, scratch.keys + part * 2 * at.padded},
                 values == nullptr ? nullptr : values + to,
                 indices == nullptr ? nullptr : indices + to);
      }
    }
  });
}

// The elements of a line of keys, or 0 where others are quicker: few of many elements are not worth
// an order of all, and PyTorch leaves some unordered.
int64_t KeysOfLine(const TopKSpec& at, DType dtype) {
  constexpr int64_t kShort = 256, kShare = 8;
  const bool fits =
      dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  const int64_t count = at.view.count;
  if (!fits || count < 2 || count > std::numeric_limits<int32_t>::max() ||
      (at.ties == Ties::kAsTopK && !at.sorted) || (count > kShort && at.k * kShare < count))
    return 0;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(count, kKeyRun))));
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
                   1,
                   0};
  if (info.Attr<int64_t>("as_sort", 0) != 0) {
    spec.ties = Ties::kAsSort;
    if (spec.k != spec.view.count) return info.Invalid("K: a sort takes all elements");
  }
  spec.padded = KeysOfLine(spec, info.InputDType(0));
  const int64_t lines = spec.view.outer * spec.view.inner;
  const int64_t worthwhile = lines * spec.view.count / kParallelGrain;
  spec.parts = std::max<int64_t>(1, std::min({int64_t{info.threads()}, lines, worthwhile}));
  Shape out = shape;
  out[axis] = k[0];
  info.SetOutput(0, info.InputDType(0), out);
  info.SetOutput(1, DType::kInt64, out);
  const size_t orders =
      lines == 0 ? 0 : info.BookScratch(spec.parts * spec.view.count * sizeof(int64_t));
  const size_t keys =
      lines == 0 ? 0 : info.BookScratch(spec.parts * 2 * spec.padded * sizeof(uint64_t));
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spec, orders, keys](KernelContext& context) {
      const LineScratch scratch{context.Scratch<int64_t>(orders), context.Scratch<uint64_t>(keys)};
      TopK(spec, context.Input<T>(0), scratch, context.Output<T>(0), context.Output<int64_t>(1));
    });
  });
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(info.InputDType(0)));
}

}  // namespace

void RegisterTopK(KernelRegistry& registry) {
  registry.Add({.op_type = "TopK",
                .types = kNumericTypes,
                .host_inputs = {1},
                .create = CreateTopK<Ties::kFirst>});
  registry.Add({.op_type = "TopK",
                .domain = kCaesuraDomain,
                .types = kNumericTypes,
                .host_inputs = {1},
                .create = CreateTopK<Ties::kAsTopK>});
}

}  // namespace caesura
