// SPDX-License-Identifier: Apache-2.0
// RandomUniform, RandomNormal, their -Like forms, Bernoulli and Multinomial. Dropout is in
// dropout.cc. All numbers come from Philox by the element's index. An attribute `seed` takes the
// place of the session's seed.
#include <cmath>
#include <limits>
#include <numbers>

#include "core/base/status_macros.h"
#include "core/ops/random/philox.h"
#include "core/ops/random/random_seed.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/float_math.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

constexpr int64_t kRandomGrain = kParallelGrain / 8;

// --- distributions: the elements [first, last) of a subsequence ---

struct Uniform {
  double low, high;
  explicit Uniform(const KernelInfo& info)
      : low(info.Attr<float>("low", 0.0f)), high(info.Attr<float>("high", 1.0f)) {}

  template <typename T>
  void Fill(const Philox& philox, int64_t first, int64_t last, T* y) const {
    if constexpr (std::is_same_v<T, double>) {
      for (int64_t i = first; i < last; ++i) {
        const Philox::Block words = philox.At(static_cast<uint64_t>(i / 2));
        y[i] = low + (high - low) * UniformDouble(words[i % 2 * 2], words[i % 2 * 2 + 1]);
      }
    } else {
      constexpr int kBits = std::is_same_v<T, float> ? 24 : std::is_same_v<T, Float16> ? 11 : 8;
      const float base = static_cast<float>(low), width = static_cast<float>(high - low);
      ForEachWordTile(philox, first, last, [=](int64_t at, const uint32_t* words, int64_t count) {
        for (int64_t j = 0; j < count; ++j)
          y[at + j] = Narrow<T>(base + width * UniformFloat(words[j], kBits));
      });
    }
  }
};

// Box and Muller: elements 2j and 2j + 1 are r cos(a) and r sin(a), with r = sqrt(-2 ln u) and a =
// 2 pi v.
struct Normal {
  double mean, scale;
  explicit Normal(const KernelInfo& info)
      : mean(info.Attr<float>("mean", 0.0f)), scale(info.Attr<float>("scale", 1.0f)) {}

  template <typename T>
  void Fill(const Philox& philox, int64_t first, int64_t last, T* y) const {
    if constexpr (std::is_same_v<T, double>) {
      FillDoubles(philox, first, last, y);
    } else {
      FillFloats(philox, first, last, y);
    }
  }

  // One block makes two elements.
  void FillDoubles(const Philox& philox, int64_t first, int64_t last, double* y) const {
    for (int64_t i = first / 2 * 2; i < last; i += 2) {
      const Philox::Block words = philox.At(static_cast<uint64_t>(i / 2));
      const double radius = std::sqrt(-2 * std::log(1 - UniformDouble(words[0], words[1])));
      const double angle = 2 * std::numbers::pi * UniformDouble(words[2], words[3]);
      if (i >= first) y[i] = mean + scale * radius * std::cos(angle);
      if (i + 1 < last) y[i + 1] = mean + scale * radius * std::sin(angle);
    }
  }

  // Two words make two elements. Tiles start at whole blocks; what lies outside of [first, last) is
  // dropped.
  template <typename T>
  void FillFloats(const Philox& philox, int64_t first, int64_t last, T* y) const {
    uint32_t words[kWordTile];
    float normals[kWordTile];
    const float m = static_cast<float>(mean), s = static_cast<float>(scale);
    for (int64_t at = first / 4 * 4; at < last; at += kWordTile) {
      philox.Fill(static_cast<uint64_t>(at / 4), kWordTile / 4, words);
      OnBestIsa([&] { BoxMuller(words, normals); });
      const int64_t from = std::max(first, at), to = std::min(last, at + kWordTile);
      for (int64_t i = from; i < to; ++i) y[i] = Narrow<T>(m + s * normals[i - at]);
    }
  }

  static void BoxMuller(const uint32_t* words, float* normals) {
#pragma omp simd
    for (int64_t j = 0; j < kWordTile; j += 2) {
      const float u = (static_cast<float>(words[j]) + 1.0f) * 0x1p-32f;  // in (0, 1]
      const float radius = std::sqrt(-2.0f * math::Log(u));
      float sine, cosine;
      math::SinCosOfTurns(static_cast<float>(words[j + 1]) * 0x1p-32f, &sine, &cosine);
      normals[j] = radius * cosine;
      normals[j + 1] = radius * sine;
    }
  }
};

// --- factories ---

template <typename Distribution>
Status SettleRandom(KernelInfo& info, DType dtype, Shape shape) {
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t count = shape.elements();
    info.SetOutput(0, dtype, shape);
    info.SetCompute([count, threads = info.threads(), seed = SeedOverride(info),
                     distribution = Distribution(info)](KernelContext& context) {
      const Philox philox(seed.Apply(context.random_key()));
      T* y = context.Output<T>(0);
      ParallelFor(threads, count, kRandomGrain,
                  [&](int64_t first, int64_t last) { distribution.Fill(philox, first, last, y); });
    });
  };
  if (DispatchFloat(dtype, set)) return {};
  return info.Refuse(std::string("makes no random ") + DTypeName(dtype));
}

// The attribute `dtype`, or `fallback`.
DType AskedType(const KernelInfo& info, DType fallback) {
  const int64_t dtype = info.Attr<int64_t>("dtype", static_cast<int64_t>(fallback));
  return dtype > 0 && dtype < kDTypeCount ? static_cast<DType>(dtype) : DType::kUndefined;
}

