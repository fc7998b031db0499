// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/walks/broadcast_strides.h"

#include <algorithm>

namespace caesura {

bool BroadcastStrides(const Shape& operand, const Shape& output, int64_t* strides) {
  const int lead = output.rank() - operand.rank();
  if (lead < 0) return false;
  std::fill_n(strides, lead, int64_t{0});
  int64_t stride = 1;
  for (int d = output.rank() - 1; d >= lead; --d) {
    const int64_t dim = operand[d - lead];
    if (dim != output[d] && dim != 1) return false;
    strides[d] = dim == 1 ? 0 : stride;
    stride *= dim;
  }
  return true;
}

}  // namespace caesura
