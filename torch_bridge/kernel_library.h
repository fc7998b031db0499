// SPDX-License-Identifier: Apache-2.0
// What libcaesura_torch hands to a program that opens it in the run and does not link it (the Python package does so).
#ifndef CAESURA_TORCH_BRIDGE_KERNEL_LIBRARY_H_
#define CAESURA_TORCH_BRIDGE_KERNEL_LIBRARY_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

// Adds the library's kernels (aten_op.h). Null when done; otherwise, with nothing added, why not, in a static string.
// `torch_version`: of the PyTorch that is in the process ("2.13.0+cpu"), which must be the release that the library was
// built with, since C++ classes of both meet.
using TorchKernelsFunction = const char*(const char* torch_version, KernelRegistry* registry);
inline constexpr char kTorchKernelsName[] = "CaesuraTorchKernels";

}  // namespace caesura

extern "C" caesura::TorchKernelsFunction CaesuraTorchKernels;

#endif  // CAESURA_TORCH_BRIDGE_KERNEL_LIBRARY_H_
