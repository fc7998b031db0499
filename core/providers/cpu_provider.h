// SPDX-License-Identifier: Apache-2.0
// The CPU provider: host memory and the kernels of core/ops.
#ifndef CAESURA_CORE_PROVIDERS_CPU_PROVIDER_H_
#define CAESURA_CORE_PROVIDERS_CPU_PROVIDER_H_

#include <functional>
#include <memory>

#include "core/providers/execution_provider.h"

namespace caesura {

inline constexpr char kCpuProviderName[] = "CPUExecutionProvider";

// `more` adds kernels after the built-in ones (a test's, a user's); it may be empty.
std::shared_ptr<const ExecutionProvider> MakeCpuProvider(
    const std::function<void(KernelRegistry&)>& more = {});

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_CPU_PROVIDER_H_
