// SPDX-License-Identifier: Apache-2.0
#include "training/command/value_compare.h"

#include <cmath>
#include <complex>
#include <cstdio>
#include <limits>
#include <vector>

namespace caesura::command {
namespace {

double FromSmallFloat(DType dtype, uint8_t bits) {
  switch (dtype) {
    case DType::kFloat8E4M3FN: return SmallFloatToFloat(bits, kE4M3FN);
    case DType::kFloat8E4M3FNUZ: return SmallFloatToFloat(bits, kE4M3FNUZ);
    case DType::kFloat8E5M2: return SmallFloatToFloat(bits, kE5M2);
    case DType::kFloat8E5M2FNUZ: return SmallFloatToFloat(bits, kE5M2FNUZ);
    case DType::kFloat4E2M1: return SmallFloatToFloat(bits, kE2M1);
    case DType::kFloat8E8M0: return bits == 0xff ? std::nan("") : std::ldexp(1.0, bits - 127);
    case DType::kInt4:
    case DType::kInt2: return static_cast<int8_t>(bits);
    default: return bits;  // uint4, uint2
  }
}

// Any numeric tensor as complex numbers.
std::vector<std::complex<double>> Numbers(const Tensor& tensor) {
  std::vector<std::complex<double>> out;
  out.reserve(static_cast<size_t>(tensor.elements()));
  const auto read = [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < tensor.elements(); ++i)
      out.emplace_back(static_cast<double>(tensor.data<T>()[i]));
  };
  const auto read_complex = [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < tensor.elements(); ++i) out.emplace_back(tensor.data<T>()[i]);
  };
  if (DispatchNumeric(tensor.dtype(), read) || DispatchDType<bool>(tensor.dtype(), read))
    return out;
  if (DispatchDType<std::complex<float>, std::complex<double>>(tensor.dtype(), read_complex))
    return out;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    out.emplace_back(FromSmallFloat(tensor.dtype(), tensor.data<uint8_t>()[i]));
  }
  return out;
}

bool IsNan(const std::complex<double>& x) { return std::isnan(x.real()) || std::isnan(x.imag()); }

bool IsClose(const std::complex<double>& got, const std::complex<double>& want,
             const Tolerance& tolerance) {
  if (got == want) return true;  // infinities too
  if (IsNan(got) || IsNan(want)) return IsNan(got) && IsNan(want);
  const double distance = std::abs(got - want);
  return std::isfinite(distance) &&
         distance <= tolerance.absolute + tolerance.relative * std::abs(want);
}

std::string Text(const std::complex<double>& x) {
  char text[80];
  if (x.imag() == 0) std::snprintf(text, sizeof(text), "%.9g", x.real());
  else std::snprintf(text, sizeof(text), "%.9g%+.9gi", x.real(), x.imag());
  return text;
}

std::string TensorDifference(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  if (got.shape() != want.shape())
    return "shape " + got.shape().ToString() + ", expected " + want.shape().ToString();
  if (got.dtype() != want.dtype()) {
    return std::string("dtype ") + DTypeName(got.dtype()) + ", expected " + DTypeName(want.dtype());
  }
  const int64_t count = want.elements();
  if (want.dtype() == DType::kString) {
    for (int64_t i = 0; i < count; ++i) {
      const std::string &a = got.data<std::string>()[i], &b = want.data<std::string>()[i];
      if (a != b) return "'" + a + "' for '" + b + "'";
    }
    return "";
  }
  const auto ours = Numbers(got), theirs = Numbers(want);
  int64_t differing = 0, first = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (IsClose(ours[i], theirs[i], tolerance)) continue;
    if (differing++ == 0) first = i;
  }
  if (differing == 0) return "";
  return std::to_string(differing) + " of " + std::to_string(count) + " differ, e.g. " +
         Text(ours[first]) + " for " + Text(theirs[first]);
}

}  // namespace

std::string Difference(const RuntimeValue& got, const RuntimeValue& want,
                       const Tolerance& tolerance, const std::string& path) {
  if (!got.has_value() || !want.has_value()) {
    return got.has_value() == want.has_value() ? "" : path + ": one of the two is empty";
  }
  if (want.is_tensor()) {
    if (!got.is_tensor()) return path + ": " + got.Describe() + ", expected a tensor";
    const std::string difference = TensorDifference(got.tensor(), want.tensor(), tolerance);
    return difference.empty() ? "" : path + ": " + difference;
  }
  const size_t count = want.sequence().size();
  if (!got.is_sequence() || got.sequence().size() != count) {
    return path + ": expected a sequence of " + std::to_string(count);
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string part = path + "[" + std::to_string(i) + "]";
    const std::string difference =
        Difference(got.sequence()[i], want.sequence()[i], tolerance, part);
    if (!difference.empty()) return difference;
  }
  return "";
}

}  // namespace caesura::command
