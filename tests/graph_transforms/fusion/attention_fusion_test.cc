// SPDX-License-Identifier: Apache-2.0
// attention_fusion: which graphs become Attention, and the same numbers as without the pass.
#include "graph_transforms/fusion/attention_fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"

namespace caesura {
namespace {

struct AttentionCase {
  const char* name;
  std::string body;  // from q, k, v and others to y
  bool fuses = true;
  const char* inputs = "float[2,4,6,8] q, float[2,4,6,8] k, float[2,4,6,5] v";
};
void PrintTo(const AttentionCase& c, std::ostream* out) { *out << c.name; }

const std::vector<AttentionCase>& AttentionFusionCases() {
  const std::string scores = "t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) ";
  const std::string mask =
      R"(shape = Constant <value_ints = [6, 6]> () one = Constant <value_float = 1.0> ()
    ones = Expand (one, shape) lower = Trilu <upper = 0> (ones) nil = Constant <value_float = 0.0> ()
    hidden = Equal (lower, nil) low = Constant <value_float = -3.4e38> () mask = Where (hidden, low, nil) )";
  const std::string end = " y = MatMul (p, v)";
  const char* biased = "float[2,4,6,8] q, float[2,4,6,8] k, float[2,4,6,5] v, float[2,1,6,6] bias";
  static const std::vector<AttentionCase> kCases = {
      {"Plain", scores + "p = Softmax <axis = -1> (s)" + end},
      // The scale computed from a shape, its root at both sides, and the transpose through three
      // dims.
      {"AsExported",
       R"(dims = Shape (q) last = Constant <value_int = -1> () size = Gather (dims, last) wide = Cast <to = 1> (size)
          root = Sqrt (wide) unit = Constant <value_float = 1.0> () scale = Div (unit, root) half = Sqrt (scale)
          three = Constant <value_ints = [-1, 6, 8]> () flat = Reshape (k, three)
          swapped = Transpose <perm = [0, 2, 1]> (flat) four = Constant <value_ints = [2, 4, 8, 6]> ()
          t = Reshape (swapped, four) a = Mul (q, half) b = Mul (half, t) s = MatMul (a, b) p = Softmax <axis = 3> (s))" +
           end},
      // The scale as TorchScript's exporter computes it.
      {"ScaleOfSlicedShape",
       R"(dims = Shape (q) last = Constant <value_ints = [-1]> () end = Constant <value_ints = [9223372036854775807]> ()
          size = Slice (dims, last, end) wide = Cast <to = 1> (size) root = Sqrt (wide)
          unit = Constant <value_floats = [1.0]> () scale = Div (unit, root) half = Sqrt (scale)
          t = Transpose <perm = [0, 1, 3, 2]> (k) a = Mul (q, half) b = Mul (t, half) s = MatMul (a, b) p = Softmax (s))" +
           end},
      // As PyTorch's exporter writes it with a mask: the first two queries see nothing.
      {"ZerosForNaN",
       scores +
           R"(shape = Constant <value_ints = [6, 6]> () one = Constant <value_float = 1.0> () ones = Expand (one, shape)
          two = Constant <value_int = -2> () lower = Trilu <upper = 0> (ones, two) nil = Constant <value_float = 0.0> ()
          low = Constant <value_float = -inf> () hidden = Equal (lower, nil) mask = Where (hidden, low, nil)
          m = Add (s, mask) w = Softmax (m) bad = IsNaN (w) p = Where (bad, nil, w))" +
           end},
      {"OnesForNaN",
       scores +
           R"(one = Constant <value_float = 1.0> () w = Softmax (s) bad = IsNaN (w) p = Where (bad, one, w))" +
           end,
       false},
      {"CausalMask", scores + mask + "m = Add (s, mask) p = Softmax (m)" + end},
      {"CausalByWhere", scores + mask +
                            "root = Constant <value_float = 2.5> () d = Div (s, root) m = Where "
                            "(hidden, low, d) p = Softmax (m)" +
                            end},
      {"ScoresBehindWhere",
       scores + mask + "seen = Not (hidden) m = Where (seen, s, low) p = Softmax (m)" + end},
      {"MaskThatIsFed", scores + "m = Add (bias, s) p = Softmax (m)" + end, true, biased},
      {"KeysOfGroups",
       R"(two = Constant <value_ints = [2]> () g = Constant <value_ints = [2, 2, 3, 6, 8]> ()
          h = Constant <value_ints = [2, 2, 3, 6, 5]> () kh = Constant <value_ints = [2, 6, 6, 8]> ()
          vh = Constant <value_ints = [2, 6, 6, 5]> () k5 = Unsqueeze (k, two) ke = Expand (k5, g) kr = Reshape (ke, kh)
          v5 = Unsqueeze (v, two) ve = Expand (v5, h) vr = Reshape (ve, vh) t = Transpose <perm = [0, 1, 3, 2]> (kr)
          s = MatMul (q, t) p = Softmax (s) y = MatMul (p, vr))",
       true, "float[2,6,6,8] q, float[2,2,6,8] k, float[2,2,6,5] v"},
      {"KeysOfGroupsThroughThreeDims",
       R"(two = Constant <value_ints = [2]> () g = Constant <value_ints = [2, 2, 3, 6, 8]> ()
          h = Constant <value_ints = [2, 2, 3, 6, 5]> () three = Constant <value_ints = [12, 6, 8]> ()
          four = Constant <value_ints = [2, 6, 8, 6]> () vh = Constant <value_ints = [2, 6, 6, 5]> ()
          k5 = Unsqueeze (k, two) ke = Expand (k5, g) flat = Reshape (ke, three)
          swapped = Transpose <perm = [0, 2, 1]> (flat) t = Reshape (swapped, four)
          v5 = Unsqueeze (v, two) ve = Expand (v5, h) vr = Reshape (ve, vh)
          s = MatMul (q, t) p = Softmax (s) y = MatMul (p, vr))",
       true, "float[2,6,6,8] q, float[2,2,6,8] k, float[2,2,6,5] v"},
      {"OtherAxis", scores + "p = Softmax <axis = 2> (s)" + end, false},
      {"ProbabilitiesReadTwice",
       scores + "p = Softmax (s) z = MatMul (p, v) e = ReduceMax (p) y = Add (z, e)", false},
      {"SomethingBetween", scores + "m = Add (s, bias) n = Neg (m) p = Softmax (n)" + end, false,
       biased},
      {"ThreeDims", "t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, t) p = Softmax (s)" + end,
       false, "float[4,6,8] q, float[4,6,8] k, float[4,6,5] v"},
  };
  return kCases;
}

