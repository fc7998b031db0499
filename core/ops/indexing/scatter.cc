// SPDX-License-Identifier: Apache-2.0
// Ops that write by index into a copy of their first input: ScatterElements, Scatter, ScatterND,
// TensorScatter.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/walks/element_walk.h"
#include "core/kernels/walks/strided_copy.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/odometer.h"

namespace caesura {
namespace {

// The ways to combine an old and a new value that meet. Later updates win, or add up, in row-major
// order.
struct TakeNew {
  template <typename T>
  static void Apply(T& old, const T& value) {
    old = value;
  }
};
struct AddNew {
  template <typename T>
  static void Apply(T& old, const T& value) {
    old = static_cast<T>(old + value);
  }
};
struct MultiplyNew {
  template <typename T>
  static void Apply(T& old, const T& value) {
    old = static_cast<T>(old * value);
  }
};
struct MaxNew {  // NaN wins, as in NumPy
  template <typename T>
  static void Apply(T& old, const T& value) {
    old = old < value || value != value ? value : old;
  }
};
struct MinNew {
  template <typename T>
  static void Apply(T& old, const T& value) {
    old = value < old || value != value ? value : old;
  }
};

// Calls fn(reduction, element tag) as attribute `reduction` and the dtype of input 0 say.
template <typename Fn>
Status DispatchReduction(KernelInfo& info, Fn&& fn) {
  const std::string name = info.Attr<std::string>("reduction", "none");
  const DType dtype = info.InputDType(0);
  if (name == "none") {
    DispatchStorage(dtype, [&](auto tag) { fn(TakeNew(), tag); });
    return {};
  }
  bool known = false;
  if (name == "add") known = DispatchNumeric(dtype, [&](auto tag) { fn(AddNew(), tag); });
  if (name == "mul") known = DispatchNumeric(dtype, [&](auto tag) { fn(MultiplyNew(), tag); });
  if (name == "max") known = DispatchNumeric(dtype, [&](auto tag) { fn(MaxNew(), tag); });
  if (name == "min") known = DispatchNumeric(dtype, [&](auto tag) { fn(MinNew(), tag); });
  return known ? Status()
               : info.Refuse("does not do reduction '" + name + "' of " + DTypeName(dtype));
}

template <typename Reduction, typename T, typename I>
void ScatterElements(const ElementWalk& at, const I* indices, const T* updates, T* y, int threads) {
  const int64_t rows = at.rows / at.groups;
  const int64_t grain =
      std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, rows * at.columns));
  ParallelFor(threads, at.groups, grain, [&](int64_t first, int64_t last) {
    Odometer<1> walk(at.extents, {&at.data_strides});
    walk.Seek(first * rows);
    for (int64_t r = first * rows; r < last * rows; ++r, walk.Next()) {
      T* row = y + walk.offset(0);
      const I* index = indices + r * at.columns;
      const T* update = updates + r * at.columns;
      for (int64_t j = 0; j < at.columns; ++j) {
        Reduction::Apply(row[Wrap(index[j], at.axis_dim) * at.axis_step + j * at.column_step],
                         update[j]);
      }
    }
  });
}

// Output 0 starts as a copy of input 0, unless it is the same memory already.
void CopyBase(KernelContext& context, DType dtype, int64_t count, int threads) {
  const void* from = context.Input<void>(0);
  void* to = context.Output<void>(0);
  if (from != to) ParallelCopy(dtype, from, to, count, threads);
}

