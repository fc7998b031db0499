// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_CORE_KERNELS_WALKS_BROADCAST_STRIDES_H_
#define CAESURA_CORE_KERNELS_WALKS_BROADCAST_STRIDES_H_

#include <cstdint>

#include "core/tensor/tensor.h"

namespace caesura {

// The strides with which `operand` is walked as if it had the shape `output`: 0 where it repeats.
// False when it does not broadcast to it. `strides` has room for output.rank() entries.
bool BroadcastStrides(const Shape& operand, const Shape& output, int64_t* strides);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_BROADCAST_STRIDES_H_
