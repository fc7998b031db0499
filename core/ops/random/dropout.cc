// SPDX-License-Identifier: Apache-2.0
// Dropout. Element i is kept when its random word is at least ratio * 2^32, and then multiplied by
// 1 / (1 - ratio). Ratio and training_mode are read in each run; without training, or with ratio 0,
// the data passes through.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/ops/random/philox.h"
#include "core/ops/random/random_seed.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/parallel.h"

namespace caesura {
namespace {

constexpr int64_t kDropoutGrain = kParallelGrain / 4;

struct DropoutJob {
  int64_t count;
  int threads;
  bool has_ratio, has_mode, has_mask;
  DType ratio_dtype = DType::kFloat32;
  SeedOverride seed;
  std::string label;
};

double ReadRatio(const DropoutJob& job, KernelContext& context) {
  if (!job.has_ratio) return 0.5;
  double ratio = 0;
  DispatchFloat(job.ratio_dtype, [&](auto tag) {
    using R = typename decltype(tag)::type;
    ratio = static_cast<double>(Widen(*context.Input<R>(1)));
  });
  return ratio;
}

template <typename T>
void PassThrough(const DropoutJob& job, const T* x, T* y, bool* mask) {
  if (x != y) std::copy_n(x, job.count, y);
  if (mask != nullptr) std::fill_n(mask, job.count, true);
}

template <typename T, typename A>
void DropRow(const uint32_t* words, uint32_t threshold, A scale, const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const A scaled = Widen(x[j]) * scale;
    y[j] = Narrow<T>(words[j] >= threshold ? scaled : A{0});
  }
}

// `mask` may be null; `y` may be `x`.
template <typename T>
void Drop(const DropoutJob& job, const Philox& philox, double ratio, const T* x, T* y, bool* mask) {
  using A = Accumulator<T>;
  // Ratio 1 drops all: the scale is 0 then, and so is the mask below.
  const auto threshold =
      static_cast<uint32_t>(std::min<int64_t>(std::llround(ratio * 0x1p32), 0xffffffff));
  const A scale = static_cast<A>(ratio < 1 ? 1 / (1 - ratio) : 0.0);
  const bool keeps = ratio < 1;
  ParallelFor(job.threads, job.count, kDropoutGrain, [=, &philox](int64_t first, int64_t last) {
    ForEachWordTile(philox, first, last, [=](int64_t at, const uint32_t* words, int64_t count) {
      DropRow(words, threshold, scale, x + at, y + at, count);
      if (mask == nullptr) return;
      for (int64_t j = 0; j < count; ++j) mask[at + j] = keeps & (words[j] >= threshold);
    });
  });
}

template <typename T>
void SetDropoutCompute(KernelInfo& info, DropoutJob job) {
  info.SetCompute([job = std::move(job)](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    bool* mask = job.has_mask ? context.Output<bool>(1) : nullptr;
    const bool training = job.has_mode && *context.Input<bool>(2);
    const double ratio = training ? ReadRatio(job, context) : 0.0;
    if (!(ratio >= 0 && ratio <= 1)) {
      return InvalidArgument(job.label + " ratio: expected a value in [0, 1], got " +
                             std::to_string(ratio));
    }
    if (ratio == 0) {
      PassThrough(job, x, y, mask);
    } else {
      Drop(job, Philox(job.seed.Apply(context.random_key())), ratio, x, y, mask);
    }
    return Status();
  });
}

Status CreateDropout(KernelInfo& info) {
  DropoutJob job{info.InputShape(0).elements(),
                 info.threads(),
                 info.HasInput(1),
                 info.HasInput(2),
                 info.HasOutput(1),
                 DType::kFloat32,
                 SeedOverride(info),
                 info.node().Label()};
  for (int i = 1; i <= 2; ++i) {
    if (info.HasInput(i) && info.InputShape(i).elements() != 1) {
      return info.Invalid("ratio, training_mode: expected scalars, got shape " +
                          info.InputShape(i).ToString());
    }
  }
  if (job.has_ratio) job.ratio_dtype = info.InputDType(1);
  if (!kFloatTypes.Contains(job.ratio_dtype)) return info.Refuse("has a ratio of an 8-bit type");
  if (job.has_mode && info.InputDType(2) != DType::kBool)
    return info.Invalid("training_mode: expected a bool");
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  info.SetOutput(1, DType::kBool, info.InputShape(0));
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    SetDropoutCompute<typename decltype(tag)::type>(info, std::move(job));
  });
  return {};
}

}  // namespace

void RegisterDropout(KernelRegistry& registry) {
  registry.Add({.op_type = "Dropout",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .deterministic = false,
                .create = CreateDropout});
}

}  // namespace caesura
