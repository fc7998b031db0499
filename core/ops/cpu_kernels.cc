// SPDX-License-Identifier: Apache-2.0
#include "core/ops/cpu_kernels.h"

namespace caesura {

#define FAMILY(name, parts) parts
#define OPS(part)
#define CUDA(part)
#define CPU(part) void Register##part(KernelRegistry& registry);
#include "core/ops/families.inc"
#undef CPU

void RegisterCpuKernels(KernelRegistry& registry) {
#define CPU(part) Register##part(registry);
#include "core/ops/families.inc"
}

}  // namespace caesura
