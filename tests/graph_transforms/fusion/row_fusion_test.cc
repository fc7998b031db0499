// SPDX-License-Identifier: Apache-2.0
// row_fusion after matmul_epilogue: which nodes are left, and the same numbers as without the
// passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/plan/execution_plan.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/fusion/matmul_epilogue.h"
#include "graph_transforms/fusion/row_fusion.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;

struct FusionCase {
  const char* name;
  const char* inputs;
  const char* body;
  const char* outputs;
  std::vector<std::string> left;  // op types after the passes
  bool sums = false;              // sums over rows: another order of additions
  std::map<std::string, int64_t> dims = {};
};
void PrintTo(const FusionCase& c, std::ostream* out) { *out << c.name; }

const std::vector<FusionCase>& FusionCases() {
  static const std::vector<FusionCase> kCases = {
      {"Bias",
       "float[N,4] x, float[4,6] w, float[6] b",
       "p = MatMul(x, w) y = Add(p, b)",
       "float[N,6] y",
       {"FusedMatMul"}},
      {"BiasOnTheLeft",
       "float[3,4] x, float[4,6] w, float[6] b",
       "p = MatMul(x, w) y = Add(b, p)",
       "float[3,6] y",
       {"FusedMatMul"}},
      {"BiasAndResidual",
       "float[2,3,4] x, float[4,6] w, float[6] b, float[2,3,6] r",
       "p = MatMul(x, w) q = Add(p, b) y = Add(r, q)",
       "float[2,3,6] y",
       {"FusedMatMul"}},
      {"LargeBiasAndResidual",
       "float[40,50] x, float[50,60] w, float[60] b, float[40,60] r",
       "p = MatMul(x, w) q = Add(p, b) y = Add(r, q)",
       "float[40,60] y",
       {"FusedMatMul"}},
      {"ProductReadTwice",
       "float[3,4] x, float[4,6] w, float[6] b",
       "p = MatMul(x, w) q = Add(p, b) y = Mul(q, p)",
       "float[3,6] y",
       {"MatMul", "FusedRows"}},
      {"SumOfProducts",
       "float[3,4] x, float[4,6] w",
       "p = MatMul(x, w) q = MatMul(x, w) y = Add(p, q)",
       "float[3,6] y",
       {"MatMul", "FusedMatMul"}},
      {"BroadcastProductStays",
       "float[1,4] x, float[4,6] w, float[3,6] r",
       "p = MatMul(x, w) y = Add(p, r)",
       "float[3,6] y",
       {"MatMul", "Add"}},
      {"Silu",
       "float[N,T,5] x",
       "s = Sigmoid(x) y = Mul(x, s)",
       "float[N,T,5] y",
       {"FusedRows"},
       false,
       {{"N", 3}, {"T", 7}}},
      {"TwoOutputs",
       "float[6,5] x, float[5] b",
       "a = Add(x, b) e = Exp(a) y = Mul(e, x)",
       "float[6,5] y, float[6,5] a",
       {"FusedRows"}},
      {"RmsNorm",
       "float[2,300,64] x, float[64] g, float e",
       R"(q = Mul(x, x) m = ReduceMean(q, last) v = Add(m, e) s = Sqrt(v) n = Div(x, s) y = Mul(n, g))",
       "float[2,300,64] y",
       {"FusedRows"}},
      {"SoftmaxOfScaled",
       "float[4,9,33] x, float k",
       "a = Mul(x, k) y = Softmax(a)",
       "float[4,9,33] y",
       {"FusedRows"}},
      {"RowsOfAnotherBatch",
       "float[3,20,8] x, float[20,8] p, float[3,1,8] q",
       "a = Add(x, p) y = Mul(a, q)",
       "float[3,20,8] y",
       {"FusedRows"}},
      {"Choice",
       "float[50,8] x, float z",
       "c = Greater(x, z) n = Neg(x) y = Where(c, x, n)",
       "float[50,8] y",
       {"FusedRows"}},
      {"SumOverRows",
       "float[700,24] dy, float[700,24] x, float[24] b",
       "g = ai.caesura.GeluGrad(dy, x) s = Shape(b) y = ai.caesura.SumTo(g, s)",
       "float[24] y, float[700,24] g",
       {"Shape", "FusedRows"},
       true},
      {"NormGradient",
       "float[2,40,16] x, float[2,40,16] dy, float[2,40,16] r, float[16] g, float[16] b",
       R"(n, m, i = LayerNormalization(x, g, b)
          dx, dg, db = ai.caesura.LayerNormalizationGrad(dy, x, g, m, i)
          y = Add(dx, r))",
       "float[2,40,16] y, float[16] dg, float[16] db",
       {"FusedRows"},
       true},
      // b needs a, and outside of the group needs a as well: the group may not hold both ends.
      {"PathOutside",
       "float[4,4] x, float[4,4] w",
       "a = Exp(x) p = MatMul(a, w) q = Exp(p) y = Mul(q, a)",
       "float[4,4] y",
       {"Exp", "MatMul", "FusedRows"}},
      {"RotatedHalves",
       "float[2,4,90,8] x, float[90,8] c, float[90,8] s",
       R"(a, b = Split<axis = -1, num_outputs = 2>(x) n = Neg(b) r = Concat<axis = -1>(n, a)
          p = Mul(x, c) q = Mul(r, s) y = Add(p, q))",
       "float[2,4,90,8] y, float[2,4,90,4] n",
       {"FusedRows"}},
      {"UnevenParts",
       "float[30,8] x, float[30,2] z",
       R"(a, b, d = Split<axis = 1, num_outputs = 3>(x) s = Sigmoid(b) t = Mul(a, s) y = Concat<axis = 1>(d, t, z, x))",
       "float[30,15] y",
       {"FusedRows"}},
      {"PartsAcrossRows",
       "float[6,8] x",
       "a, b = Split<axis = 0, num_outputs = 2>(x) s = Sigmoid(a) t = Mul(s, b) y = Concat<axis = "
       "0>(t, x)",
       "float[9,8] y",
       {"Split", "FusedRows", "Concat"}},
      {"OneRow", "float[1,16] x", "s = Sigmoid(x) y = Mul(x, s)", "float[1,16] y", {"FusedRows"}},
      {"OtherShapesThanKnown",
       "float[N,M] x, float[N,M] z",
       "s = Sigmoid(x) y = Mul(z, s)",
       "float[N,M] y",
       {"FusedRows"},
       false,
       {{"N", 0}, {"M", 4}}},
  };
  return kCases;
}

