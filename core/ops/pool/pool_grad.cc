// SPDX-License-Identifier: Apache-2.0
// MaxPoolGrad (dY, X), AveragePoolGrad (dY, X), LpPoolGrad (dY, X, Y), GlobalMaxPoolGrad (dY, X) ->
// dX.
#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/pool/pool_window.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// The first maximum of a window takes its gradient.
template <typename T>
void SetMaxPoolGrad(KernelInfo& info, const PoolGeometry& g) {
  const Window3 w(g.seen);
  const int64_t outputs = w.OutputCount(), inputs = w.InputCount(), images = g.images;
  const size_t places = info.BookScratch(images * outputs * sizeof(int32_t));
  const size_t maxima = info.BookScratch(images * outputs * sizeof(T));
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    const T *dy = context.Input<T>(0), *x = context.Input<T>(1);
    T *dx = context.Output<T>(0), *y = context.Scratch<T>(maxima);
    int32_t* at = context.Scratch<int32_t>(places);
    ParallelFor(threads, images, PoolGrain(w), [=](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        int32_t* place = at + i * outputs;
        T* image = dx + i * inputs;
        MaxOfWindows(w, x + i * inputs, y + i * outputs, place);
        std::fill_n(image, inputs, T(0));
        for (int64_t o = 0; o < outputs; ++o) {
          if (place[o] >= 0) image[place[o]] += dy[i * outputs + o];
        }
      }
    });
  });
}

Status CreateMaxPoolGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGradGeometry(info));
  if (g.window.InputCount() > std::numeric_limits<int32_t>::max())
    return info.Refuse("an image beyond 2^31 elements");
  DispatchDType<float, double>(
      info.InputDType(0), [&](auto tag) { SetMaxPoolGrad<typename decltype(tag)::type>(info, g); });
  return {};
}

// Each element of a window takes an equal share.
template <typename T>
void SetAveragePoolGrad(KernelInfo& info, const PoolGeometry& g) {
  const Window3 w(g.seen);
  const int64_t outputs = w.OutputCount(), inputs = w.InputCount(), images = g.images;
  const int threads = info.threads();
  const bool include_pad = info.Attr<int64_t>("count_include_pad", 0) != 0;
  info.SetCompute(
      [=, factors = WindowReciprocals<T>(g.window, include_pad)](KernelContext& context) {
        const T* dy = context.Input<T>(0);
        T* dx = context.Output<T>(0);
        ParallelFor(threads, images, PoolGrain(w), [&](int64_t first, int64_t last) {
          for (int64_t i = first; i < last; ++i) {
            const T *from_dy = dy + i * outputs, *factor = factors.data();
            T* image = dx + i * inputs;
            std::fill_n(image, inputs, T(0));
            for (int64_t k = 0; k < w.KernelCount(); ++k) {
              ForEachLine(w, k,
                          [=](int64_t line, int64_t begin, int64_t end, int64_t at, int64_t step) {
                            for (int64_t o = begin; o < end; ++o)
                              image[at + o * step] += from_dy[line + o] * factor[line + o];
                          });
            }
          }
        });
      });
}

Status CreateAveragePoolGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGradGeometry(info));
  DispatchDType<float, double>(info.InputDType(0), [&](auto tag) {
    SetAveragePoolGrad<typename decltype(tag)::type>(info, g);
  });
  return {};
}

// Y = (sum |X|^p)^(1/p): dX = dY * sign(X) * (|X| / Y)^(p - 1); nothing where Y = 0.
template <typename T>
void SetLpPoolGrad(KernelInfo& info, const PoolGeometry& g) {
  const Window3 w(g.seen);
  const int64_t outputs = w.OutputCount(), inputs = w.InputCount(), images = g.images;
  const int threads = info.threads();
  const T power = static_cast<T>(info.Attr<int64_t>("p", 2) - 1);
  info.SetCompute([=](KernelContext& context) {
    const T *dy = context.Input<T>(0), *x = context.Input<T>(1), *y = context.Input<T>(2);
    T* dx = context.Output<T>(0);
    ParallelFor(threads, images, PoolGrain(w), [=](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const T *in = x + i * inputs, *norm = y + i * outputs, *d = dy + i * outputs;
        T* image = dx + i * inputs;
        std::fill_n(image, inputs, T(0));
        for (int64_t k = 0; k < w.KernelCount(); ++k) {
          ForEachLine(w, k,
                      [=](int64_t line, int64_t begin, int64_t end, int64_t at, int64_t step) {
                        for (int64_t o = begin; o < end; ++o) {
                          const T v = in[at + o * step], n = norm[line + o];
                          if (n == T(0) || v == T(0)) continue;
                          image[at + o * step] +=
                              d[line + o] * std::copysign(std::pow(std::abs(v) / n, power), v);
                        }
                      });
        }
      }
    });
  });
}

Status CreateLpPoolGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGradGeometry(info));
  if (info.InputShape(2) != g.output) return info.Invalid("Y of dY's shape expected");
  DispatchDType<float, double>(
      info.InputDType(0), [&](auto tag) { SetLpPoolGrad<typename decltype(tag)::type>(info, g); });
  return {};
}

Status CreateGlobalMaxPoolGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const GlobalPoolShape shape, MakeGlobalPoolGradShape(info));
  const int64_t rows = shape.images, count = shape.count;
  const int threads = info.threads();
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=](KernelContext& context) {
      const T *dy = context.Input<T>(0), *in = context.Input<T>(1);
      T* dx = context.Output<T>(0);
      ParallelFor(threads, rows, 1 + kParallelGrain / (count + 1),
                  [=](int64_t first, int64_t last) {
                    for (int64_t r = first; r < last; ++r) {
                      const T* image = in + r * count;
                      int64_t best = 0;
                      for (int64_t i = 1; i < count; ++i) {
                        const bool nan = image[i] != image[i] && image[best] == image[best];
                        if (image[i] > image[best] || nan) best = i;
                      }
                      const T d = dy[r];  // dX may lie over X, not over dY
                      std::fill_n(dx + r * count, count, T(0.0f));
                      if (count > 0) dx[r * count + best] = d;
                    }
                  });
    });
  });
  return {};
}

}  // namespace

void RegisterPoolGrad(KernelRegistry& registry) {
  constexpr DTypeSet kWide = {DType::kFloat32, DType::kFloat64},
                     kHalf = {DType::kFloat16, DType::kBFloat16};
  auto add = [&](const char* op, KernelFactory wide, KernelFactory half) {
    registry.Add({.op_type = op, .domain = kCaesuraDomain, .types = kWide, .create = wide});
    registry.Add({.op_type = op, .domain = kCaesuraDomain, .types = kHalf, .create = half});
  };
  add("MaxPoolGrad", CreateMaxPoolGrad, ThroughFloat<CreateMaxPoolGrad>);
  add("AveragePoolGrad", CreateAveragePoolGrad, ThroughFloat<CreateAveragePoolGrad>);
  add("LpPoolGrad", CreateLpPoolGrad, ThroughFloat<CreateLpPoolGrad>);
  registry.Add({.op_type = "GlobalMaxPoolGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(1, 0)},
                .create = CreateGlobalMaxPoolGrad});
}

}  // namespace caesura
