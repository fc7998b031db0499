// SPDX-License-Identifier: Apache-2.0
// Stands in for the CPU provider and for the passes in executor_tests, which leaves both out.
#include "core/kernels/kernel_registry.h"
#include "core/providers/cpu_provider.h"

#include "core/graph/pass.h"
#include "tests/core/execute/tiny_provider.h"

namespace caesura {

const std::vector<std::string>& PassNames() {
  static const auto* none = new std::vector<std::string>;
  return *none;
}

std::shared_ptr<const ExecutionProvider> MakeCpuProvider(
    const std::function<void(KernelRegistry&)>& more) {
  return std::make_shared<testing::TinyProvider>(nullptr, more);
}

}  // namespace caesura