Model Parse(const FusionCase& c) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\": 28, \"ai.caesura\": 1]>\ng (" +
                        std::string(c.inputs) + ") => (" + c.outputs +
                        ") <int64[1] last = {-1}> {" + c.body + "}")
      .value();
}

std::vector<RuntimeValue> RunModel(Model model, const FusionCase& c, int threads) {
  SessionOptions options;
  options.threads = threads;
  options.providers = {MakeCpuProvider()};
  auto session = Session::Create(std::move(model), options).value();
  NamedValues feeds;
  int k = 0;
  for (const Value* input : session->inputs()) {
    std::vector<int64_t> dims;
    for (const Dim& dim : *input->type().shape) {
      auto it = c.dims.find(dim.symbol);
      dims.push_back(dim.known() ? dim.value : it == c.dims.end() ? 5 : it->second);
    }
    const Tensor x = Tensor::Zeros(DType::kFloat32, Shape(dims));
    for (int64_t i = 0; i < x.elements(); ++i) {
      x.data<float>()[i] = 1.1f + std::sin(0.7f * static_cast<float>(i + 13 * k));
    }
    feeds[input->name()] = x;
    ++k;
  }
  auto values = session->Run(feeds);
  EXPECT_TRUE(values.ok()) << values.status().ToString();
  return values.ok() ? *values : std::vector<RuntimeValue>();
}

class Fusion : public ::testing::TestWithParam<FusionCase> {};

