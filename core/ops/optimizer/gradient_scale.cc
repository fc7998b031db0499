// SPDX-License-Identifier: Apache-2.0
// Ops on gradients and statistics between backward and update: GlobalNorm, ClipScale,
// RequireFinite, InPlaceAccumulator, AccumulatedSum, PairwiseAccumulator, PairwiseSum, Assign,
// Copy.
#include <bit>
#include <cmath>
#include <cstring>

#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/ops/optimizer/parameter_blocks.h"
#include "core/ops/optimizer/update_group.h"

namespace caesura {
namespace {

Status CreateGlobalNorm(KernelInfo& info) {
  const int count = static_cast<int>(info.node().inputs().size());
  ParameterBlocks blocks;
  std::vector<DType> dtypes;
  bool wide = false;
  for (int i = 0; i < count; ++i) {
    if (!info.HasInput(i) || !info.input(i).is_tensor ||
        !kFloatTypes.Contains(info.InputDType(i))) {
      return info.Invalid("gradient " + std::to_string(i) + " must be of " +
                          kFloatTypes.ToString());
    }
    dtypes.push_back(info.InputDType(i));
    wide |= dtypes.back() == DType::kFloat64;
    blocks.AddTensor(i, info.InputShape(i).elements());
  }
  info.SetOutput(0, wide ? DType::kFloat64 : DType::kFloat32, Shape{});
  const size_t scratch = info.BookScratch(blocks.blocks().size() * sizeof(double));
  info.SetCompute(
      [blocks, dtypes, wide, scratch, threads = info.threads()](KernelContext& context) {
        double* sums = context.Scratch<double>(scratch);
        blocks.ForEach(threads, 2, [&](size_t b) {
          const ParameterBlocks::Block& block = blocks.blocks()[b];
          DispatchFloat(dtypes[block.tensor], [&](auto tag) {
            using T = typename decltype(tag)::type;
            sums[b] = SumOfSquares(context.Input<T>(block.tensor) + block.first, block.count);
          });
        });
        double sum = 0;
        for (size_t b = 0; b < blocks.blocks().size(); ++b) sum += sums[b];
        if (wide) *context.Output<double>(0) = std::sqrt(sum);
        else *context.Output<float>(0) = static_cast<float>(std::sqrt(sum));
      });
  return {};
}

Status CreateClipScale(KernelInfo& info) {
  const double max_norm = WrittenNumber(info, "max_norm", INFINITY);
  const bool skip_nonfinite = info.Attr<int64_t>("skip_nonfinite", 0) != 0;
  if (!(max_norm > 0)) return info.Invalid("max_norm must be positive");
  for (int i = 0; i < 2; ++i) {
    const bool fits =
        info.HasInput(i) && info.InputShape(i).elements() == 1 &&
        (info.InputDType(i) == DType::kFloat64 || info.InputDType(i) == DType::kFloat32);
    if (!fits) return info.Invalid("norm and factor must be one element of float32 or float64");
  }
  info.SetOutput(0, DType::kFloat64, Shape{});
  const DType dtypes[] = {info.InputDType(0), info.InputDType(1)};
  info.SetCompute([=](KernelContext& context) {
    auto read = [&](int i) {
      return dtypes[i] == DType::kFloat64 ? *context.Input<double>(i) : *context.Input<float>(i);
    };
    *context.Output<double>(0) = ClippedScale(read(0), read(1), max_norm, skip_nonfinite);
  });
  return {};
}

Status CreateRequireFinite(KernelInfo& info) {
  const auto names = info.Attr<std::vector<std::string>>("names", {});
  const int count = static_cast<int>(info.node().inputs().size()) - 1;
  std::vector<DType> dtypes;
  for (int i = 0; i < count; ++i) {
    if (!info.HasInput(1 + i) || !kFloatTypes.Contains(info.InputDType(1 + i)) ||
        info.InputShape(1 + i).elements() != 1) {
      return info.Invalid("what is checked must be one element of " + kFloatTypes.ToString());
    }
    dtypes.push_back(info.InputDType(1 + i));
  }
  if (static_cast<int>(names.size()) != count)
    return info.Invalid("names must name what it checks");
  const DType dtype = info.InputDType(0);
  const int64_t elements = info.InputShape(0).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([=](KernelContext& context) -> Status {
    std::string wrong;
    for (int i = 0; i < count; ++i) {
      double value = 0;
      DispatchFloat(dtypes[i], [&](auto tag) {
        value = static_cast<double>(*context.Input<typename decltype(tag)::type>(1 + i));
      });
      if (!std::isfinite(value))
        wrong += (wrong.empty() ? "" : ", ") + names[i] + " is " + std::to_string(value);
    }
    if (!wrong.empty()) return InvalidArgument(wrong + ": the step was refused");
    CopyElements(dtype, context.Input<char>(0), context.Output<char>(0), elements);
    return {};
  });
  return {};
}

// Two tensors of one dtype and shape, the first of which is also the output.
Status CheckPair(const KernelInfo& info) {
  const bool fits = info.HasInput(0) && info.HasInput(1) &&
                    info.InputDType(0) == info.InputDType(1) &&
                    info.InputShape(0) == info.InputShape(1);
  return fits ? Status() : info.Invalid("its two tensors must have one dtype and shape");
}

// reset ? value : buffer + value; the output may lie on either.
Status CreateAccumulator(KernelInfo& info) {
  if (Status status = CheckPair(info); !status.ok()) return status;
  if (!info.HasInput(2) || info.InputDType(2) != DType::kBool ||
      info.InputShape(2).elements() != 1) {
    return info.Invalid("reset must be one bool");
  }
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([count, threads = info.threads()](KernelContext& context) {
      const T* buffer = context.Input<T>(0);
      const T* value = context.Input<T>(1);
      const bool reset = *context.Input<bool>(2);
      T* out = context.Output<T>(0);
      ParallelFor(threads, count, kParallelGrain, [&](int64_t first, int64_t last) {
        const size_t bytes = static_cast<size_t>(last - first) * sizeof(T);
        if (reset) {
          if (out != value) std::memcpy(out + first, value + first, bytes);
          return;
        }
#pragma GCC ivdep  // each element depends on those of its own place
        for (int64_t i = first; i < last; ++i) {
          out[i] = static_cast<T>(static_cast<Accumulator<T>>(buffer[i]) +
                                  static_cast<Accumulator<T>>(value[i]));
        }
      });
    });
  });
  return {};
}