template <typename Distribution>
Status CreateRandom(KernelInfo& info) {
  const DType dtype = AskedType(info, DType::kFloat32);
  ASSIGN_OR_RETURN(Shape shape,
                   CheckDims(info, info.Attr<std::vector<int64_t>>("shape", {}), dtype));
  return SettleRandom<Distribution>(info, dtype, std::move(shape));
}

template <typename Distribution>
Status CreateRandomLike(KernelInfo& info) {
  return SettleRandom<Distribution>(info, AskedType(info, info.InputDType(0)), info.InputShape(0));
}

// y[i] = 1 with probability x[i].
template <typename T, typename Y>
void SetBernoulliCompute(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, kDTypeOf<Y>, info.InputShape(0));
  info.SetCompute([count, threads = info.threads(),
                   seed = SeedOverride(info)](KernelContext& context) {
    const Philox philox(seed.Apply(context.random_key()));
    const T* x = context.Input<T>(0);
    Y* y = context.Output<Y>(0);
    ParallelFor(threads, count, kRandomGrain, [&](int64_t first, int64_t last) {
      ForEachWordTile(philox, first, last, [=](int64_t at, const uint32_t* words, int64_t count) {
        for (int64_t j = 0; j < count; ++j) {
          const bool one = UniformFloat(words[j]) < Widen(x[at + j]);
          y[at + j] = one ? static_cast<Y>(1) : static_cast<Y>(0);
        }
      });
    });
  });
}

Status CreateBernoulli(KernelInfo& info) {
  bool done = false;
  DispatchFloat(info.InputDType(0), [&](auto from) {
    auto set = [&](auto to) {
      SetBernoulliCompute<typename decltype(from)::type, typename decltype(to)::type>(info);
    };
    const DType dtype = AskedType(info, info.InputDType(0));
    done = DispatchNumeric(dtype, set) || DispatchDType<bool>(dtype, set);
  });
  return done ? Status() : info.Refuse("has an unexpected type");
}

// The running sums of softmax-like weights e^(x - max) of one row.
template <typename T>
void CumulativeWeights(const T* x, int64_t classes, double* sums) {
  double highest = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < classes; ++c) highest = std::max(highest, static_cast<double>(x[c]));
  double total = 0;
  for (int64_t c = 0; c < classes; ++c)
    sums[c] = total += std::exp(static_cast<double>(x[c]) - highest);
}

template <typename T, typename Y>
void SetMultinomialCompute(KernelInfo& info, int64_t samples) {
  const int64_t rows = info.InputShape(0)[0], classes = info.InputShape(0)[1];
  const size_t scratch = info.BookScratch(static_cast<size_t>(classes) * sizeof(double));
  info.SetOutput(0, kDTypeOf<Y>, Shape{rows, samples});
  info.SetCompute(
      [=, seed = SeedOverride(info), label = info.node().Label()](KernelContext& context) {
        const Philox philox(seed.Apply(context.random_key()));
        double* sums = context.Scratch<double>(scratch);
        for (int64_t row = 0; row < rows; ++row) {
          CumulativeWeights(context.Input<T>(0) + row * classes, classes, sums);
          const double total = sums[classes - 1];
          if (!(total > 0))
            return InvalidArgument(label + " row " + std::to_string(row) + " holds no probability");
          for (int64_t i = row * samples; i < (row + 1) * samples; ++i) {
            const Philox::Block words = philox.At(static_cast<uint64_t>(i));
            const double* at =
                std::upper_bound(sums, sums + classes, total * UniformDouble(words[0], words[1]));
            context.Output<Y>(0)[i] = static_cast<Y>(std::min<int64_t>(at - sums, classes - 1));
          }
        }
        return Status();
      });
}

Status CreateMultinomial(KernelInfo& info) {
  RETURN_IF_ERROR(CheckRank(info, 0, 2));
  const int64_t samples = info.Attr<int64_t>("sample_size", 1);
  if (samples < 1)
    return info.Invalid("sample_size: expected at least 1, got " + std::to_string(samples));
  if (info.InputShape(0)[1] == 0) return info.Invalid("expected at least one class");
  bool done = false;
  DispatchFloat(info.InputDType(0), [&](auto from) {
    done = DispatchDType<int32_t, int64_t>(AskedType(info, DType::kInt32), [&](auto to) {
      SetMultinomialCompute<typename decltype(from)::type, typename decltype(to)::type>(info,
                                                                                        samples);
    });
  });
  return done ? Status() : info.Refuse("has an unexpected type");
}

struct RandomRow {
  const char* op_type;
  DTypeSet types;  // of input 0, where there is one
  KernelFactory create;
};

constexpr RandomRow kRows[] = {
    {"RandomUniform", kAllTypes, CreateRandom<Uniform>},
    {"RandomNormal", kAllTypes, CreateRandom<Normal>},
    {"RandomUniformLike", kAllTypes, CreateRandomLike<Uniform>},
    {"RandomNormalLike", kAllTypes, CreateRandomLike<Normal>},
    {"Bernoulli", kFloatTypes, CreateBernoulli},
    {"Multinomial", kFloatTypes, CreateMultinomial},
};

}  // namespace

void RegisterRandom(KernelRegistry& registry) {
  for (const RandomRow& row : kRows) {
    registry.Add(
        {.op_type = row.op_type, .types = row.types, .deterministic = false, .create = row.create});
  }
}

}  // namespace caesura