TEST_P(Fusion, LeavesTheNumbersAsTheyAre) {
  const FusionCase& c = GetParam();
  Model fused = Parse(c), plain = Parse(c);
  ASSERT_TRUE(InferShapes(fused).ok() && InferShapes(plain).ok());
  const auto records = RunPasses({MakeMatMulEpiloguePass(), MakeRowFusionPass()}, fused);
  ASSERT_TRUE(records.ok()) << records.status().ToString();
  std::vector<std::string> left;
  for (const auto& node : fused.graph->nodes()) left.push_back(node->op_type());
  EXPECT_EQ(left, c.left);
  for (int threads : {1, 2}) {
    const auto found = RunModel(fused.Clone(), c, threads),
               expected = RunModel(plain.Clone(), c, threads);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t k = 0; k < found.size(); ++k) {
      const Tensor &a = found[k].tensor(), &b = expected[k].tensor();
      ASSERT_EQ(a.shape(), b.shape()) << k;
      const bool product = c.left.front() == "FusedMatMul" || c.left.back() == "FusedMatMul";
      // Where sums are ordered otherwise: float's rounding of a few hundred terms of size 1,
      // relative to the sum.
      const float tolerance = c.sums || product ? 2e-5f : 0.0f;
      for (int64_t i = 0; i < a.elements(); ++i) {
        const float want = b.data<float>()[i];
        ASSERT_NEAR(a.data<float>()[i], want, tolerance * std::max(1.0f, std::fabs(want)))
            << k << " at " << i;
      }
    }
    // The same bits again.
    const auto again = RunModel(fused.Clone(), c, threads);
    for (size_t k = 0; k < found.size(); ++k) {
      EXPECT_EQ(
          std::memcmp(found[k].tensor().raw(), again[k].tensor().raw(), found[k].tensor().bytes()),
          0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Fusion, ::testing::ValuesIn(FusionCases()),
                         [](const auto& info) { return info.param.name; });

TEST(RowFusion, StringsAndPartsOfUnknownSizesStay) {
  for (const char* text :
       {"(string[4,4] x, int64[2] s) => (string[4,4] y) { a, b = Split<axis = 1, num_outputs = "
        "2>(x)",
        "(float[4,4] x, int64[2] s) => (float[4,4] y) { a, b = Split<axis = 1>(x, s)"}) {
    Model model = ParseModelText(std::string(R"(<ir_version: 10, opset_import: ["": 28]> g )") +
                                 text + " y = Concat<axis = 1>(b, a) }")
                      .value();
    ASSERT_TRUE(InferShapes(model).ok());
    ASSERT_TRUE(RunPasses({MakeRowFusionPass()}, model).ok());
    EXPECT_EQ(model.graph->nodes().size(), 2u) << text;
  }
}

// A constant of bools with rows is cut into tiles as what is fed is; where it was not, the node ran
// its body, whose outputs no plan knew.
TEST(RowFusion, ConstantMasksAreCutIntoTiles) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 28]>
    g (float[3000,8] x, float[8] z) => (float[3000,8] y) <bool[1,1] mask = {0}>
    { c = Greater(x, z) k = And(c, mask) y = Where(k, x, z) })")
                    .value();
  Tensor mask = Tensor::Zeros(DType::kBool, Shape{3000, 8});
  for (int64_t i = 0; i < mask.elements(); ++i) mask.data<bool>()[i] = i % 3 == 0;
  Value* value = model.graph->FindValue("mask");
  model.graph->SetInitializer(value, mask);
  ASSERT_TRUE(InferShapes(model).ok());
  ASSERT_TRUE(RunPasses({MakeRowFusionPass()}, model).ok());
  ASSERT_EQ(model.graph->nodes().size(), 1u);
  Tensor x = Tensor::Zeros(DType::kFloat32, Shape{3000, 8}),
         z = Tensor::Zeros(DType::kFloat32, Shape{8});
  for (int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] = std::sin(static_cast<float>(i));
  for (int threads : {1, 2}) {
    SessionOptions options;
    options.threads = threads;
    options.providers = {MakeCpuProvider()};
    auto session = Session::Create(model.Clone(), options).value();
    const NamedValues feeds = {{"x", x}, {"z", z}};
    EXPECT_EQ(session->Plan(feeds).value()->ToString().find("dynamic"), std::string::npos);
    EXPECT_EQ(session->Plan(feeds).value()->ToString().find("dynamic"), std::string::npos);
    const Tensor y = session->Run(feeds).value()[0].tensor();
    for (int64_t i = 0; i < y.elements(); ++i) {
      const float value = x.data<float>()[i];
      ASSERT_EQ(y.data<float>()[i], i % 3 == 0 && value > 0 ? value : 0.0f) << i;
    }
  }
}

TEST(RowFusion, ForwardAndBackwardStayApart) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 28]>
    g (float[4,4] x) => (float[4,4] y) { a = Exp(x) b = Neg(a) y = Tanh(b) })")
                    .value();
  model.graph->nodes()[1]->set_phase(Phase::kBackward);
  model.graph->nodes()[2]->set_phase(Phase::kBackward);
  ASSERT_TRUE(InferShapes(model).ok());
  ASSERT_TRUE(RunPasses({MakeRowFusionPass()}, model).ok());
  ASSERT_EQ(model.graph->nodes().size(), 2u);
  EXPECT_EQ(model.graph->nodes()[0]->op_type(), "Exp");
  EXPECT_EQ(model.graph->nodes()[1]->op_type(), "FusedRows");
  EXPECT_EQ(model.graph->nodes()[1]->phase(), Phase::kBackward);
}

// On the CPU the sum keeps the order that it has by itself.
TEST(RowFusion, GradientsOfDropoutJoinOnDevicesOnly) {
  for (const bool for_device : {false, true}) {
    Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 28, "ai.caesura": 1]>
      g (float[4,3] x, bool[4,3] m, float r) => (float[4,3] d, float[3] b) <int64[1] s = {3}> {
        a = Neg(x) d = ai.caesura.DropoutGrad(a, m, r) b = ai.caesura.SumTo(d, s) })")
                      .value();
    ASSERT_TRUE(InferShapes(model).ok());
    ASSERT_TRUE(RunPasses({MakeRowFusionPass(for_device)}, model).ok());
    EXPECT_EQ(model.graph->nodes().size(), for_device ? 1u : 3u);
  }
}

// One group of a and c would have to run before the first yield and after the second.
TEST(RowFusion, YieldsKeepTheirOrder) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 28, "ai.caesura": 1]>
    g (float[4,4] x) => (float[4,4] c, float[4,4] p) {
      a = Neg(x) p = ai.caesura.YieldOp(a) q = ai.caesura.YieldOp(x) b = Abs(q) c = Add(a, b) })")
                    .value();
  for (const char* name : {"p", "q"})  // the caller gives them, so inference cannot tell
    model.graph->FindValue(name)->set_type(model.graph->FindValue("x")->type());
  ASSERT_TRUE(InferShapes(model).ok());
  ASSERT_TRUE(RunPasses({MakeRowFusionPass()}, model).ok());
  std::vector<std::string> ops;
  for (const auto& node : model.graph->nodes()) ops.push_back(node->op_type());
  EXPECT_THAT(ops, ElementsAre("Neg", "YieldOp", "YieldOp", "FusedRows"));
}

}  // namespace
}  // namespace caesura
