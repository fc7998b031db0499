// SPDX-License-Identifier: Apache-2.0
// Views with strides, and producers that write where a later node wants the bytes: the numbers are
// those of the same graph with every value dense, and the moving nodes are gone from the plan.
#include <gtest/gtest.h>

#include <cmath>

#include "core/execute/partial_executor.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/providers/cpu_provider.h"

namespace caesura {
namespace {

struct ViewCase {
  const char* name;
  const char* inputs;  // "float[2,3] x"
  const char* body;
  const char* output;  // "float[3,2] y"
  int steps;           // that are left
};
void PrintTo(const ViewCase& c, std::ostream* out) { *out << c.name; }

// Attention's own layouts: a slice of [B, T, 3C] seen as [B, H, T, D], and back.
const ViewCase kCases[] = {
    {"TransposedFactor", "float[5,4] x, float[6,4] w", "t = Transpose(w) y = MatMul(x, t)",
     "float[5,6] y", 1},
    {"TransposedLeft", "float[4,5] x, float[4,6] w", "t = Transpose(x) y = MatMul(t, w)",
     "float[5,6] y", 1},
    {"TransposedProduct", "float[5,4] x, float[4,6] w", "t = MatMul(x, w) y = Transpose(t)",
     "float[6,5] y", 1},
    {"TransposedBatch", "float[2,3,4,5] x, float[2,4,5,3] w",
     "t = Transpose<perm = [0,2,1,3]>(x) y = MatMul(t, w)", "float[2,4,3,3] y", 1},
    {"LargeTransposedProduct", "float[70,40] x, float[40,60] w",
     "t = MatMul(x, w) y = Transpose(t)", "float[60,70] y", 1},
    {"ProductsOfSplit", "float[4,6] x, float[3,2] w",
     "a, b = Split<axis = 1, num_outputs = 2>(x) p = MatMul(a, w) q = MatMul(b, w) y = Add(p, q)",
     "float[4,2] y", 3},
    {"SplitHeads", "float[2,3,12] x",
     R"(q, k, v = Split<axis = 2, num_outputs = 3>(x)
        qh = Reshape(q, heads) qt = Transpose<perm = [0,2,1,3]>(qh)
        kh = Reshape(k, heads) kt = Transpose<perm = [0,2,3,1]>(kh)
        y = MatMul(qt, kt))",
     "float[2,2,3,3] y", 1},
    {"MergedHeads", "float[2,2,3,5] a, float[2,2,5,4] b",
     R"(p = MatMul(a, b) t = Transpose<perm = [0,2,1,3]>(p) y = Reshape(t, merged))",
     "float[2,3,8] y", 1},
    {"SideBySide", "float[3,4] a, float[4,5] b, float[4,2] c",
     "p = MatMul(a, b) q = MatMul(a, c) y = Concat<axis = 1>(p, q)", "float[3,7] y", 2},
    {"HeadsSideBySide", "float[2,2,3,5] a, float[2,2,5,2] b, float[2,2,5,2] c",
     R"(p = MatMul(a, b) pt = Transpose<perm = [0,2,1,3]>(p) pm = Reshape(pt, narrow)
        q = MatMul(a, c) qt = Transpose<perm = [0,2,1,3]>(q) qm = Reshape(qt, narrow)
        y = Concat<axis = 2>(pm, qm))",
     "float[2,3,8] y", 2},
    {"TwiceTransposed", "float[3,4,5] x, float[3,5,4] w",
     "t = Transpose<perm = [1,0,2]>(x) u = Transpose<perm = [1,0,2]>(t) y = MatMul(u, w)",
     "float[3,4,4] y", 1},
    {"VectorOfSplit", "float[6] x, float[3,4] w",
     "a, b = Split<axis = 0, num_outputs = 2>(x) y = MatMul(b, w)", "float[4] y", 1},
    // The second reader of the product comes later and takes any layout.
    {"WrittenForTwo", "float[2,2,3,5] a, float[2,2,5,4] b, float[2,2,4,3] c",
     R"(p = MatMul(a, b) t = Transpose<perm = [0,2,1,3]>(p) m = Reshape(t, merged)
        q = MatMul(p, c) r = Reshape(q, rest) y = MatMul(r, m))",
     "float[2,6,8] y", 3},
    // These must stay copies: a reader that takes dense tensors only, one value in two places of a
    // Concat.
    {"DenseReader", "float[3,4] x", "t = Transpose(x) y = Softmax<axis = 0>(t)", "float[4,3] y", 2},
    {"TwiceInConcat", "float[3,4] a, float[4,5] b", "p = MatMul(a, b) y = Concat<axis = 0>(p, p)",
     "float[6,5] y", 2},
};