Model Parse(const AttentionCase& c) {
  Model model = ParseModelText("<ir_version: 10, opset_import: [\"\": 23]>\ng (" +
                               std::string(c.inputs) + ") => (float y) {" + c.body + "}")
                    .value();
  model.graph->outputs()[0]->set_type(ValueType::Tensor(DType::kFloat32));
  EXPECT_TRUE(InferShapes(model).ok());
  return model;
}

std::unique_ptr<Session> SessionOf(const AttentionCase& c, std::vector<std::string> disabled) {
  SessionOptions options;
  options.providers = {MakeCpuProvider()};
  options.passes = InferencePasses;
  options.disabled_passes = std::move(disabled);
  return Session::Create(Parse(c), std::move(options)).value();
}

class AttentionFusion : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionFusion, LeavesTheNumbersAsTheyAre) {
  const AttentionCase& c = GetParam();
  const auto fused = SessionOf(c, {}), plain = SessionOf(c, {"attention_fusion"});
  bool found = false;
  for (const auto& node : fused->model().graph->nodes()) found |= node->Is("Attention");
  EXPECT_EQ(found, c.fuses);
  NamedValues feeds;
  for (const Value* input : fused->inputs()) {
    const Tensor x = Tensor::Zeros(DType::kFloat32, *input->type().ConcreteShape());
    for (int64_t i = 0; i < x.elements(); ++i) {
      x.data<float>()[i] =
          std::sin(0.7f * static_cast<float>(i) + static_cast<float>(feeds.size()));
    }
    feeds[input->name()] = x;
  }
  const Tensor a = fused->Run(feeds).value()[0].tensor(), b = plain->Run(feeds).value()[0].tensor();
  ASSERT_EQ(a.shape(), b.shape());
  for (int64_t i = 0; i < a.elements(); ++i)
    EXPECT_NEAR(a.data<float>()[i], b.data<float>()[i], 2e-6) << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionFusion, ::testing::ValuesIn(AttentionFusionCases()),
                         [](const auto& info) { return info.param.name; });

// As captured PyTorch writes them: the op is there, its keys and values are repeated in front of
// it.
TEST(AttentionFusionPass, AttentionTakesKeysOfGroupsUnrepeated) {
  const auto fused_inputs = [](const std::string& outputs) {
    Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 23]>
      g (float[2,6,6,8] q, float[2,2,6,8] k, float[2,2,6,5] v) => (float[2,6,6,5] y)
        <int64[5] k1 = {2, 2, 1, 6, 8}, int64[5] v1 = {2, 2, 1, 6, 5}, int64[5] k3 = {2, 2, 3, 6, 8},
         int64[5] v3 = {2, 2, 3, 6, 5}, int64[4] kh = {2, 6, 6, 8}, int64[4] vh = {2, 6, 6, 5}> {
        k5 = Reshape (k, k1) ke = Expand (k5, k3) kr = Reshape (ke, kh)
        v5 = Reshape (v, v1) ve = Expand (v5, v3) vr = Reshape (ve, vh) )" +
                                 outputs + " = Attention (q, kr, vr) }")
                      .value();
    EXPECT_TRUE(InferShapes(model).ok());
    EXPECT_TRUE(RunPasses({MakeAttentionFusionPass({})}, model).ok());
    const Node& attention = *model.graph->nodes().back();
    return std::vector<std::string>{attention.input(1)->name(), attention.input(2)->name()};
  };
  EXPECT_THAT(fused_inputs("y"), ::testing::ElementsAre("k", "v"));
  EXPECT_THAT(fused_inputs("y, keys, values"),
              ::testing::ElementsAre("kr", "vr"));  // which are handed out
}

TEST(AttentionFusionPass, MasksThatAreTrainedStay) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 23]>
    g (float[2,4,6,8] q, float[2,4,6,8] k, float[2,4,6,5] v) => (float[2,4,6,5] y) <float[1] slope = {0.5}> {
      t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) places = Constant <value_floats = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]> ()
      two = Constant <value_ints = [1, 6]> () row = Reshape (places, two) bias = Mul (row, slope) m = Add (s, bias)
      p = Softmax (m) y = MatMul (p, v) })")
                    .value();
  ASSERT_TRUE(InferShapes(model).ok());
  Model other = model.Clone();
  ASSERT_TRUE(RunPasses({MakeAttentionFusionPass({"slope"})}, model).ok());
  ASSERT_TRUE(RunPasses({MakeAttentionFusionPass({})}, other).ok());
  EXPECT_EQ(model.graph->nodes().back()->op_type(), "MatMul");
  EXPECT_EQ(other.graph->nodes().back()->op_type(), "Attention");
}

}  // namespace
}  // namespace caesura
