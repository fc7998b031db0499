// SPDX-License-Identifier: Apache-2.0
// Runs a kernel that reads dense inputs on inputs of any layout: those that are not dense are
// copied into scratch memory.
#ifndef CAESURA_CORE_KERNELS_ADAPTERS_THROUGH_DENSE_H_
#define CAESURA_CORE_KERNELS_ADAPTERS_THROUGH_DENSE_H_

#include "core/kernels/kernel.h"

namespace caesura {

// Creates the kernel of `factory` for the node as if every input were dense. Refuses where an
// output is to be written otherwise. REQUIRES: the factory sizes no output at run time.
Status CreateThroughDense(KernelInfo& info, KernelFactory factory);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_ADAPTERS_THROUGH_DENSE_H_