// out = value + the levels whose bit is set in `levels`, the lowest first.
template <typename T>
void AddLevels(const T* all, uint64_t levels, const T* value, T* out, int64_t count, int threads) {
  ParallelFor(threads, count, kParallelGrain, [&](int64_t first, int64_t last) {
    if (out != value)
      std::memcpy(out + first, value + first, static_cast<size_t>(last - first) * sizeof(T));
    for (uint64_t left = levels; left != 0; left &= left - 1) {
      const T* level = all + std::countr_zero(left) * count;
#pragma GCC ivdep  // no level is `out`
      for (int64_t i = first; i < last; ++i) {
        out[i] = static_cast<T>(static_cast<Accumulator<T>>(level[i]) +
                                static_cast<Accumulator<T>>(out[i]));
      }
    }
  });
}

// PairwiseAccumulator; `ends`: PairwiseSum.
Status CreatePairwise(KernelInfo& info, bool ends) {
  const bool has_inputs = info.HasInput(0) && info.HasInput(1) && info.HasInput(2);
  if (!has_inputs || info.InputDType(0) != info.InputDType(1) ||
      info.InputShape(0).rank() != info.InputShape(1).rank() + 1) {
    return info.Invalid("levels must be tensors of value's dtype and shape");
  }
  if (info.InputDType(2) != DType::kInt64 || info.InputShape(2).elements() != 1)
    return info.Invalid("index must be one int64");
  const int64_t levels = info.InputShape(0)[0], count = info.InputShape(1).elements();
  if (info.InputShape(0).elements() != levels * count)
    return info.Invalid("levels must be tensors of value's dtype and shape");
  info.SetOutput(0, info.InputDType(0), info.InputShape(ends ? 1 : 0));
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=, threads = info.threads()](KernelContext& context) -> Status {
      const T* all = context.Input<T>(0);
      const T* value = context.Input<T>(1);
      const auto index = static_cast<uint64_t>(*context.Input<int64_t>(2));
      const int full = std::countr_one(index);  // levels that a new value completes
      if (static_cast<int64_t>(std::bit_width(index)) > levels || (!ends && full >= levels)) {
        return InvalidArgument("value " + std::to_string(index) + " of a sum has no place in " +
                               std::to_string(levels) + " levels");
      }
      T* out = context.Output<T>(0);
      if (ends) {
        AddLevels(all, index, value, out, count, threads);
        return {};
      }
      if (out != all) std::memcpy(out, all, static_cast<size_t>(levels * count) * sizeof(T));
      AddLevels(out, (uint64_t{1} << full) - 1, value, out + full * count, count, threads);
      return {};
    });
  });
  return {};
}

Status CreateAssign(KernelInfo& info) {
  if (Status status = CheckPair(info); !status.ok()) return status;
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([dtype, count, threads = info.threads()](KernelContext& context) {
    const char* value = context.Input<char>(1);
    char* out = context.Output<char>(0);
    if (out == value) return;
    const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
    ParallelFor(threads, count, 4 * kParallelGrain, [&](int64_t first, int64_t last) {
      CopyElements(dtype, value + first * size, out + first * size, last - first);
    });
  });
  return {};
}

Status CreateCopy(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([dtype, count](KernelContext& context) {
    CopyElements(dtype, context.Input<char>(0), context.Output<char>(0), count);
  });
  return {};
}

}  // namespace

void RegisterGradientScale(KernelRegistry& registry) {
  const struct {
    const char* op_type;
    DTypeSet types;
    std::vector<Alias> aliases;
    KernelFactory create;
    std::vector<int> unread_inputs = {};
  } kernels[] = {
      {"GlobalNorm", kFloatTypes, {}, CreateGlobalNorm},
      {"ClipScale", kFloatTypes, {}, CreateClipScale},
      {"RequireFinite", kAllTypes, {}, CreateRequireFinite},
      {"InPlaceAccumulator", kFloatTypes, {InPlace(0, 0)}, CreateAccumulator},
      {"AccumulatedSum", kFloatTypes, {MayReuse(1, 0)}, CreateAccumulator},
      {"PairwiseAccumulator",
       kFloatTypes,
       {InPlace(0, 0)},
       [](KernelInfo& info) { return CreatePairwise(info, /*ends=*/false); }},
      {"PairwiseSum",
       kFloatTypes,
       {MayReuse(1, 0)},
       [](KernelInfo& info) { return CreatePairwise(info, /*ends=*/true); }},
      {"Assign", kAllTypes, {InPlace(0, 0)}, CreateAssign, {2}},
      {"Copy", kAllTypes, {}, CreateCopy},
  };
  for (const auto& kernel : kernels) {
    registry.Add({.op_type = kernel.op_type,
                  .domain = kCaesuraDomain,
                  .types = kernel.types,
                  .unread_inputs = kernel.unread_inputs,
                  .aliases = kernel.aliases,
                  .create = kernel.create});
  }
}

}  // namespace caesura
