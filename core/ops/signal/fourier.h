// SPDX-License-Identifier: Apache-2.0
// Discrete Fourier transforms of any length in double: radix 2 for powers of two, Bluestein's
// algorithm (a convolution by longer transforms of a power of two) for the rest. O(n log n) always.
//
// Thread safety: const; a transform works in the caller's buffers.
#ifndef CAESURA_CORE_OPS_SIGNAL_FOURIER_H_
#define CAESURA_CORE_OPS_SIGNAL_FOURIER_H_

#include <complex>
#include <cstdint>
#include <vector>

namespace caesura {

class FourierTransform {
 public:
  using Complex = std::complex<double>;

  // REQUIRES: 1 <= length <= kMaxLength.
  FourierTransform(int64_t length, bool inverse);

  static constexpr int64_t kMaxLength = int64_t{1} << 26;

  int64_t length() const { return length_; }
  // Elements of the `work` buffer.
  int64_t work_size() const { return chirp_.empty() ? 0 : padded_; }
  // data[k] becomes sum over n of e^(-+2 pi i k n / length) data[n], divided by the length for the
  // inverse.
  void Run(Complex* data, Complex* work) const;

 private:
  // In place over padded_ (a power of two) elements; `conjugate` takes the other direction,
  // unscaled.
  void RunRadix2(Complex* data, bool conjugate) const;

  int64_t length_;
  bool inverse_;
  int64_t padded_;               // the power of two that is transformed
  std::vector<Complex> roots_;   // e^(-2 pi i k / padded), k < padded / 2
  std::vector<Complex> chirp_;   // e^(-pi i k^2 / length); empty for powers of two
  std::vector<Complex> filter_;  // transform of the conjugate chirp
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_SIGNAL_FOURIER_H_
