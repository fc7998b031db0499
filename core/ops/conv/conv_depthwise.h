// SPDX-License-Identifier: Apache-2.0
// Convolutions whose groups have one channel each, in float32: planes are read where they lie, no
// other layout is made.
#ifndef CAESURA_CORE_OPS_CONV_CONV_DEPTHWISE_H_
#define CAESURA_CORE_OPS_CONV_CONV_DEPTHWISE_H_

#include <vector>

#include "core/kernels/kernel.h"
#include "core/kernels/windows/conv_geometry.h"

namespace caesura {

// One direction of such a convolution over one or two axes. Results do not depend on the number of
// threads. Thread safety: Run may be called from many threads.
class DepthwiseConv {
 public:
  // Sizes of one spatial axis, or of the two.
  struct Axis {
    int64_t input = 1, kernel = 1, output = 1, stride = 1, dilation = 1, pad = 0;
    // The places before a window's own that its last tap reaches back by, in steps.
    int64_t reach() const { return (kernel - 1) * dilation / stride; }
  };

  static bool Serves(const ConvGeometry& geometry);
  // REQUIRES: Serves(geometry).
  static DepthwiseConv Make(KernelInfo& info, ConvDirection direction,
                            const ConvGeometry& geometry);

  void Run(KernelContext& context, const float* a, const float* b, const float* bias,
           float* out) const;

 private:
  template <typename R>
  class Worker;
  // The reads for a product, from the first sum's place on.
  struct Tap {
    int64_t offset, weight;
  };
  // The part of the source whose places in the padded plane leave one remainder: `rows` x `columns`
  // of them from the dst's place `from` on go to the source from `to` on.
  struct Residue {
    std::vector<Tap> taps;
    int64_t from, to, rows, columns;
  };
  Residue MakeResidue(int64_t row, int64_t column) const;

  ConvDirection direction_ = ConvDirection::kForward;
  Axis rows_, columns_;
  int64_t batch_ = 0, channels_ = 0, multiplier_ = 1;  // outputs a channel
  std::vector<Tap> taps_;                              // of a window
  std::vector<Residue> residues_;                      // backward data
  int threads_ = 1;
  int64_t floats_ = 0;  // of a thread's memory
  size_t scratch_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_CONV_CONV_DEPTHWISE_H_
