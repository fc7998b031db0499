// SPDX-License-Identifier: Apache-2.0
// Ops that read by index: Gather, GatherElements, GatherND, OneHot.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/walks/element_walk.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/odometer.h"

namespace caesura {
namespace {

// Calls fn(storage tag, index tag) for a data dtype and an index dtype that is int32 or int64.
template <typename Fn>
void DispatchIndexed(DType data, DType index, Fn&& fn) {
  DispatchStorage(data, [&](auto tag) {
    DispatchDType<int32_t, int64_t>(index, [&](auto index_tag) { fn(tag, index_tag); });
  });
}

struct GatherSpec {
  int64_t outer, dim, inner, count;
  int threads;
};

template <typename T, typename I>
void GatherSlices(const GatherSpec& at, const T* x, const I* indices, T* y) {
  if (at.inner == 0) return;
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, at.inner));
  ParallelFor(at.threads, at.outer * at.count, grain, [&](int64_t first, int64_t last) {
    if (at.inner == 1 && at.count == 1) {
      const T* from = x + Wrap(indices[0], at.dim);
      for (int64_t o = first; o < last; ++o) y[o] = from[o * at.dim];
      return;
    }
    int64_t o = first / at.count, i = first % at.count;
    for (int64_t item = first; item < last; ++item) {
      const T* from = x + (o * at.dim + Wrap(indices[i], at.dim)) * at.inner;
      if (at.inner == 1) {
        y[item] = *from;
      } else {
        std::copy(from, from + at.inner, y + item * at.inner);
      }
      if (++i == at.count) {
        i = 0;
        ++o;
      }
    }
  });
}

Status CreateGather(KernelInfo& info) {
  const Shape& data = info.InputShape(0);
  const Shape& indices = info.InputShape(1);
  RETURN_IF_ERROR(CheckDType(info, 1, kIndexTypes));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), data.rank()));
  std::vector<int64_t> dims(data.begin(), data.begin() + axis);
  dims.insert(dims.end(), indices.begin(), indices.end());
  dims.insert(dims.end(), data.begin() + axis + 1, data.end());
  ASSIGN_OR_RETURN(Shape out, CheckDims(info, std::move(dims), info.InputDType(0)));
  const GatherSpec spec = {data.Elements(0, axis), data[axis], data.Elements(axis + 1, data.rank()),
                           indices.elements(), info.threads()};
  info.SetOutput(0, info.InputDType(0), std::move(out));
  DispatchIndexed(info.InputDType(0), info.InputDType(1), [&](auto tag, auto index_tag) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index_tag)::type;
    info.SetCompute([spec, label = info.node().Label()](KernelContext& context) -> Status {
      const I* at = context.Input<I>(1);
      RETURN_IF_ERROR(CheckIndices(at, spec.count, spec.dim, label));
      GatherSlices(spec, context.Input<T>(0), at, context.Output<T>(0));
      return {};
    });
  });
  return {};
}

template <typename T, typename I>
void GatherElements(const ElementWalk& at, const T* x, const I* indices, T* y, int threads) {
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, at.columns));
  ParallelFor(threads, at.rows, grain, [&](int64_t first, int64_t last) {
    Odometer<1> walk(at.extents, {&at.data_strides});
    walk.Seek(first);
    for (int64_t r = first; r < last; ++r, walk.Next()) {
      const T* row = x + walk.offset(0);
      const I* index = indices + r * at.columns;
      T* out = y + r * at.columns;
      for (int64_t j = 0; j < at.columns; ++j) {
        out[j] = row[Wrap(index[j], at.axis_dim) * at.axis_step + j * at.column_step];
      }
    }
  });
}

Status CreateGatherElements(KernelInfo& info) {
  ASSIGN_OR_RETURN(ElementWalk walk, MakeElementWalk(info, 0, 1));
  info.SetOutput(0, info.InputDType(0), info.InputShape(1));
  const int64_t count = info.InputShape(1).elements();
  DispatchIndexed(info.InputDType(0), info.InputDType(1), [&](auto tag, auto index_tag) {
    using T = typename decltype(tag)::type;
    using I = typename decltype(index_tag)::type;
    info.SetCompute([walk, count, threads = info.threads(),
                     label = info.node().Label()](KernelContext& context) -> Status {
      const I* at = context.Input<I>(1);
      RETURN_IF_ERROR(CheckIndices(at, count, walk.axis_dim, label));
      if (count > 0) GatherElements(walk, context.Input<T>(0), at, context.Output<T>(0), threads);
      return {};
    });
  });
  return {};
}

struct GatherNDSpec {
  std::vector<int64_t> dims, strides;  // of the data axes that a tuple addresses
  int64_t batches, batch_stride, tuples, slice;
  int threads;
};

// `tuples` tuples of indices per batch, `slice` elements each.
template <typename T>
void GatherTuples(const GatherNDSpec& at, const T* x, const int64_t* indices, T* y) {
  if (at.slice == 0) return;
  const int64_t k = static_cast<int64_t>(at.dims.size());
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, at.slice));
  ParallelFor(at.threads, at.batches * at.tuples, grain, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const T* from = x + item / at.tuples * at.batch_stride;
      for (int64_t a = 0; a < k; ++a)
        from += Wrap(indices[item * k + a], at.dims[a]) * at.strides[a];
      std::copy(from, from + at.slice, y + item * at.slice);
    }
  });
}

