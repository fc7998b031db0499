// SPDX-License-Identifier: Apache-2.0
// Ops whose result is as large as the data says: Compress, Unique, NonZero.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// A tensor seen as [outer, axis, inner]; without an axis it is one flat axis.
struct AxisView {
  int64_t outer = 1, count = 1, inner = 1;
  int axis = -1;
};

Result<AxisView> ReadAxisView(const KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const int64_t* attribute = info.node().FindAttr<int64_t>("axis");
  if (attribute == nullptr) return AxisView{1, shape.elements(), 1, -1};
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, *attribute, shape.rank()));
  return AxisView{shape.Elements(0, axis), shape[axis], shape.Elements(axis + 1, shape.rank()),
                  axis};
}

Shape WithCount(const Shape& shape, const AxisView& view, int64_t count) {
  if (view.axis < 0) return Shape{count};
  Shape out = shape;
  out[view.axis] = count;
  return out;
}

// y = the slices of x whose numbers are in `picks`.
template <typename T>
void TakeSlices(const T* x, const AxisView& view, const std::vector<int64_t>& picks, T* y) {
  if (picks.empty() || view.inner == 0) return;
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t pick : picks) {
      const T* from = x + (o * view.count + pick) * view.inner;
      y = std::copy(from, from + view.inner, y);
    }
  }
}

Status CreateCompress(KernelInfo& info) {
  ASSIGN_OR_RETURN(const AxisView view, ReadAxisView(info));
  RETURN_IF_ERROR(CheckDType(info, 1, {DType::kBool}));
  RETURN_IF_ERROR(CheckRank(info, 1, 1));
  const Shape shape = info.InputShape(0);
  const DType dtype = info.InputDType(0);
  const int64_t length = std::min(info.InputShape(1)[0], view.count);
  info.SetOutputSizedInCompute(0);
  DispatchStorage(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([view, shape, dtype, length](KernelContext& context) -> Status {
      const bool* condition = context.Input<bool>(1);
      std::vector<int64_t> picks;
      for (int64_t i = 0; i < length; ++i) {
        if (condition[i]) picks.push_back(i);
      }
      const Shape out = WithCount(shape, view, static_cast<int64_t>(picks.size()));
      ASSIGN_OR_RETURN(Tensor y, context.AllocateOutput(0, dtype, out));
      TakeSlices(context.Input<T>(0), view, picks, y.data<T>());
      return {};
    });
  });
  return {};
}

// -1, 0 or 1, as NumPy sorts: NaN after all numbers and equal to itself, complex numbers by their
// parts.
template <typename T>
int Compare(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>) {
    const int real = Compare(a.real(), b.real());
    return real != 0 ? real : Compare(a.imag(), b.imag());
  } else {
    if (a < b) return -1;
    if (b < a) return 1;
    if (a == b) return 0;
    return static_cast<int>(a != a) - static_cast<int>(b != b);
  }
}

template <typename T>
int CompareSlices(const T* x, const AxisView& view, int64_t i, int64_t j) {
  if (view.inner == 0) return 0;
  for (int64_t o = 0; o < view.outer; ++o) {
    const T* a = x + (o * view.count + i) * view.inner;
    const T* b = x + (o * view.count + j) * view.inner;
    for (int64_t k = 0; k < view.inner; ++k) {
      const int order = Compare(a[k], b[k]);
      if (order != 0) return order;
    }
  }
  return 0;
}

struct UniqueResult {
  std::vector<int64_t> first, inverse, counts;
};

// Groups equal slices; groups in ascending order, or in order of first occurrence when not
// `sorted`.
template <typename T>
UniqueResult FindUnique(const T* x, const AxisView& view, bool sorted) {
  std::vector<int64_t> order(view.count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return CompareSlices(x, view, i, j) < 0; });
  UniqueResult out;
  out.inverse.resize(view.count);
  for (int64_t i = 0; i < view.count; ++i) {
    if (i == 0 || CompareSlices(x, view, order[i - 1], order[i]) != 0) {
      out.first.push_back(order[i]);
      out.counts.push_back(0);
    }
    ++out.counts.back();
    out.inverse[order[i]] = static_cast<int64_t>(out.first.size()) - 1;
  }
  if (sorted) return out;
  const UniqueResult ascending = out;
  std::vector<int64_t> groups(out.first.size()), places(out.first.size());
  std::iota(groups.begin(), groups.end(), 0);
  std::sort(groups.begin(), groups.end(),
            [&](int64_t a, int64_t b) { return ascending.first[a] < ascending.first[b]; });
  for (size_t g = 0; g < groups.size(); ++g) {
    places[groups[g]] = static_cast<int64_t>(g);
    out.first[g] = ascending.first[groups[g]];
    out.counts[g] = ascending.counts[groups[g]];
  }
  for (int64_t& group : out.inverse) group = places[group];
  return out;
}

