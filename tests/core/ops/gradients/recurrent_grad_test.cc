// SPDX-License-Identifier: Apache-2.0
// RNNGrad, GRUGrad and LSTMGrad against central differences of their forward kernels, in float64,
// with samples of several lengths in each direction; and what a step by hand gives.
#include <cmath>

#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

// Samples of 3, 0 and 2 of the 3 steps.
struct RecurrentCase {
  std::string op;  // RNN, GRU or LSTM
  int64_t gates;
  AttributeMap attributes = {};
  int64_t directions = 1;
  bool peepholes = false;

  int states() const { return op == "LSTM" ? 2 : 1; }
  std::vector<RuntimeValue> Inputs() const {
    std::vector<RuntimeValue> out = {
        RandomTensor({3, 3, 2}, 1), RandomTensor({directions, gates * 2, 2}, 2),
        RandomTensor({directions, gates * 2, 2}, 3), RandomTensor({directions, 4 * gates}, 4),
        Tensor::Of<int32_t>({3}, {3, 0, 2})};
    for (int i = 0; i < states(); ++i) out.push_back(RandomTensor({directions, 3, 2}, 5 + i));
    if (peepholes) out.push_back(RandomTensor({directions, 6}, 7));
    return out;
  }
  // Y, Y_h, Y_c of an LSTM, and the trace.
  std::vector<RuntimeValue> Forward(const std::vector<RuntimeValue>& inputs) const {
    KernelCase node(op + "Training", inputs, AllAttributes(), kCaesuraDomain, 2 + states());
    return node.Run().value();
  }
  // `all`: the outputs' gradients.
  std::vector<RuntimeValue> GradInputs(std::vector<RuntimeValue> all,
                                       const std::vector<RuntimeValue>& inputs,
                                       const RuntimeValue& trace) const {
    all.insert(all.end(), inputs.begin(), inputs.end());
    if (op == "LSTM" && !peepholes) all.push_back({});
    all.push_back(trace);
    return all;
  }
  AttributeMap AllAttributes() const {
    AttributeMap all = attributes;
    all["hidden_size"] = int64_t{2};
    return all;
  }
};

void ExpectDifferences(const RecurrentCase& c) {
  SCOPED_TRACE(c.op);
  const std::vector<RuntimeValue> inputs = c.Inputs(), forward = c.Forward(inputs);
  std::vector<RuntimeValue> backward;
  for (size_t i = 0; i + 1 < forward.size(); ++i)
    backward.push_back(RandomTensor(forward[i].tensor().shape(), 10 + static_cast<int>(i)));
  const int outputs = static_cast<int>(inputs.size()) - 1;  // the lengths have no gradient
  const auto gradients =
      RunTrainingKernel((c.op + "Grad").c_str(), c.GradInputs(backward, inputs, forward.back()),
                        c.AllAttributes(), outputs)
          .value();
  for (int i = 0, at = 0; i < outputs; ++i, ++at) {
    if (at == 4) ++at;
    const auto expected = CentralDifferences(inputs[at].tensor(), [&](const Tensor& x) {
      std::vector<RuntimeValue> moved = inputs;
      moved[at] = x;
      const std::vector<RuntimeValue> ys = c.Forward(moved);
      double loss = 0;
      for (size_t y = 0; y < backward.size(); ++y)
        loss += Dot(ys[y].tensor(), backward[y].tensor());
      return loss;
    });
    EXPECT_THAT(gradients[i], AreNear(expected, 1e-8)) << "of input " << at;  // sums of some 10
  }
}

TEST(RNNGrad, EqualsDifferences) {
  ExpectDifferences({"RNN", 1});
  ExpectDifferences({"RNN", 1, {{"direction", Text("reverse")}}});
  ExpectDifferences({"RNN", 1, {{"direction", Text("bidirectional")}}, 2});
}

TEST(GRUGrad, EqualsDifferences) {
  ExpectDifferences({"GRU", 3});
  ExpectDifferences(
      {"GRU", 3, {{"direction", Text("reverse")}, {"linear_before_reset", int64_t{1}}}});
  ExpectDifferences({"GRU", 3, {{"direction", Text("bidirectional")}}, 2});
}

TEST(LSTMGrad, EqualsDifferences) {
  ExpectDifferences({"LSTM", 4});
  ExpectDifferences({"LSTM", 4, {{"direction", Text("reverse")}}, 1, true});
  ExpectDifferences(
      {"LSTM", 4, {{"direction", Text("bidirectional")}, {"input_forget", int64_t{1}}}, 2, true});
}

// H = tanh(w x + r H' + b), once.
TEST(RNNGrad, OfOneStepByHand) {
  const auto number = [](double value) { return Tensor::Of<double>({1, 1, 1}, {value}); };
  const Tensor x = number(0.5), w = number(2), r = number(4), h = number(0.125),
               b = Tensor::Of<double>({1, 2}, {0.25, -1.5});
  const AttributeMap attributes = {{"hidden_size", int64_t{1}}};
  KernelCase node("RNNTraining", {x, w, r, b, {}, h}, attributes, kCaesuraDomain, 3);
  const RuntimeValue trace = node.Run().value()[2];
  const auto out =
      RunTrainingKernel("RNNGrad", {{}, number(3), x, w, r, b, {}, h, trace}, attributes, 5)
          .value();
  const double y = std::tanh(2 * 0.5 + 4 * 0.125 + 0.25 - 1.5), g = 3 * (1 - y * y);
  const std::vector<double> expected[] = {{2 * g}, {0.5 * g}, {0.125 * g}, {g, g}, {4 * g}};
  for (int i = 0; i < 5; ++i) EXPECT_THAT(out[i], AreNear(expected[i], 1e-14));
}

// A sample of no steps gives Y_h as it got it.
TEST(LSTMGrad, PassesOverStepsThatAreNotThere) {
  const RecurrentCase c{"LSTM", 4};
  const auto inputs = c.Inputs(), forward = c.Forward(inputs);
  const Tensor dh = RandomTensor({1, 3, 2}, 11);
  const auto out = RunTrainingKernel("LSTMGrad", c.GradInputs({{}, dh, {}}, inputs, forward.back()),
                                     c.AllAttributes(), 6)
                       .value();
  // The second sample has no steps, the third has two.
  for (const int element : {2, 3, 6 + 2, 6 + 3, 12 + 2, 12 + 3, 12 + 4, 12 + 5})
    EXPECT_EQ(out[0][element], 0);
  EXPECT_NE(out[0][6 + 4], 0);
  // The last states of no steps are zeros, whatever the initial ones are.
  for (const int element : {2, 3}) EXPECT_EQ(out[4][element], 0);
  for (const int element : {2, 3}) EXPECT_EQ(out[5][element], 0);
  for (const int element : {0, 1, 4, 5}) EXPECT_NE(out[4][element], 0);
}

TEST(RecurrentGrads, RefuseAnotherOpsTrace) {
  const RecurrentCase c{"RNN", 1};
  const auto inputs = c.Inputs(), forward = c.Forward(inputs);
  const auto refusal = [&](const RuntimeValue& dy, const RuntimeValue& trace) {
    return WhyRefused("RNNGrad", c.GradInputs({dy, forward[1]}, inputs, trace), c.AllAttributes(),
                      5);
  };
  EXPECT_EQ(refusal(forward[0], forward[2]), "");
  EXPECT_THAT(refusal(forward[0], RandomTensor({1, 3}, 1)), HasSubstr("a trace of this op"));
  EXPECT_THAT(refusal(forward[1], forward[2]), HasSubstr("gradients of the outputs' shapes"));
}

}  // namespace
}  // namespace caesura