Status CreateGatherND(KernelInfo& info) {
  const Shape& data = info.InputShape(0);
  const Shape& indices = info.InputShape(1);
  RETURN_IF_ERROR(CheckDType(info, 1, {DType::kInt64}));
  const int64_t batch = info.Attr<int64_t>("batch_dims", 0);
  const int q = indices.rank();
  const int64_t k = q > 0 ? indices[q - 1] : 0;
  if (q < 1 || batch < 0 || batch >= q || k < 0 || batch + k > data.rank()) {
    return info.Invalid("cannot index " + data.ToString() + " by " + indices.ToString() +
                        " with batch_dims " + std::to_string(batch));
  }
  const int b = static_cast<int>(batch), end = b + static_cast<int>(k);
  if (!std::equal(data.begin(), data.begin() + b, indices.begin())) {
    return info.Invalid("batch dims of " + data.ToString() + " and " + indices.ToString() +
                        " differ");
  }
  std::vector<int64_t> dims(indices.begin(), indices.end() - 1);
  dims.insert(dims.end(), data.begin() + end, data.end());
  ASSIGN_OR_RETURN(Shape out, CheckDims(info, std::move(dims), info.InputDType(0)));
  const std::vector<int64_t> strides = data.Strides();
  GatherNDSpec spec = {{data.begin() + b, data.begin() + end},
                       {strides.begin() + b, strides.begin() + end},
                       data.Elements(0, b),
                       data.Elements(b, data.rank()),
                       indices.Elements(b, q - 1),
                       data.Elements(end, data.rank()),
                       info.threads()};
  info.SetOutput(0, info.InputDType(0), std::move(out));
  DispatchStorage(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spec, label = info.node().Label()](KernelContext& context) -> Status {
      const int64_t* at = context.Input<int64_t>(1);
      RETURN_IF_ERROR(CheckTuples(at, spec.batches * spec.tuples, spec.dims, label));
      GatherTuples(spec, context.Input<T>(0), at, context.Output<T>(0));
      return {};
    });
  });
  return {};
}

template <typename I>
int64_t ReadAsInt(const void* data, int64_t i) {
  return ConvertElement<int64_t>(static_cast<const I*>(data)[i]);
}

struct OneHotSpec {
  int64_t outer, depth, inner;
  int64_t (*read)(const void*, int64_t);
};

// Indices outside of [-depth, depth) leave their place all off.
template <typename T>
void FillOneHot(const OneHotSpec& at, const void* indices, const T* values, T* y) {
  std::fill(y, y + at.outer * at.depth * at.inner, values[0]);
  for (int64_t o = 0; o < at.outer && at.inner > 0; ++o) {
    for (int64_t i = 0; i < at.inner; ++i) {
      const int64_t index = Wrap(at.read(indices, o * at.inner + i), at.depth);
      if (index >= 0 && index < at.depth) y[(o * at.depth + index) * at.inner + i] = values[1];
    }
  }
}

Status CreateOneHot(KernelInfo& info) {
  const Shape& indices = info.InputShape(0);
  ASSIGN_OR_RETURN(const int axis,
                   CheckAxis(info, info.Attr<int64_t>("axis", -1), indices.rank() + 1));
  const std::vector<double> numbers = HostDoubles(info, 1);
  if (numbers.size() != 1 || !(numbers[0] >= 0 && numbers[0] < 0x1p53))
    return info.Invalid("depth: expected one number, from 0 to below 2^53");
  const auto depth = static_cast<int64_t>(numbers[0]);
  if (info.InputShape(2).elements() != 2) return info.Invalid("values: expected [off, on]");
  OneHotSpec spec = {indices.Elements(0, axis), depth, indices.Elements(axis, indices.rank()),
                     nullptr};
  DispatchNumeric(info.InputDType(0),
                  [&](auto tag) { spec.read = &ReadAsInt<typename decltype(tag)::type>; });
  if (spec.read == nullptr) return info.Invalid("indices: expected numbers");
  std::vector<int64_t> dims = indices.dims();
  dims.insert(dims.begin() + axis, depth);
  ASSIGN_OR_RETURN(Shape out, CheckDims(info, std::move(dims), info.InputDType(2)));
  info.SetOutput(0, info.InputDType(2), std::move(out));
  DispatchStorage(info.InputDType(2), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spec](KernelContext& context) {
      FillOneHot(spec, context.Input<void>(0), context.Input<T>(2), context.Output<T>(0));
    });
  });
  return {};
}

}  // namespace

Result<ElementWalk> MakeElementWalk(const KernelInfo& info, int data, int indices) {
  const Shape& x = info.InputShape(data);
  const Shape& index = info.InputShape(indices);
  RETURN_IF_ERROR(CheckDType(info, indices, kIndexTypes));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), x.rank()));
  bool fits = index.rank() == x.rank() && x.rank() <= kMaxWalkAxes;
  for (int a = 0; fits && a < x.rank(); ++a) fits = a == axis || index[a] <= x[a];
  if (!fits)
    return info.Invalid("indices: shape " + index.ToString() + " does not go with " + x.ToString());
  ElementWalk walk;
  const std::vector<int64_t> strides = x.Strides();
  const int last = x.rank() - 1;
  walk.extents.assign(index.begin(), index.end() - 1);
  walk.data_strides.assign(strides.begin(), strides.end() - 1);
  if (axis != last) walk.data_strides[axis] = 0;
  walk.rows = index.Elements(0, last);
  walk.columns = index[last];
  walk.axis_dim = x[axis];
  walk.axis_step = strides[axis];
  walk.column_step = axis == last ? 0 : 1;
  walk.groups = index.Elements(0, axis);
  return walk;
}

void RegisterGather(KernelRegistry& registry) {
  registry.Add({.op_type = "Gather", .create = CreateGather});
  registry.Add({.op_type = "GatherElements", .create = CreateGatherElements});
  registry.Add({.op_type = "GatherND", .create = CreateGatherND});
  registry.Add({.op_type = "OneHot", .host_inputs = {1}, .create = CreateOneHot});
}

}  // namespace caesura
