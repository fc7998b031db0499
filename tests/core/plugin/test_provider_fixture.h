// SPDX-License-Identifier: Apache-2.0
// The plug-in test_provider.c in tests: made by name, and what it has counted.
#ifndef CAESURA_TESTS_CORE_PLUGIN_TEST_PROVIDER_FIXTURE_H_
#define CAESURA_TESTS_CORE_PLUGIN_TEST_PROVIDER_FIXTURE_H_

#include <dlfcn.h>

#include <array>
#include <memory>
#include <string>

#include "core/plugin/plugin_library.h"
#include "core/plugin/plugin_provider.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/plugin/test_provider.h"
#include "tests/test_paths.h"

namespace caesura::testing {

// "TestExecutionProvider" or "FarExecutionProvider".
inline Result<std::shared_ptr<const ExecutionProvider>> TryTestProvider(
    const ProviderOptions& options = {}, const std::string& name = "TestExecutionProvider") {
  auto library = LoadPluginLibrary(kTestProvider);
  if (!library.ok()) return library.status();
  for (const CaesuraProvider& provider : library->providers) {
    if (name == provider.name) return MakePluginProvider(provider, options);
  }
  return NotFound(name);
}

// In front of the CPU's.
inline ProviderList WithTestProvider(const ProviderOptions& options = {},
                                     const std::string& name = "TestExecutionProvider") {
  return {TryTestProvider(options, name).value(), MakeCpuProvider()};
}

using TestProviderCounts = std::array<int, kTestProviderCounts>;

inline TestProviderCounts CountsOfTestProvider() {
  TestProviderCounts out;
  void* library = dlopen(kTestProvider, RTLD_NOW | RTLD_NOLOAD);
  const auto* counts =
      library == nullptr ? nullptr : static_cast<const int*>(dlsym(library, "test_provider_count"));
  for (size_t i = 0; i < out.size(); ++i) out[i] = counts == nullptr ? 0 : counts[i];
  if (library != nullptr) dlclose(library);
  return out;
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_PLUGIN_TEST_PROVIDER_FIXTURE_H_
