// SPDX-License-Identifier: Apache-2.0
// RotaryEmbedding (pairs of a head's elements turned by a position's angle) and SwiGLU (A *
// sigmoid(alpha A) * B).
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// X as [batch, positions, heads, size] by strides.
struct Rotary {
  int64_t batch, positions, heads, size, half;  // half: pairs that are turned
  int64_t batch_stride, position_stride, head_stride;
  int64_t angles;  // rows of the caches
  bool interleaved, has_ids;
};

template <typename T>
void TurnHead(const Rotary& r, const T* x, const T* cosine, const T* sine, T* y) {
  using Acc = Accumulator<T>;
  const int64_t step = r.interleaved ? 2 : 1, second = r.interleaved ? 1 : r.half;
  for (int64_t i = 0; i < r.half; ++i) {
    const Acc a = x[i * step], b = x[i * step + second], c = cosine[i], s = sine[i];
    y[i * step] = T(c * a - s * b);
    y[i * step + second] = T(s * a + c * b);
  }
  for (int64_t i = 2 * r.half; i < r.size; ++i) y[i] = x[i];
}

template <typename T>
void SetRotary(KernelInfo& info, const Rotary& r) {
  const int threads = info.threads();
  info.SetCompute([=, label = info.node().Label()](KernelContext& context) -> Status {
    const T *x = context.Input<T>(0), *cosine = context.Input<T>(1), *sine = context.Input<T>(2);
    const int64_t* ids = r.has_ids ? context.Input<int64_t>(3) : nullptr;
    T* y = context.Output<T>(0);
    for (int64_t i = 0; ids != nullptr && i < r.batch * r.positions; ++i) {
      if (ids[i] < 0 || ids[i] >= r.angles) {
        return InvalidArgument(label + " position " + std::to_string(ids[i]) + " is outside [0, " +
                               std::to_string(r.angles) + ")");
      }
    }
    if (r.heads == 0 || r.size == 0) return {};
    ParallelFor(threads, r.batch * r.positions, 1 + kParallelGrain / (3 * r.heads * r.size + 1),
                [=](int64_t first, int64_t last) {
                  for (int64_t i = first; i < last; ++i) {
                    const int64_t at =
                        i / r.positions * r.batch_stride + i % r.positions * r.position_stride;
                    const int64_t angle = (ids == nullptr ? i : ids[i]) * r.half;
                    for (int64_t h = 0; h < r.heads; ++h) {
                      const int64_t head = at + h * r.head_stride;
                      TurnHead(r, x + head, cosine + angle, sine + angle, y + head);
                    }
                  }
                });
    return {};
  });
}

Result<Rotary> MakeRotary(const KernelInfo& info) {
  const Shape &x = info.InputShape(0), &cosine = info.InputShape(1);
  Rotary r{};
  if (x.rank() == 4) {
    r = {x[0], x[2], x[1], x[3], 0, x[1] * x[2] * x[3], x[3], x[2] * x[3], 0, false, false};
  } else if (x.rank() == 3) {
    const int64_t heads = info.Attr<int64_t>("num_heads", 0);
    if (heads <= 0 || x[2] % heads != 0)
      return info.Invalid("num_heads must divide the last dim of " + x.ToString());
    r = {x[0], x[1], heads, x[2] / heads, 0, x[1] * x[2], x[2], x[2] / heads, 0, false, false};
  } else {
    return info.Invalid("X of rank 3 or 4 expected, got " + x.ToString());
  }
  const int64_t turned = info.Attr<int64_t>("rotary_embedding_dim", 0);
  if (turned < 0 || turned > r.size) return info.Invalid("rotary_embedding_dim must fit the head");
  if ((turned == 0 ? r.size : turned) % 2 != 0)
    return info.Invalid("an even number of turned elements expected");
  r.half = (turned == 0 ? r.size : turned) / 2;
  r.interleaved = info.Attr<int64_t>("interleaved", 0) != 0;
  r.has_ids = info.HasInput(3);
  const Shape expected = r.has_ids ? Shape{cosine.rank() == 2 ? cosine[0] : 0, r.half}
                                   : Shape{r.batch, r.positions, r.half};
  r.angles = expected[0];
  if (cosine != expected || info.InputShape(2) != expected) {
    return info.Invalid("caches of shape " + expected.ToString() + " expected, got " +
                        cosine.ToString());
  }
  if (r.has_ids &&
      (info.InputShape(3) != Shape{r.batch, r.positions} || info.InputDType(3) != DType::kInt64)) {
    return info.Invalid("int64 position_ids [batch, positions] expected");
  }
  return r;
}

Status CreateRotary(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Rotary r, MakeRotary(info));
  for (int i : {1, 2}) RETURN_IF_ERROR(CheckDType(info, i, {info.InputDType(0)}));
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  DispatchFloat(info.InputDType(0),
                [&](auto tag) { SetRotary<typename decltype(tag)::type>(info, r); });
  return {};
}

Status CreateSwiGlu(KernelInfo& info) {
  if (info.InputShape(1) != info.InputShape(0))
    return info.Invalid("A and B of one shape expected");
  RETURN_IF_ERROR(CheckDType(info, 1, {info.InputDType(0)}));
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  const int64_t count = info.InputShape(0).elements();
  const float alpha = info.Attr<float>("alpha", 1.0f);
  const int threads = info.threads();
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Accumulator<T>;
    info.SetCompute([=](KernelContext& context) {
      const T *a = context.Input<T>(0), *b = context.Input<T>(1);
      T* y = context.Output<T>(0);
      ParallelFor(threads, count, kParallelGrain / 16, [=](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const Acc v = a[i];
          y[i] = T(v / (1 + std::exp(-static_cast<Acc>(alpha) * v)) * Acc(b[i]));
        }
      });
    });
  });
  return {};
}

}  // namespace

void RegisterRotary(KernelRegistry& registry) {
  registry.Add({.op_type = "RotaryEmbedding", .types = kFloatTypes, .create = CreateRotary});
  registry.Add({.op_type = "SwiGLU",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0), MayReuse(1, 0)},
                .create = CreateSwiGlu});
}

}  // namespace caesura
