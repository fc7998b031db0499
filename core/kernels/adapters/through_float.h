// SPDX-License-Identifier: Apache-2.0
// Runs a float32 kernel on float16 or bfloat16 tensors: inputs are widened into scratch memory,
// outputs narrowed.
#ifndef CAESURA_CORE_KERNELS_ADAPTERS_THROUGH_FLOAT_H_
#define CAESURA_CORE_KERNELS_ADAPTERS_THROUGH_FLOAT_H_

#include "core/kernels/kernel.h"

namespace caesura {

// Creates the kernel of `factory` for the node as if every half-precision input were float32; each
// float32 output becomes the half type, unless the attribute `dtype` asks for float32. The
// factory finds no value of such an input. Refuses where it sizes an output at run time.
Status CreateThroughFloat(KernelInfo& info, KernelFactory factory);

// As a factory: `.types = {DType::kFloat16}, .create = ThroughFloat<CreateConv>`.
template <KernelFactory factory>
Status ThroughFloat(KernelInfo& info) {
  return CreateThroughFloat(info, factory);
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_ADAPTERS_THROUGH_FLOAT_H_
