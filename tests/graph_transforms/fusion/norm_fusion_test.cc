// SPDX-License-Identifier: Apache-2.0
// norm_fusion: which graphs become RMSNormalization, and the same numbers as without the pass.
#include "graph_transforms/fusion/norm_fusion.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"

namespace caesura {
namespace {

struct NormCase {
  const char* name;
  const char* body;  // from x [2,3,16] and w [16] to y
  bool fuses = true;
};
void PrintTo(const NormCase& c, std::ostream* out) { *out << c.name; }

constexpr char kMean[] =
    "q = Pow (x, two) m = ReduceMean (q, last) v = Add (m, tiny) s = Sqrt (v) ";

const std::vector<NormCase>& NormCases() {
  static const std::vector<NormCase> kCases = {
      {"Reciprocal", "r = Reciprocal (s) n = Mul (x, r) y = Mul (n, w)"},
      {"ScaleFirst", "r = Reciprocal (s) n = Mul (r, x) y = Mul (w, n)"},
      {"Division", "n = Div (x, s) y = Mul (n, w)"},
      {"ReadTwice", "n = Div (x, s) z = Mul (n, w) y = Add (z, n)", false},
      {"OtherWayUp", "n = Div (s, x) y = Mul (n, w)", false},
      {"OfAnother", "a = Neg (x) n = Div (a, s) y = Mul (n, w)", false},
      {"NoRow", "n = Div (x, s) u = Reshape (w, column) y = Mul (n, u)", false},
  };
  return kCases;
}

std::unique_ptr<Session> SessionOf(const NormCase& c, const std::string& mean,
                                   std::vector<std::string> disabled,
                                   const std::string& type = "float") {
  Model model =
      ParseModelText("<ir_version: 10, opset_import: [\"\": 23]> g (" + type + "[2,3,16] x, " +
                     type + "[16] w) => (" + type + "[2,N,16] y) <" + type + " two = {2}, " + type +
                     " tiny = {0.001}, int64[1] last = {-1}, "
                     "int64[3] column = {1, 1, 16}> {" +
                     mean + c.body + "}")
          .value();
  EXPECT_TRUE(InferShapes(model).ok());
  SessionOptions options;
  options.passes = InferencePasses;
  options.disabled_passes = std::move(disabled);
  return Session::Create(std::move(model), std::move(options)).value();
}

bool Fused(const Session& session) {
  // Fusion of rows may have put it into a body.
  for (const auto& node : session.model().graph->nodes()) {
    if (node->Is("RMSNormalization")) return true;
    for (const Graph* body : node->Subgraphs()) {
      for (const auto& inner : body->nodes()) {
        if (inner->Is("RMSNormalization")) return true;
      }
    }
  }
  return false;
}

class NormFusion : public ::testing::TestWithParam<NormCase> {};

TEST_P(NormFusion, LeavesTheNumbersAsTheyAre) {
  const auto fused = SessionOf(GetParam(), kMean, {}),
             plain = SessionOf(GetParam(), kMean, {"norm_fusion"});
  EXPECT_EQ(Fused(*fused), GetParam().fuses);
  EXPECT_FALSE(Fused(*plain));
  Tensor x = Tensor::Zeros(DType::kFloat32, Shape{2, 3, 16}),
         w = Tensor::Zeros(DType::kFloat32, Shape{16});
  for (int i = 0; i < 96; ++i) x.data<float>()[i] = std::sin(0.7f * static_cast<float>(i)) + 0.01f;
  for (int i = 0; i < 16; ++i) w.data<float>()[i] = 1 + 0.1f * static_cast<float>(i);
  const Tensor a = fused->Run({{"x", x}, {"w", w}}).value()[0].tensor();
  const Tensor b = plain->Run({{"x", x}, {"w", w}}).value()[0].tensor();
  for (int i = 0; i < 96; ++i) {
    EXPECT_NEAR(a.data<float>()[i], b.data<float>()[i], 2e-6f * std::fabs(b.data<float>()[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, NormFusion, ::testing::ValuesIn(NormCases()),
                         [](const auto& i) { return i.param.name; });

TEST(NormFusionPass, AMeanOverAnotherAxisStays) {
  const char* mean =
      "q = Mul (x, x) first = Constant <value_ints = [1]> () m = ReduceMean (q, first) v = Add "
      "(tiny, m) "
      "s = Sqrt (v) ";
  EXPECT_FALSE(Fused(*SessionOf(NormCases()[2], mean, {})));
  const char* last =
      "q = Mul (x, x) two_th = Constant <value_ints = [2]> () m = ReduceMean (q, two_th) "
      "v = Add (tiny, m) s = Sqrt (v) ";
  EXPECT_TRUE(Fused(*SessionOf(NormCases()[2], last, {})));
}

TEST(NormFusionPass, AMeanOfAnotherProductStays) {
  const char* mean =
      "z = Exp (x) q = Mul (x, z) m = ReduceMean (q, last) v = Add (m, tiny) s = Sqrt (v) ";
  EXPECT_FALSE(Fused(*SessionOf(NormCases()[2], mean, {})));
}

// RMSNormalization would round 0.001 to a float.
TEST(NormFusionPass, DoublesStay) {
  EXPECT_FALSE(Fused(*SessionOf(NormCases()[0], kMean, {}, "double")));
}

}  // namespace
}  // namespace caesura
