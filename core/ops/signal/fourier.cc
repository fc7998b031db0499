// SPDX-License-Identifier: Apache-2.0
#include "core/ops/signal/fourier.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <numbers>

namespace caesura {
namespace {

using Complex = FourierTransform::Complex;

// e^(-2 pi i numerator / denominator)
Complex Root(int64_t numerator, int64_t denominator) {
  const double angle =
      -2 * std::numbers::pi * static_cast<double>(numerator) / static_cast<double>(denominator);
  return {std::cos(angle), std::sin(angle)};
}

// Plain multiplication: std::complex's own looks for infinities.
Complex Times(Complex a, Complex b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

void ReverseBits(Complex* data, int64_t n) {
  for (int64_t i = 1, j = 0; i < n; ++i) {
    int64_t bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(data[i], data[j]);
  }
}

}  // namespace

FourierTransform::FourierTransform(int64_t length, bool inverse)
    : length_(length), inverse_(inverse) {
  assert(1 <= length && length <= kMaxLength);
  const bool plain = std::has_single_bit(static_cast<uint64_t>(length));
  padded_ =
      plain ? length : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * length - 1)));
  roots_.resize(padded_ / 2);
  for (int64_t k = 0; k < padded_ / 2; ++k) roots_[k] = Root(k, padded_);
  if (plain) return;
  chirp_.resize(length);
  // k^2 modulo 2 length keeps the angle small and exact.
  for (int64_t k = 0; k < length; ++k) chirp_[k] = Root(k * k % (2 * length), 2 * length);
  filter_.assign(padded_, Complex{});
  for (int64_t k = 0; k < length; ++k) {
    filter_[k] = std::conj(chirp_[k]);
    if (k > 0) filter_[padded_ - k] = filter_[k];
  }
  RunRadix2(filter_.data(), false);
}

void FourierTransform::RunRadix2(Complex* data, bool conjugate) const {
  ReverseBits(data, padded_);
  for (int64_t half = 1; half < padded_; half *= 2) {
    const int64_t step = padded_ / (2 * half);
    for (int64_t start = 0; start < padded_; start += 2 * half) {
      for (int64_t k = 0; k < half; ++k) {
        const Complex root = conjugate ? std::conj(roots_[k * step]) : roots_[k * step];
        const Complex odd = Times(data[start + k + half], root);
        data[start + k + half] = data[start + k] - odd;
        data[start + k] += odd;
      }
    }
  }
}

void FourierTransform::Run(Complex* data, Complex* work) const {
  if (chirp_.empty()) {
    RunRadix2(data, inverse_);
  } else {
    // The inverse is the conjugate of the transform of the conjugate.
    for (int64_t k = 0; k < length_; ++k)
      work[k] = Times(inverse_ ? std::conj(data[k]) : data[k], chirp_[k]);
    std::fill(work + length_, work + padded_, Complex{});
    RunRadix2(work, false);
    for (int64_t k = 0; k < padded_; ++k) work[k] = Times(work[k], filter_[k]);
    RunRadix2(work, true);
    const double scale = 1.0 / static_cast<double>(padded_);
    for (int64_t k = 0; k < length_; ++k) {
      const Complex y = Times(work[k], chirp_[k]) * scale;
      data[k] = inverse_ ? std::conj(y) : y;
    }
  }
  if (!inverse_) return;
  const double scale = 1.0 / static_cast<double>(length_);
  for (int64_t k = 0; k < length_; ++k) data[k] *= scale;
}

}  // namespace caesura
