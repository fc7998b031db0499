// SPDX-License-Identifier: Apache-2.0
// The ops of a step's end, where tests/training/optimizer does not check them: what refuses a step,
// sums and copies in memory of their own, refusals. (ONNX's optimizers are in
// onnx_training_test.cc.)
#include <cmath>

#include "tests/tensors.h"
#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

TEST(RequireFinite, CopiesWhatItGuards) {
  const Tensor steps = IntVector({3, 4});
  KernelCase node("RequireFinite", {steps, Tensor::Scalar(1.0f), Tensor::Scalar(Float16(65504.0f))},
                  {{"names", std::vector<std::string>{"loss", "norm"}}}, kCaesuraDomain);
  const Tensor out = node.Run().value()[0].tensor();
  EXPECT_EQ(out.ToVector<int64_t>(), (std::vector<int64_t>{3, 4}));
  EXPECT_NE(out.raw(), steps.raw());
}

TEST(RequireFinite, NamesAllThatIsNot) {
  const std::vector<std::string> names = {"loss", "norm", "scale"};
  const std::vector<RuntimeValue> inputs = {IntVector({1}), Tensor::Scalar(BFloat16(kNaN)),
                                            Tensor::Scalar(1.0), Tensor::Scalar(-kInfinity)};
  EXPECT_EQ(WhyRefused("RequireFinite", inputs, {{"names", names}}),
            "loss is nan, scale is -inf: the step was refused");
  EXPECT_THAT(WhyRefused("RequireFinite", inputs, {{"names", std::vector<std::string>{"loss"}}}),
              HasSubstr("names must name what it checks"));
  EXPECT_THAT(WhyRefused("RequireFinite", {IntVector({1}), IntVector({1})},
                         {{"names", std::vector<std::string>{"step"}}}),
              HasSubstr("must be one element of"));
}

TEST(GlobalNorm, OverflowsInNoGradientsDType) {
  const Tensor large = Tensor::Of<Float16>({2}, {Float16(30000.0f), Float16(40000.0f)});
  EXPECT_EQ(FirstOutput("GlobalNorm", {large}), std::vector<double>{50000});
  EXPECT_EQ(FirstOutput("GlobalNorm", {FloatVector({3e30f}), FloatVector({})})[0],
            static_cast<double>(3e30f));
  EXPECT_THAT(WhyRefused("GlobalNorm", {large, IntVector({1})}),
              HasSubstr("gradient 1 must be of"));
  EXPECT_THAT(WhyRefused("GlobalNorm", {large, {}}), HasSubstr("gradient 1 must be of"));
}

TEST(ClipScale, RefusesWhatIsNoLimit) {
  const Tensor one = Tensor::Scalar(1.0);
  for (const float limit : {0.0f, -1.0f, kNaN}) {
    EXPECT_THAT(WhyRefused("ClipScale", {one, one}, {{"max_norm", Tensor::Scalar<double>(limit)}}),
                HasSubstr("max_norm must be positive"))
        << limit;
  }
  EXPECT_THAT(WhyRefused("ClipScale", {one, FloatVector({1, 1})}),
              HasSubstr("must be one element"));
  EXPECT_EQ(FirstOutput("ClipScale", {Tensor::Scalar(0.0f), Tensor::Scalar(0.5f)},
                        {{"max_norm", Tensor::Scalar(2.0)}}),
            std::vector<double>{0.5});  // a norm of 0 divides nothing
}

// As InPlaceAccumulator, but what was summed so far stays as it is.
TEST(AccumulatedSum, LeavesTheBuffer) {
  for (const bool reset : {false, true}) {
    const Tensor buffer = FloatVector({1, 2});
    KernelCase node("AccumulatedSum", {buffer, FloatVector({16, 32}), Tensor::Scalar(reset)}, {},
                    kCaesuraDomain);
    EXPECT_EQ(node.Run().value()[0].tensor().ToVector<float>(),
              (reset ? std::vector<float>{16, 32} : std::vector<float>{17, 34}));
    EXPECT_EQ(buffer.ToVector<float>(), (std::vector<float>{1, 2}));
  }
}

TEST(Accumulators, RefuseWhatDoesNotFit) {
  const Tensor two = FloatVector({1, 2}), three = FloatVector({1, 2, 3}),
               no = Tensor::Scalar(false);
  const Tensor index = Tensor::Scalar<int64_t>(0), levels = two.Reshaped({1, 2});
  for (const char* op : {"InPlaceAccumulator", "AccumulatedSum"}) {
    EXPECT_THAT(WhyRefused(op, {two, three, no}), HasSubstr("one dtype and shape")) << op;
    EXPECT_THAT(WhyRefused(op, {two, InDType(two, DType::kFloat64), no}),
                HasSubstr("one dtype and shape"));
    EXPECT_THAT(WhyRefused(op, {two, two, index}), HasSubstr("reset must be one bool"));
  }
  for (const char* op : {"PairwiseAccumulator", "PairwiseSum"}) {
    EXPECT_THAT(WhyRefused(op, {two, two, index}), HasSubstr("value's dtype and shape")) << op;
    EXPECT_THAT(WhyRefused(op, {levels, three, index}), HasSubstr("value's dtype and shape")) << op;
    EXPECT_THAT(WhyRefused(op, {levels, two, no}), HasSubstr("index must be one int64")) << op;
    EXPECT_THAT(WhyRefused(op, {levels, two, Tensor::Scalar<int64_t>(-1)}),
                HasSubstr("has no place"))
        << op;
  }
  EXPECT_THAT(WhyRefused("Assign", {two, three}), HasSubstr("one dtype and shape"));
}

TEST(Copy, IsNeverAView) {
  const Tensor flags = Tensor::Zeros(DType::kBool, {3}),
               empty = Tensor::Zeros(DType::kInt32, {0, 2});
  flags.data<bool>()[1] = true;
  KernelCase node("Copy", {flags}, {}, kCaesuraDomain);
  const Tensor out = node.Run().value()[0].tensor();
  EXPECT_EQ(out.ToVector<int>(), (std::vector<int>{0, 1, 0}));
  EXPECT_NE(out.raw(), flags.raw());
  EXPECT_EQ(FirstOutput("Copy", {empty}), std::vector<double>());
}

}  // namespace
}  // namespace caesura
