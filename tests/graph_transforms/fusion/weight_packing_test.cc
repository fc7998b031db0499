// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/weight_packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

constexpr int64_t kRows = 512, kColumns = 320;  // of the weights: large, and of different dims

// Multiples of 1/8 of few bits: sums are exact in any order.
Tensor Eighths(Shape shape) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i * 7 % 17) - 8) / 8;
  return Tensor::Of<float>(std::move(shape), values);
}

Model ModelOf(const std::string& body, const std::vector<std::pair<std::string, Tensor>>& weights) {
  auto model = ParseModelText("<ir_version: 10, opset_import: [\"\" : 23]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  Graph& graph = *model->graph;
  for (const auto& [name, tensor] : weights) {  // text would spell every number out
    Value* value = graph.FindValue(name);
    graph.RemoveInput(value);
    graph.SetInitializer(value, tensor);
  }
  return *std::move(model);
}

int CountOf(const Model& model, const char* op_type) {
  int count = 0;
  for (const auto& node : model.graph->nodes()) count += node->op_type() == op_type;
  return count;
}

Values RunWith(const Model& model, PassMaker passes, const NamedValues& feeds,
               int* packed = nullptr) {
  SessionOptions options;
  options.providers = {MakeCpuProvider()};
  options.passes = std::move(passes);
  auto session = Session::Create(model.Clone(), std::move(options)).value();
  if (packed != nullptr) *packed = CountOf(session->model(), "PackedMatMul");
  auto results = session->Run(feeds);
  EXPECT_TRUE(results.ok()) << results.status().ToString();
  return results.ok() ? *results : Values();
}

void ExpectSame(const Model& model, const NamedValues& feeds, int products = 1) {
  int packed = 0;
  const Values with = RunWith(model, InferencePasses, feeds, &packed),
               without = RunWith(model, nullptr, feeds);
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i)
    EXPECT_TRUE(SameBits(with[i], without[i])) << "output " << i;
  EXPECT_TRUE(packed == products || packed == 0) << packed;  // 0: this chip reads plain weights
}

TEST(WeightPacking, ProductsOfAnyNumberOfRowsAreTheSame) {
  const Model model =
      ModelOf("(float[M, K] x, float[512, 320] w) => (float[M, 320] y) { y = MatMul (x, w) }",
              {{"w", Eighths(Shape{kRows, kColumns})}});
  for (int64_t rows : {1, 2, 3, 16, 65, 200})
    ExpectSame(model, {{"x", Eighths(Shape{rows, kRows})}});
  EXPECT_EQ(RunWith(model, InferencePasses, {{"x", Eighths(Shape{0, kRows})}})[0].tensor().shape(),
            (Shape{0, kColumns}));
}

TEST(WeightPacking, BatchesAndVectors) {
  const std::pair<std::string, Tensor> w = {"w", Eighths(Shape{kRows, kColumns})};
  ExpectSame(ModelOf("(float[A, B, M, K] x, float[512, 320] w) => (float[A, B, M, 320] y) { y = "
                     "MatMul (x, w) }",
                     {w}),
             {{"x", Eighths(Shape{2, 3, 5, kRows})}});
  ExpectSame(
      ModelOf("(float[512] x, float[512, 320] w) => (float[320] y) { y = MatMul (x, w) }", {w}),
      {{"x", Eighths(Shape{kRows})}});
}

