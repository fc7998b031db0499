// SPDX-License-Identifier: Apache-2.0
// Constants that should be integers and are not: libFuzzer found models that ended the process.
#include "graph_transforms/constant_ints.h"

#include "core/providers/cpu_provider.h"
#include "graph_transforms/pipeline.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

TEST(ConstantInts, TakesConstantIntegersOnly) {
  Model model;
  model.graph = GraphOf(R"((float[2] x, int64[1] given) => (float[2] y)
      <int64[2] two = {1, -2}, int32 one = {3}, float[1] real = {1.0}, int64[0] none = {}>
      { y = Neg (x) })");
  const auto value = [&](const char* name) { return model.graph->FindValue(name); };
  EXPECT_EQ(ConstantInts(value("two")), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(ConstantInt(value("one")), 3);
  EXPECT_EQ(ConstantInts(value("none")), std::vector<int64_t>());
  for (const char* name : {"two", "none"}) EXPECT_EQ(ConstantInt(value(name)), std::nullopt);
  for (const char* name : {"real", "given", "x"})
    EXPECT_EQ(ConstantInts(value(name)), std::nullopt);
  EXPECT_EQ(ConstantInts(nullptr), std::nullopt);
}

// All passes over nodes that read such a constant, where no check of onnx's has seen it.
TEST(ConstantInts, OtherConstantsEndNothing) {
  const char* const nodes[] = {
      "s = SplitToSequence (x, c) y = SequenceAt (s, zero)",
      "s = SplitToSequence (x) y = SequenceAt (s, c)",
      "y = ReduceSumSquare (x, c)",
      "m = ReduceMean (x, c) y = Sub (x, m)",
      "y = Slice (x, c, ends, c, ends)",
      "r = Reshape (x, c) y = Neg (r)",
      "e = Expand (x, c) y = Neg (e)",
      "u = Unsqueeze (x, c) y = Neg (u)",
  };
  const Tensor constants[] = {Tensor::Zeros(DType::kBool, Shape{4, 1, 0}),
                              Tensor::Zeros(DType::kFloat8E5M2FNUZ, Shape{1}),
                              Tensor::Of<float>({1}, {1.5f}),
                              Tensor::Zeros(DType::kInt64, Shape{0}),
                              Tensor::Zeros(DType::kString, Shape{1}),
                              Tensor::Of<int64_t>({2}, {1, 1})};
  for (const char* node : nodes) {
    for (const Tensor& constant : constants) {
      SCOPED_TRACE(std::string(node) + "; " + DTypeName(constant.dtype()));
      Model model;
      model.graph = GraphOf(
          std::string(
              "(float[24] x, int64[1] c) => (y) <int64 zero = {0}, int64[1] ends = {1}> { ") +
          node + " }");
      ASSERT_NE(model.graph, nullptr);
      Value* c = model.graph->FindValue("c");
      model.graph->RemoveInput(c);
      model.graph->SetInitializer(c, constant);
      static_cast<void>(RunPasses(ForwardPasses({}), model));
      static_cast<void>(RunPasses(FusionPasses({MakeCpuProvider()}, {}), model));
      EXPECT_EQ(model.graph->outputs().size(), 1u);
    }
  }
}

}  // namespace
}  // namespace caesura::testing
