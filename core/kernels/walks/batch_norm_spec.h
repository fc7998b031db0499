// SPDX-License-Identifier: Apache-2.0
// The attributes of BatchNormalization, BatchNormalizationTraining and BatchNormalizationGrad, read
// for every device; and tensors as [N, C, positions].
#ifndef CAESURA_CORE_KERNELS_WALKS_BATCH_NORM_SPEC_H_
#define CAESURA_CORE_KERNELS_WALKS_BATCH_NORM_SPEC_H_

#include <cstdint>

#include "core/base/status.h"
#include "core/kernels/kernel.h"

namespace caesura {

struct ChannelView {
  int64_t batch, channels, positions;
  int64_t per_channel() const { return batch * positions; }
  int64_t elements() const { return batch * channels * positions; }
};

// Axis 1 is the channel; a vector is one channel.
inline ChannelView MakeChannelView(const Shape& x) {
  if (x.rank() < 2) return {x.elements(), 1, 1};
  return {x[0], x[1], x.Elements(2, x.rank())};
}

// The input must be a vector of `count` numbers.
Status CheckChannelVector(const KernelInfo& info, int input, int64_t count);

// The dtypes of the parameters (scale and bias) and of the statistics differ from X's in mixed
// precision.
struct BatchNormSpec {
  ChannelView view;
  DType parameter_type, stat_type;
  double epsilon = 1e-5, momentum = 0.9;
  double correction = 1;  // of the variance that goes into the running one
  bool training = false;  // normalizes by the batch's own statistics
  bool wanted[5] = {};    // by output
};

// Each checks the node's inputs and sets its outputs.
Result<BatchNormSpec> MakeBatchNormSpec(KernelInfo& info);
Result<BatchNormSpec> MakeBatchNormTrainingSpec(KernelInfo& info);
Result<BatchNormSpec> MakeBatchNormGradSpec(KernelInfo& info);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_BATCH_NORM_SPEC_H_
