// SPDX-License-Identifier: Apache-2.0
#include "core/graph/fingerprint.h"

#include <gtest/gtest.h>

#include <set>

#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

uint64_t Of(const std::string& node) {
  const Model model = ParseModelText(
                          "<ir_version: 10, opset_import: [\"\": 21]> g (float[2,2] x) "
                          "=> (float[2,2] y) { y = " +
                          node + " }")
                          .value();
  Hash hash;
  MixNode(hash, *model.graph->nodes().front());
  return hash.value();
}

TEST(Fingerprint, OfANodeIsItsOpAndAttributes) {
  EXPECT_EQ(Of("Softmax <axis = 1> (x)"), Of("Softmax <axis = 1> (x)"));
  const std::set<uint64_t> all = {
      Of("Softmax <axis = 1> (x)"),    Of("Softmax <axis = 0> (x)"),      Of("Softmax (x)"),
      Of("LogSoftmax <axis = 1> (x)"), Of("LeakyRelu <alpha = 0.5> (x)"), Of("LeakyRelu (x)")};
  EXPECT_EQ(all.size(), 6u);
}

TEST(Fingerprint, WordsAreApart) {
  Hash a, b;
  a.Mix("ab");
  a.Mix("c");
  b.Mix("a");
  b.Mix("bc");
  EXPECT_NE(a.value(), b.value());
}

}  // namespace
}  // namespace caesura
