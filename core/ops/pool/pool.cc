// SPDX-License-Identifier: Apache-2.0
// MaxPool, AveragePool and LpPool over windows of one to three spatial axes.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/pool/pool_window.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// The place of element `at` of an image in column-major order.
int64_t ColumnMajorPlace(const Window3& w, int64_t at) {
  const int64_t i2 = at % w.input[2], i1 = at / w.input[2] % w.input[1],
                i0 = at / w.input[2] / w.input[1];
  return i0 + w.input[0] * (i1 + w.input[1] * i2);
}

// Indices count through the whole of X; an empty window has none (-1).
template <typename T>
void SetMaxPool(KernelInfo& info, const PoolGeometry& g) {
  const Window3 w(g.seen);
  const bool has_indices = info.HasOutput(1),
             column_major = info.Attr<int64_t>("storage_order", 0) != 0;
  const int64_t outputs = w.OutputCount(), inputs = w.InputCount(), images = g.images;
  const size_t places = has_indices ? info.BookScratch(images * outputs * sizeof(int32_t)) : 0;
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    int64_t* indices = has_indices ? context.Output<int64_t>(1) : nullptr;
    int32_t* scratch = has_indices ? context.Scratch<int32_t>(places) : nullptr;
    ParallelFor(threads, images, PoolGrain(w), [=](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        int32_t* at = has_indices ? scratch + i * outputs : nullptr;
        MaxOfWindows(w, x + i * inputs, y + i * outputs, at);
        for (int64_t o = 0; has_indices && o < outputs; ++o) {
          const int64_t place = column_major && at[o] >= 0 ? ColumnMajorPlace(w, at[o]) : at[o];
          indices[i * outputs + o] = at[o] < 0 ? -1 : i * inputs + place;
        }
      }
    });
  });
}

Status CreateMaxPool(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakeMaxPoolGeometry(info));
  DispatchDType<float, double, int8_t, uint8_t>(
      info.InputDType(0), [&](auto tag) { SetMaxPool<typename decltype(tag)::type>(info, g); });
  return {};
}

template <typename T>
void SetAveragePool(KernelInfo& info, const PoolGeometry& g) {
  const Window3 w(g.seen);
  const int64_t outputs = w.OutputCount(), inputs = w.InputCount(), images = g.images;
  const int threads = info.threads();
  const bool include_pad = info.Attr<int64_t>("count_include_pad", 0) != 0;
  info.SetCompute(
      [=, factors = WindowReciprocals<T>(g.window, include_pad)](KernelContext& context) {
        const T* x = context.Input<T>(0);
        T* y = context.Output<T>(0);
        ParallelFor(threads, images, PoolGrain(w), [&](int64_t first, int64_t last) {
          for (int64_t i = first; i < last; ++i) {
            const T* image = x + i * inputs;
            T* out = y + i * outputs;
            std::fill_n(out, outputs, T(0));
            for (int64_t k = 0; k < w.KernelCount(); ++k) {
              ForEachLine(
                  w, k, [=](int64_t line, int64_t begin, int64_t end, int64_t from, int64_t step) {
                    for (int64_t o = begin; o < end; ++o) out[line + o] += image[from + o * step];
                  });
            }
            for (int64_t o = 0; o < outputs; ++o) out[o] *= factors[o];
          }
        });
      });
}

// Y = (sum |X|^p)^(1/p)
template <typename T>
void SetLpPool(KernelInfo& info, const PoolGeometry& g) {
  const Window3 w(g.seen);
  const int64_t outputs = w.OutputCount(), inputs = w.InputCount(), images = g.images;
  const int threads = info.threads();
  const T p = static_cast<T>(info.Attr<int64_t>("p", 2));
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    ParallelFor(threads, images, PoolGrain(w), [=](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const T* image = x + i * inputs;
        T* out = y + i * outputs;
        std::fill_n(out, outputs, T(0));
        for (int64_t k = 0; k < w.KernelCount(); ++k) {
          ForEachLine(w, k,
                      [=](int64_t line, int64_t begin, int64_t end, int64_t from, int64_t step) {
                        for (int64_t o = begin; o < end; ++o)
                          out[line + o] += std::pow(std::abs(image[from + o * step]), p);
                      });
        }
        for (int64_t o = 0; o < outputs; ++o) out[o] = std::pow(out[o], 1 / p);
      }
    });
  });
}

Status CreateAveragePool(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGeometry(info, info.InputShape(0)));
  info.SetOutput(0, info.InputDType(0), g.output);
  DispatchDType<float, double>(
      info.InputDType(0), [&](auto tag) { SetAveragePool<typename decltype(tag)::type>(info, g); });
  return {};
}

Status CreateLpPool(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGeometry(info, info.InputShape(0)));
  if (info.Attr<int64_t>("p", 2) < 1) return info.Invalid("p of 1 or more expected");
  info.SetOutput(0, info.InputDType(0), g.output);
  DispatchDType<float, double>(info.InputDType(0),
                               [&](auto tag) { SetLpPool<typename decltype(tag)::type>(info, g); });
  return {};
}

}  // namespace

void RegisterPool(KernelRegistry& registry) {
  constexpr DTypeSet kWide = {DType::kFloat32, DType::kFloat64},
                     kHalf = {DType::kFloat16, DType::kBFloat16};
  registry.Add({.op_type = "MaxPool",
                .types = kWide | DTypeSet{DType::kInt8, DType::kUInt8},
                .create = CreateMaxPool});
  registry.Add({.op_type = "MaxPool", .types = kHalf, .create = ThroughFloat<CreateMaxPool>});
  registry.Add({.op_type = "AveragePool", .types = kWide, .create = CreateAveragePool});
  registry.Add(
      {.op_type = "AveragePool", .types = kHalf, .create = ThroughFloat<CreateAveragePool>});
  registry.Add({.op_type = "LpPool", .types = kWide, .create = CreateLpPool});
  registry.Add({.op_type = "LpPool", .types = kHalf, .create = ThroughFloat<CreateLpPool>});
}

}  // namespace caesura