Status CreateScatterElements(KernelInfo& info) {
  ASSIGN_OR_RETURN(ElementWalk walk, MakeElementWalk(info, 0, 1));
  const DType dtype = info.InputDType(0);
  if (info.InputShape(2) != info.InputShape(1) || info.InputDType(2) != dtype) {
    return info.Invalid(std::string("updates: expected ") + DTypeName(dtype) +
                        info.InputShape(1).ToString() + ", got " + DTypeName(info.InputDType(2)) +
                        info.InputShape(2).ToString());
  }
  info.SetOutput(0, dtype, info.InputShape(0));
  const int64_t count = info.InputShape(1).elements(), total = info.InputShape(0).elements();
  return DispatchReduction(info, [&](auto reduction, auto tag) {
    using Reduction = decltype(reduction);
    using T = typename decltype(tag)::type;
    DispatchDType<int32_t, int64_t>(info.InputDType(1), [&](auto index_tag) {
      using I = typename decltype(index_tag)::type;
      info.SetCompute([walk, count, total, dtype, threads = info.threads(),
                       label = info.node().Label()](KernelContext& context) -> Status {
        const I* at = context.Input<I>(1);
        RETURN_IF_ERROR(CheckIndices(at, count, walk.axis_dim, label));
        CopyBase(context, dtype, total, threads);
        if (count == 0) return {};
        ScatterElements<Reduction>(walk, at, context.Input<T>(2), context.Output<T>(0), threads);
        return {};
      });
    });
  });
}

struct ScatterNDSpec {
  std::vector<int64_t> dims, strides;  // of the data axes that a tuple addresses
  int64_t tuples, slice, total;
  int threads;
};

// Split over the columns of the slices, so that updates that meet keep their order.
template <typename Reduction, typename T>
void ScatterTuples(const ScatterNDSpec& at, const int64_t* indices, const T* updates, T* y) {
  const int64_t k = static_cast<int64_t>(at.dims.size());
  const int64_t grain = std::max<int64_t>(16, kParallelGrain / std::max<int64_t>(1, at.tuples));
  ParallelFor(at.threads, at.slice, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = 0; i < at.tuples; ++i) {
      T* to = y;
      for (int64_t a = 0; a < k; ++a) to += Wrap(indices[i * k + a], at.dims[a]) * at.strides[a];
      const T* update = updates + i * at.slice;
      for (int64_t j = first; j < last; ++j) Reduction::Apply(to[j], update[j]);
    }
  });
}

Result<ScatterNDSpec> ReadScatterND(const KernelInfo& info) {
  const Shape& data = info.InputShape(0);
  const Shape& indices = info.InputShape(1);
  RETURN_IF_ERROR(CheckDType(info, 1, {DType::kInt64}));
  const int q = indices.rank();
  const int64_t k = q > 0 ? indices[q - 1] : 0;
  if (q < 1 || data.rank() < 1 || k > data.rank()) {
    return info.Invalid("cannot index " + data.ToString() + " by " + indices.ToString());
  }
  const int depth = static_cast<int>(k);
  std::vector<int64_t> expected(indices.begin(), indices.end() - 1);
  expected.insert(expected.end(), data.begin() + depth, data.end());
  if (info.InputShape(2) != Shape(expected) || info.InputDType(2) != info.InputDType(0)) {
    return info.Invalid(std::string("updates: expected ") + DTypeName(info.InputDType(0)) +
                        Shape(expected).ToString() + ", got " + DTypeName(info.InputDType(2)) +
                        info.InputShape(2).ToString());
  }
  const std::vector<int64_t> strides = data.Strides();
  return ScatterNDSpec{{data.begin(), data.begin() + depth},
                       {strides.begin(), strides.begin() + depth},
                       indices.Elements(0, q - 1),
                       data.Elements(depth, data.rank()),
                       data.elements(),
                       info.threads()};
}

Status CreateScatterND(KernelInfo& info) {
  ASSIGN_OR_RETURN(const ScatterNDSpec spec, ReadScatterND(info));
  const DType dtype = info.InputDType(0);
  info.SetOutput(0, dtype, info.InputShape(0));
  return DispatchReduction(info, [&](auto reduction, auto tag) {
    using Reduction = decltype(reduction);
    using T = typename decltype(tag)::type;
    info.SetCompute([spec, dtype, label = info.node().Label()](KernelContext& context) -> Status {
      const int64_t* at = context.Input<int64_t>(1);
      RETURN_IF_ERROR(CheckTuples(at, spec.tuples, spec.dims, label));
      CopyBase(context, dtype, spec.total, spec.threads);
      ScatterTuples<Reduction>(spec, at, context.Input<T>(2), context.Output<T>(0));
      return {};
    });
  });
}

