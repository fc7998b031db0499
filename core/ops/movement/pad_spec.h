// SPDX-License-Identifier: Apache-2.0
// Pad's pads and axes for a concrete shape; shared with PadGrad.
#ifndef CAESURA_CORE_OPS_MOVEMENT_PAD_SPEC_H_
#define CAESURA_CORE_OPS_MOVEMENT_PAD_SPEC_H_

#include <vector>

#include "core/kernels/walks/moves.h"

namespace caesura {

struct PadAmounts {
  std::vector<int64_t> before;  // elements before each axis; negative: so many are cropped
  Shape padded;
};

// Reads host inputs `pads` and `axes` (by index); `shape` is that of the unpadded tensor.
Result<PadAmounts> ReadPadAmounts(const KernelInfo& info, const Shape& shape, int pads, int axes);

// The elements of the unpadded tensor that the padded one holds, as they move there.
StridedBox PadBox(const Shape& shape, const PadAmounts& amounts);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_MOVEMENT_PAD_SPEC_H_
