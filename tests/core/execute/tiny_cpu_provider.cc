// SPDX-License-Identifier: Apache-2.0
// Stands in for the CPU provider in executor_tests, which leaves out the CPU kernels.
#include "core/providers/cpu_provider.h"

#include "tests/core/execute/tiny_provider.h"

namespace caesura {

std::shared_ptr<const ExecutionProvider> MakeCpuProvider(
    const std::function<void(KernelRegistry&)>& more) {
  return std::make_shared<testing::TinyProvider>(nullptr, more);
}

}  // namespace caesura