Model Parse(const ViewCase& c) {
  const std::string text =
      "<ir_version: 10, opset_import: [\"\": 28, \"ai.caesura\": 1]>\ng (" + std::string(c.inputs) +
      ") => (" + c.output + ") <int64[4] heads = {2, 3, 2, 2}, int64[3] merged = {2, 3, 8}, " +
      "int64[3] narrow = {2, 3, 4}, int64[3] rest = {2, 6, 3}> {" + c.body + "}";
  return ParseModelText(text).value();
}

struct Ran {
  std::vector<RuntimeValue> outputs;
  size_t steps;
};

Ran RunCase(Model model, int threads) {
  EXPECT_TRUE(InferShapes(model).ok());
  std::vector<RuntimeValue> feeds;
  std::vector<FeedSpec> specs;
  int k = 0;
  for (const Value* input : model.graph->inputs()) {
    const Tensor x = Tensor::Zeros(DType::kFloat32, *input->type().ConcreteShape());
    for (int64_t i = 0; i < x.elements(); ++i)
      x.data<float>()[i] = std::sin(0.7f * static_cast<float>(i + 13 * ++k));
    feeds.emplace_back(x);
    specs.push_back(FeedSpec::Of(feeds.back()));
  }
  auto plan =
      ExecutionPlan::Create(model.graph, specs, {MakeCpuProvider()}, {.threads = threads}).value();
  ExecutionState state(plan);
  EXPECT_TRUE(state.Start(feeds, {}).ok());
  EXPECT_TRUE(state.Relocate(0xff).ok());  // the addresses are not part of what is right
  EXPECT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  return {state.TakeFetches(), plan->steps().size()};
}

class PlanViews : public ::testing::TestWithParam<ViewCase> {};

TEST_P(PlanViews, AreTheSameNumbersInFewerSteps) {
  const ViewCase& c = GetParam();
  for (int threads : {1, 2}) {
    const Ran viewed = RunCase(Parse(c), threads);
    EXPECT_EQ(viewed.steps, static_cast<size_t>(c.steps));
    // With every value a graph output none may be a view.
    Model model = Parse(c);
    for (Value* value : model.graph->Values()) {
      if (value->producer() != nullptr && !model.graph->IsGraphOutput(value))
        model.graph->AddOutput(value);
    }
    const Ran dense = RunCase(std::move(model), threads);
    EXPECT_GT(dense.outputs.size(), viewed.outputs.size());
    const std::vector<float> expected = dense.outputs[0].tensor().ToVector<float>();
    const std::vector<float> found = viewed.outputs[0].tensor().ToVector<float>();
    ASSERT_EQ(viewed.outputs[0].tensor().shape(), dense.outputs[0].tensor().shape());
    // Another order of a product's sum: a few units in the last place of sums of at most 40 terms
    // below 1.
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PlanViews, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(Layouts, ReshapeWhereStridesCanSayIt) {
  // [4, 6] as the columns 2..4 of [4, 12]: rows split, but do not merge.
  const Layout layout{{12, 1}, 2};
  const auto split = Reshaped(Shape{4, 6}, layout, Shape{2, 2, 3, 2});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->strides, (std::vector<int64_t>{24, 12, 2, 1}));
  EXPECT_EQ(split->offset, 2);
  EXPECT_FALSE(Reshaped(Shape{4, 6}, layout, Shape{24}).has_value());
  EXPECT_TRUE(Reshaped(Shape{4, 6}, Layout{{6, 1}, 2}, Shape{24}).has_value());
  EXPECT_TRUE(Reshaped(Shape{1, 4, 1, 6}, Layout{{0, 12, 99, 1}, 0}, Shape{4, 6, 1}).has_value());
}

TEST(Layouts, SimplifyWhatIsDense) {
  EXPECT_TRUE(Simplified(Shape{2, 1, 3}, Layout{{3, 77, 1}, 0}).dense());
  EXPECT_FALSE(Simplified(Shape{2, 1, 3}, Layout{{3, 77, 1}, 1}).dense());
  EXPECT_FALSE(Simplified(Shape{2, 3}, Layout{{1, 2}, 0}).dense());
}

}  // namespace
}  // namespace caesura
