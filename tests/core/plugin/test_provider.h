/* SPDX-License-Identifier: Apache-2.0
 * What the plug-in test_provider.c counts in all instances since it was loaded: indices into the
 * int array that it exports as "test_provider_count".
 */
#ifndef CAESURA_TESTS_CORE_PLUGIN_TEST_PROVIDER_H_
#define CAESURA_TESTS_CORE_PLUGIN_TEST_PROVIDER_H_

enum TestProviderCount {
  kInstances, /* alive */
  kCompiled,  /* alive */
  kCompiles,
  kCompiledNodes,
  kRuns,
  kBuffers, /* alive in the memory of its own */
  kToDevice,
  kToHost,
  kThreads, /* of the last compile */
  kTestProviderCounts
};

#endif /* CAESURA_TESTS_CORE_PLUGIN_TEST_PROVIDER_H_ */