Status WriteInts(KernelContext& context, int output, const std::vector<int64_t>& values) {
  ASSIGN_OR_RETURN(Tensor y, context.AllocateOutput(output, DType::kInt64,
                                                    Shape{static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), y.data<int64_t>());
  return {};
}

template <typename T>
void SetUniqueCompute(KernelInfo& info, const AxisView& view) {
  const bool sorted = info.Attr<int64_t>("sorted", 1) != 0;
  std::array<bool, 4> wanted;
  for (int i = 0; i < 4; ++i) wanted[i] = info.HasOutput(i);
  info.SetCompute(
      [view, sorted, wanted, shape = info.InputShape(0)](KernelContext& context) -> Status {
        const T* x = context.Input<T>(0);
        const UniqueResult found = FindUnique(x, view, sorted);
        if (wanted[0]) {
          const Shape out = WithCount(shape, view, static_cast<int64_t>(found.first.size()));
          ASSIGN_OR_RETURN(Tensor y, context.AllocateOutput(0, kDTypeOf<T>, out));
          TakeSlices(x, view, found.first, y.data<T>());
        }
        if (wanted[1]) RETURN_IF_ERROR(WriteInts(context, 1, found.first));
        if (wanted[2]) RETURN_IF_ERROR(WriteInts(context, 2, found.inverse));
        if (wanted[3]) RETURN_IF_ERROR(WriteInts(context, 3, found.counts));
        return {};
      });
}

Status CreateUnique(KernelInfo& info) {
  ASSIGN_OR_RETURN(const AxisView view, ReadAxisView(info));
  for (int i = 0; i < info.output_count(); ++i) info.SetOutputSizedInCompute(i);
  const DType dtype = info.InputDType(0);
  auto set = [&](auto tag) { SetUniqueCompute<typename decltype(tag)::type>(info, view); };
  const bool known =
      DispatchNumeric(dtype, set) ||
      DispatchDType<bool, std::string, std::complex<float>, std::complex<double>>(dtype, set);
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(dtype));
}

// Row a of the result holds coordinate a of each nonzero element, in row-major order.
template <typename T>
Status FindNonZero(const T* x, const Shape& shape, KernelContext& context) {
  std::vector<int64_t> found;
  const int64_t count = shape.elements();
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] != T()) found.push_back(i);
  }
  const int64_t n = static_cast<int64_t>(found.size());
  ASSIGN_OR_RETURN(Tensor y, context.AllocateOutput(0, DType::kInt64, Shape{shape.rank(), n}));
  const std::vector<int64_t> strides = shape.Strides();
  for (int a = 0; a < shape.rank(); ++a) {
    int64_t* row = y.data<int64_t>() + a * n;
    for (int64_t i = 0; i < n; ++i) row[i] = found[i] / strides[a] % shape[a];
  }
  return {};
}

Status CreateNonZero(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  info.SetOutputSizedInCompute(0);
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([shape = info.InputShape(0)](KernelContext& context) {
      return FindNonZero(context.Input<T>(0), shape, context);
    });
  };
  const bool known =
      DispatchNumeric(dtype, set) ||
      DispatchDType<bool, std::string, std::complex<float>, std::complex<double>>(dtype, set);
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(dtype));
}

}  // namespace

void RegisterSelect(KernelRegistry& registry) {
  registry.Add({.op_type = "Compress", .create = CreateCompress});
  registry.Add({.op_type = "Unique", .create = CreateUnique});
  registry.Add({.op_type = "NonZero", .create = CreateNonZero});
}

}  // namespace caesura
