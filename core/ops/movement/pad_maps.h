// SPDX-License-Identifier: Apache-2.0
// Pad's attributes and inputs as one index table an axis; shared with PadGrad.
#ifndef CAESURA_CORE_OPS_MOVEMENT_PAD_MAPS_H_
#define CAESURA_CORE_OPS_MOVEMENT_PAD_MAPS_H_

#include "core/kernels/walks/mapped_copy.h"

namespace caesura {

// Reads attribute `mode` and host inputs `pads` and `axes` (by index); `shape` is that of the
// unpadded tensor. Negative pads crop first; what they leave is then padded.
Result<std::vector<AxisMap>> ResolvePad(const KernelInfo& info, const Shape& shape, int pads,
                                        int axes);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_MOVEMENT_PAD_MAPS_H_
