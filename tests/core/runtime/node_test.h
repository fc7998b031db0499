// SPDX-License-Identifier: Apache-2.0
// One of the ONNX node tests, run with providers of the caller's.
#ifndef CAESURA_TESTS_CORE_RUNTIME_NODE_TEST_H_
#define CAESURA_TESTS_CORE_RUNTIME_NODE_TEST_H_

#include <algorithm>
#include <string>

#include "core/files/file_system.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/value_reader.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {

// Strings by what they say; all else bit for bit.
inline bool SameResult(const RuntimeValue& a, const RuntimeValue& b) {
  const bool strings = a.is_tensor() && b.is_tensor() && a.tensor().dtype() == DType::kString;
  if (!strings || b.tensor().dtype() != DType::kString) return SameBits(a, b);
  const std::string *of_a = a.tensor().data<std::string>(), *of_b = b.tensor().data<std::string>();
  return a.tensor().shape() == b.tensor().shape() &&
         std::equal(of_a, of_a + a.tensor().elements(), of_b);
}

struct NodeTestRun {
  Result<Values> results;
  bool fell_back;
};

// `folder`: of the test. `fallback`: whether a provider that fails is replaced.
inline NodeTestRun RunNodeTest(const std::string& folder, const ProviderList& providers,
                               bool fallback = true) {
  SessionOptions options;
  options.providers = providers;
  options.fallback = fallback;
  options.passes = InferencePasses;
  options.threads = 1;
  auto model = ReadModel(folder + "/model.onnx");
  if (!model.ok()) return {model.status(), false};
  auto session = Session::Create(*std::move(model), std::move(options));
  if (!session.ok()) return {session.status(), false};
  NamedValues feeds;
  for (size_t i = 0; i < (*session)->inputs().size(); ++i) {
    const std::string path = folder + "/test_data_set_0/input_" + std::to_string(i) + ".pb";
    if (!PosixFileSystem().Exists(path).value()) continue;
    const Value* input = (*session)->inputs()[i];
    const std::string bytes = ReadWholeFile(PosixFileSystem(), path, size_t{1} << 31).value();
    auto value = ReadValueBytes(bytes, input->type());
    if (!value.ok()) return {value.status(), false};
    feeds[input->name()] = *std::move(value);
  }
  NodeTestRun outcome{(*session)->Run(feeds), false};
  outcome.fell_back = (*session)->fallback().record().has_value();
  return outcome;
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_RUNTIME_NODE_TEST_H_