TEST(WeightPacking, EpiloguesAndGemms) {
  const std::pair<std::string, Tensor> w = {"w", Eighths(Shape{kRows, kColumns})},
                                       b = {"b", Eighths(Shape{kColumns})},
                                       t = {"t", Eighths(Shape{kColumns, kRows})};
  const NamedValues x = {{"x", Eighths(Shape{7, kRows})}};
  ExpectSame(ModelOf(R"((float[7, 512] x, float[512, 320] w, float[320] b) => (float[7, 320] y) {
    p = MatMul (x, w)
    s = Add (p, b)
    y = Relu (s)
  })",
                     {w, b}),
             x);
  ExpectSame(ModelOf(R"((float[7, 512] x, float[512, 320] w, float[7, 320] r) => (float[7, 320] y) {
    p = MatMul (x, w)
    y = Add (p, r)
  })",
                     {w}),
             {{"x", x.at("x")}, {"r", Eighths(Shape{7, kColumns})}});
  ExpectSame(ModelOf("(float[M, 512] x, float[320, 512] t, float[320] b) => (float[M, 320] y) "
                     "{ y = Gemm <transB = 1> (x, t, b) }",
                     {t, b}),
             x);
  ExpectSame(
      ModelOf("(float[M, 512] x, float[512, 320] w) => (float[M, 320] y) { y = Gemm (x, w) }", {w}),
      x);
  // A Gemm that scales stays as it is.
  ExpectSame(ModelOf("(float[M, 512] x, float[512, 320] w) => (float[M, 320] y) { y = Gemm <alpha "
                     "= 0.5> (x, w) }",
                     {w}),
             x, 0);
}

TEST(WeightPacking, ViewsBeforeAndBehindTheProduct) {
  const Model model =
      ModelOf(R"((float[2, 4, M, 128] x, float[512, 320] w, int64[3] flat, int64[4] heads) =>
                                 (float[2, 5, M, 64] y) {
    a = Transpose <perm = [0, 2, 1, 3]> (x)
    r = Reshape (a, flat)
    p = MatMul (r, w)
    h = Reshape (p, heads)
    y = Transpose <perm = [0, 2, 1, 3]> (h)
  })",
              {{"w", Eighths(Shape{kRows, kColumns})},
               {"flat", Tensor::Of<int64_t>(Shape{3}, {2, -1, 512})},
               {"heads", Tensor::Of<int64_t>(Shape{4}, {2, -1, 5, 64})}});
  ExpectSame(model, {{"x", Eighths(Shape{2, 4, 3, 128})}});
}

TEST(WeightPacking, WeightsAreSharedAndGoWhenNobodyElseReadsThem) {
  Model model = ModelOf(R"((float[M, 512] x, float[512, 512] w) => (float[M, 512] y) {
    a = MatMul (x, w)
    y = MatMul (a, w)
  })",
                        {{"w", Eighths(Shape{kRows, kRows})}});
  ASSERT_TRUE(RunPasses({MakeWeightPackingPass()}, model).ok());
  EXPECT_EQ(model.graph->initializers().size(), 1u);
  if (CountOf(model, "PackedMatMul") == 0) return;  // this chip reads plain weights
  EXPECT_EQ(CountOf(model, "PackedMatMul"), 2);
  EXPECT_EQ(model.graph->FindValue("w"), nullptr);
  Model kept = ModelOf(
      "(float[M, 512] x, float[512, 320] w) => (float[M, 320] y, float[512, 320] w) { y = MatMul "
      "(x, w) }",
      {{"w", Eighths(Shape{kRows, kColumns})}});
  ASSERT_TRUE(RunPasses({MakeWeightPackingPass()}, kept).ok());
  EXPECT_TRUE(SameBits(*kept.graph->Initializer(kept.graph->FindValue("w")),
                       Eighths(Shape{kRows, kColumns})));
}

TEST(WeightPacking, SmallOrChangingWeightsStay) {
  Model small = ModelOf("(float[M, 8] x, float[8, 8] w) => (float[M, 8] y) { y = MatMul (x, w) }",
                        {{"w", Eighths(Shape{8, 8})}});
  EXPECT_FALSE(RunPasses({MakeWeightPackingPass()}, small).value()[0].changed);
  Model fed =
      ModelOf("(float[M, 512] x, float[512, 320] w) => (float[M, 320] y) { y = MatMul (x, w) }",
              {{"w", Eighths(Shape{kRows, kColumns})}});
  fed.graph->AddInput(fed.graph->FindValue("w"));
  EXPECT_FALSE(RunPasses({MakeWeightPackingPass()}, fed).value()[0].changed);
}

}  // namespace
}  // namespace caesura::testing
