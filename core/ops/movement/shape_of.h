// SPDX-License-Identifier: Apache-2.0
// Shape and Size: they read no element, and are the same on every device, with outputs on the host.
#ifndef CAESURA_CORE_OPS_MOVEMENT_SHAPE_OF_H_
#define CAESURA_CORE_OPS_MOVEMENT_SHAPE_OF_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterShapes(KernelRegistry& registry);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_MOVEMENT_SHAPE_OF_H_
