// SPDX-License-Identifier: Apache-2.0
// Adagrad, Adam and Momentum of ONNX, with numbers by hand; they are pure functions.
#include <cmath>

#include "tests/tensors.h"
#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

// A node of ai.onnx.preview.training: a rate of 1/2, step T, tensors, their gradients and states.
Result<std::vector<RuntimeValue>> OnnxStep(const char* op, int64_t step,
                                           std::vector<RuntimeValue> tensors,
                                           AttributeMap attributes, int outputs) {
  attributes["epsilon"] = 0.0f;
  std::vector<RuntimeValue> inputs = {Tensor::Scalar(0.5), Tensor::Scalar(step)};
  inputs.insert(inputs.end(), tensors.begin(), tensors.end());
  KernelCase node(op, inputs, std::move(attributes), "ai.onnx.preview.training", outputs);
  return node.Run();
}

TEST(OnnxAdagrad, DecaysItsRateAndAddsUpSquares) {
  const Tensor x = Tensor::Of<double>({2}, {2, -4}), g = Tensor::Of<double>({2}, {3, 2}),
               h = Tensor::Of<double>({2}, {9, 25});
  const Tensor w = FloatVector({1}), dw = FloatVector({-2.5f}), hw = FloatVector({12});
  // G + X / 2 = (4, 0) and -2; H' = (25, 25) and 16; the rate is 1/2 / (1 + 2 * 1/2).
  const auto out = OnnxStep("Adagrad", 2, {x, w, g, dw, h, hw},
                            {{"norm_coefficient", 0.5f}, {"decay_factor", 0.5f}}, 4)
                       .value();
  EXPECT_THAT(out[0].tensor().ToVector<double>(), AreNear({2 - 0.25 * 4 / 5, -4}, 1e-15));
  EXPECT_EQ(out[1].tensor().ToVector<float>(), (std::vector<float>{1 + 0.25f * 2 / 4}));
  EXPECT_EQ(out[2].tensor().ToVector<double>(), (std::vector<double>{25, 25}));
  EXPECT_EQ(out[3].tensor().ToVector<float>(), (std::vector<float>{16}));
  EXPECT_EQ(x.ToVector<double>(), (std::vector<double>{2, -4}));  // a pure function
}

TEST(OnnxAdam, CorrectsItsRateFromStepOneOn) {
  const std::vector<RuntimeValue> tensors = {
      Tensor::Of<double>({1}, {1}), Tensor::Of<double>({1}, {2}), Tensor::Of<double>({1}, {4}),
      Tensor::Of<double>({1}, {16})};
  AttributeMap attributes = {{"alpha", 0.5f}, {"beta", 0.75f}};
  const double change = 3 / std::sqrt(13.0);  // V' = 2 + 1, H' = 12 + 1
  const auto first = OnnxStep("Adam", 0, tensors, attributes, 3).value();
  EXPECT_THAT(first[0].tensor().ToVector<double>(), AreNear({1 - 0.5 * change}, 1e-15));
  EXPECT_EQ(first[1].tensor().ToVector<double>(), std::vector<double>{3});
  EXPECT_EQ(first[2].tensor().ToVector<double>(), std::vector<double>{13});
  attributes["norm_coefficient_post"] = 0.25f;
  const double rate = 0.5 * std::sqrt(1 - 0.75 * 0.75) / (1 - 0.5 * 0.5);
  EXPECT_THAT(OnnxStep("Adam", 2, tensors, attributes, 1).value()[0].tensor().ToVector<double>(),
              AreNear({0.75 * (1 - rate * change)}, 1e-15));
}

TEST(OnnxMomentum, DampsGradientsFromStepOneOn) {
  const std::vector<RuntimeValue> tensors = {FloatVector({1}), FloatVector({8}), FloatVector({4})};
  AttributeMap attributes = {{"alpha", 0.5f}, {"beta", 0.25f}};
  const auto run = [&](int64_t step, const char* mode) {
    attributes["mode"] = Text(mode);
    const auto out = OnnxStep("Momentum", step, tensors, attributes, 2).value();
    return std::pair(out[0].tensor().ToVector<double>()[0], out[1].tensor().ToVector<double>()[0]);
  };
  EXPECT_EQ(run(0, "standard"), std::pair(1 - 0.5 * 10, 10.0));
  EXPECT_EQ(run(1, "standard"), std::pair(1 - 0.5 * 4, 4.0));
  EXPECT_EQ(run(1, "nesterov"), std::pair(1 - 0.5 * (8 + 0.5 * 4), 4.0));
  const Status unknown = OnnxStep("Momentum", 1, tensors, {{"mode", Text("heavy")}}, 2).status();
  EXPECT_THAT(unknown.message(), HasSubstr("unknown mode heavy"));
}

// A node may end before its last states.
TEST(OnnxOptimizers, LeaveOutWhatNobodyReads) {
  const Tensor x = FloatVector({1}), zero = FloatVector({0});
  const std::vector<RuntimeValue> tensors = {x, x, zero, x, zero, x, x, x};
  AttributeMap attributes = {{"alpha", 0.5f}, {"beta", 0.5f}};
  for (const int outputs : {1, 3}) {
    const auto out = OnnxStep("Adam", 0, tensors, attributes, outputs).value();
    ASSERT_EQ(out.size(), static_cast<size_t>(outputs));
    EXPECT_EQ(out[0].tensor().ToVector<float>(), std::vector<float>{1});  // no gradient, no change
    if (outputs == 3) {
      EXPECT_EQ(out[2].tensor().ToVector<float>(), std::vector<float>{0});
    }
  }
}

TEST(OnnxOptimizers, RefuseTensorsWithoutStates) {
  const Tensor x = FloatVector({1}), wide = FloatVector({1, 2});
  const auto refusal = [](const char* op, std::vector<RuntimeValue> tensors, int outputs) {
    return OnnxStep(op, 1, std::move(tensors), {}, outputs).status().message();
  };
  EXPECT_THAT(refusal("Adam", {x, x, x}, 1), HasSubstr("takes R, T and 4 inputs for each"));
  EXPECT_THAT(refusal("Adagrad", {x, x, x}, 3), HasSubstr("has too many outputs"));
  EXPECT_THAT(refusal("Momentum", {x, x, wide}, 2), HasSubstr("must have one dtype and shape"));
}

}  // namespace
}  // namespace caesura