// The caches as [batch, middle, sequence, inner].
struct CacheSpec {
  int64_t batches, middle, length, update_length, inner;
  bool circular;
};

template <typename T>
Status WriteCache(const CacheSpec& at, const int64_t* starts, const T* update, T* y,
                  const std::string& label) {
  const bool is_empty = at.middle == 0 || at.update_length == 0 || at.inner == 0;
  if (is_empty && starts == nullptr) return {};
  for (int64_t b = 0; b < at.batches; ++b) {
    const int64_t start = starts == nullptr ? 0 : starts[b];
    if (start < 0 || (!at.circular && start > at.length - at.update_length)) {
      return InvalidArgument(label + " write_indices: " + std::to_string(start) +
                             " does not fit a cache of " + std::to_string(at.length));
    }
    for (int64_t m = 0; m < at.middle && !is_empty; ++m) {
      T* cache = y + (b * at.middle + m) * at.length * at.inner;
      for (int64_t s = 0; s < at.update_length; ++s, update += at.inner) {
        const int64_t place = at.circular ? (start % at.length + s) % at.length : start + s;
        std::copy(update, update + at.inner, cache + place * at.inner);
      }
    }
  }
  return {};
}

Status CreateTensorScatter(KernelInfo& info) {
  const Shape& cache = info.InputShape(0);
  const Shape& update = info.InputShape(1);
  const DType dtype = info.InputDType(0);
  const std::string mode = info.Attr<std::string>("mode", "linear");
  if (mode != "linear" && mode != "circular")
    return info.Invalid("mode: expected linear or circular, got " + mode);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", -2), cache.rank()));
  Shape expected = cache;
  if (update.rank() == cache.rank()) expected[axis] = std::min(cache[axis], update[axis]);
  if (axis == 0 || update != expected || info.InputDType(1) != dtype) {
    return info.Invalid("update: " + update.ToString() + " does not go into " + cache.ToString() +
                        " along axis " + std::to_string(axis));
  }
  if (info.HasInput(2)) {
    RETURN_IF_ERROR(CheckDType(info, 2, {DType::kInt64}));
    if (info.InputShape(2) != Shape{cache[0]})
      return info.Invalid("write_indices: expected one a batch");
  }
  const CacheSpec spec = {cache[0],
                          cache.Elements(1, axis),
                          cache[axis],
                          update[axis],
                          cache.Elements(axis + 1, cache.rank()),
                          mode == "circular"};
  info.SetOutput(0, dtype, cache);
  DispatchStorage(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([spec, dtype, total = cache.elements(), threads = info.threads(),
                     has_starts = info.HasInput(2),
                     label = info.node().Label()](KernelContext& context) {
      CopyBase(context, dtype, total, threads);
      const int64_t* starts = has_starts ? context.Input<int64_t>(2) : nullptr;
      return WriteCache(spec, starts, context.Input<T>(1), context.Output<T>(0), label);
    });
  });
  return {};
}

}  // namespace

void RegisterScatter(KernelRegistry& registry) {
  const std::vector<Alias> in_place = {MayReuse(0, 0)};
  registry.Add(
      {.op_type = "ScatterElements", .aliases = in_place, .create = CreateScatterElements});
  registry.Add({.op_type = "Scatter", .aliases = in_place, .create = CreateScatterElements});
  registry.Add({.op_type = "ScatterND", .aliases = in_place, .create = CreateScatterND});
  registry.Add({.op_type = "TensorScatter", .aliases = in_place, .create = CreateTensorScatter});
}

}  // namespace caesura
