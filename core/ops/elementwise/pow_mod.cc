// SPDX-License-Identifier: Apache-2.0
// Pow (base and exponent of different types) and Mod (floor and truncation).
#include <cmath>

#include "core/kernels/kernel_registry.h"
#include "core/ops/elementwise/binary_kernel.h"

namespace caesura {
namespace {

// By squaring, wrapping around; a negative exponent truncates 1 / base^n towards zero.
template <typename T, typename E>
T IntegerPower(T base, E exponent) {
  if constexpr (std::is_signed_v<E>) {
    if (exponent < 0) {
      if (base == 1) return 1;
      if (base == -1) return exponent % 2 == 0 ? T{1} : T{-1};
      return 0;
    }
  }
  auto factor = Wrapping(base);
  decltype(factor) product = 1;
  for (auto rest = static_cast<uint64_t>(exponent); rest != 0; rest >>= 1) {
    if (rest & 1u) product *= factor;
    factor *= factor;
  }
  return static_cast<T>(product);
}

// An integer base with a real exponent: the power in double, truncated; what does not fit is cut to
// the type's range.
template <typename T>
T TruncatedPower(T base, double exponent) {
  const double power = std::trunc(std::pow(static_cast<double>(base), exponent));
  if (std::isnan(power)) return 0;
  if (power >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  if (power <= static_cast<double>(std::numeric_limits<T>::lowest()))
    return std::numeric_limits<T>::lowest();
  return static_cast<T>(power);
}

struct PowOp {
  template <typename T, typename E>
  T operator()(T base, E exponent) const {
    if constexpr (std::is_floating_point_v<T>) {
      // float ** float stays float; a wider exponent (double, int32 and up) is not cut to float.
      using Real = std::conditional_t<std::is_same_v<E, float> || sizeof(E) <= 2, T, double>;
      return static_cast<T>(std::pow(static_cast<Real>(base), static_cast<Real>(exponent)));
    } else if constexpr (std::is_integral_v<E>) {
      return IntegerPower(base, exponent);
    } else {
      return TruncatedPower(base, static_cast<double>(exponent));
    }
  }
};

// A single exponent of 1, 2, 3 or -1, as in x^2 of every norm, is multiplied out. False: the
// general way.
template <typename T>
bool RunPlainPower(double exponent, int64_t count, int threads, const T* x, T* y) {
  auto run = [&](auto fn) {
    ParallelFor(threads, count, kParallelGrain, [&](int64_t first, int64_t last) {
#pragma omp simd
      for (int64_t i = first; i < last; ++i)
        y[i] = static_cast<T>(fn(static_cast<Accumulator<T>>(x[i])));
    });
    return true;
  };
  if (exponent == 1) return run([](auto v) { return v; });
  if (exponent == 2) return run([](auto v) { return v * v; });
  if (exponent == 3) return run([](auto v) { return v * v * v; });
  if (exponent == -1) return run([](auto v) { return 1 / v; });
  return false;
}

template <typename T, typename E>
void SetPowCompute(KernelInfo& info, const BinaryShape& shape) {
  const bool one_exponent = info.InputShape(1).elements() == 1;
  info.SetOutput(0, kDTypeOf<T>, shape.output);
  info.SetCompute(
      [plan = shape.plan, threads = info.threads(), one_exponent](KernelContext& context) {
        const T* x = context.Input<T>(0);
        const E* exponent = context.Input<E>(1);
        T* y = context.Output<T>(0);
        if constexpr (!std::is_integral_v<T>) {
          if (one_exponent &&
              RunPlainPower(static_cast<double>(*exponent), plan.elements, threads, x, y))
            return;
        }
        RunBinary<false>(plan, threads, x, exponent, y, PowOp());
      });
}

Status CreatePow(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastInputs(info));
  bool done = false;
  auto with_base = [&](auto base) {
    done = DispatchNumeric(info.InputDType(1), [&](auto exponent) {
      SetPowCompute<typename decltype(base)::type, typename decltype(exponent)::type>(info, shape);
    });
  };
  DispatchFloat(info.InputDType(0), with_base) ||
      DispatchDType<int32_t, int64_t>(info.InputDType(0), with_base);
  return done
             ? Status()
             : info.Refuse(std::string("has an exponent of type ") + DTypeName(info.InputDType(1)));
}

// a - floor(a / b) * b: the result has b's sign.
template <typename T>
T FloorMod(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const T rest = std::fmod(a, b);
    if (rest == 0) return std::copysign(T{0}, b);
    return (rest < 0) != (b < 0) ? rest + b : rest;
  } else {
    const T rest = static_cast<T>(a % b);
    return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
  }
}

Status CreateMod(KernelInfo& info) {
  const int64_t fmod = info.Attr<int64_t>("fmod", 0);
  if (fmod != 0 && fmod != 1)
    return info.Invalid("fmod: expected 0 or 1, got " + std::to_string(fmod));
  if (!IsInteger(info.InputDType(0))) {
    return fmod == 1 ? CreateFloatPair<[](auto a, auto b) { return std::fmod(a, b); }>(info)
                     : CreateFloatPair<[](auto a, auto b) { return FloorMod(a, b); }>(info);
  }
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  DispatchInteger(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto zero = [](T) { return T{0}; };
    if (fmod == 1) {
      SetDivisionCompute<T>(info, shape, [](T a, T b) { return a % b; }, zero);
    } else {
      SetDivisionCompute<T>(info, shape, [](T a, T b) { return FloorMod(a, b); }, zero);
    }
  });
  return {};
}

}  // namespace

void RegisterPowMod(KernelRegistry& registry) {
  registry.Add({.op_type = "Pow",
                .types = kFloatTypes | DTypeSet{DType::kInt32, DType::kInt64},
                .aliases = {MayReuse(0, 0)},
                .create = CreatePow});
  registry.Add({.op_type = "Mod",
                .types = kNumericTypes,
                .aliases = {MayReuse(0, 0), MayReuse(1, 0)},
                .create = CreateMod});
}

}  // namespace caesura
