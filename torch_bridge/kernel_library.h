// SPDX-License-Identifier: Apache-2.0
// libcaesura_torch hands these to a program that opens it at run time and does not link it (the
// Python package does so).
#ifndef CAESURA_TORCH_BRIDGE_KERNEL_LIBRARY_H_
#define CAESURA_TORCH_BRIDGE_KERNEL_LIBRARY_H_

#include <functional>
#include <memory>

#include "core/distributed/communicator.h"
#include "core/kernels/kernel_registry.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// Adds the library's kernels (aten_op.h), and makes its operators known to PyTorch
// (captured_call.h). Null when done; otherwise, with nothing added, why not, in a static string.
// `torch_version`: of the PyTorch that is in the process
// ("2.13.0+cpu"), whose minor version must be the one that the library was built with, since C++
// classes of both meet.
using TorchKernelsFunction = const char*(const char* torch_version, KernelRegistry* registry);
inline constexpr char kTorchKernelsName[] = "CaesuraTorchKernels";

// MakeTorchProvider of torch_provider.h, or, where a device is named, MakeTorchDeviceProvider.
// REQUIRES: CaesuraTorchKernels has accepted the PyTorch that is there.
using TorchProviderFunction = Result<std::shared_ptr<const ExecutionProvider>>(
    const std::string& device, const std::function<void(KernelRegistry&)>& more);
inline constexpr char kTorchProviderFunctionName[] = "CaesuraTorchProvider";

// C10dCommunicator of c10d_communicator.h. REQUIRES: likewise.
using TorchCommunicatorFunction =
    Result<std::unique_ptr<Communicator>>(const std::string& group_name);
inline constexpr char kTorchCommunicatorFunctionName[] = "CaesuraTorchCommunicator";

// CurrentTorchStream of torch_stream.h. REQUIRES: likewise.
using TorchStreamFunction = Result<void*>(Device device);
inline constexpr char kTorchStreamFunctionName[] = "CaesuraTorchStream";

// AllocateByTorch of torch_stream.h. REQUIRES: likewise.
using TorchMemoryFunction = Result<std::shared_ptr<void>>(Device device, size_t bytes);
inline constexpr char kTorchMemoryFunctionName[] = "CaesuraTorchMemory";

}  // namespace caesura

// C names; both sides are C++.
extern "C" caesura::TorchKernelsFunction CaesuraTorchKernels;
extern "C" caesura::TorchProviderFunction CaesuraTorchProvider;
extern "C" caesura::TorchCommunicatorFunction CaesuraTorchCommunicator;
extern "C" caesura::TorchStreamFunction CaesuraTorchStream;
extern "C" caesura::TorchMemoryFunction CaesuraTorchMemory;

#endif  // CAESURA_TORCH_BRIDGE_KERNEL_LIBRARY_H_
