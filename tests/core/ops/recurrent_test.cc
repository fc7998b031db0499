// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM against plain loops in double: every input and attribute, lengths, directions,
// layouts, activations, refusals. DynamicQuantizeLSTM:
// tests/python/sessions/dynamic_quantize_lstm_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;
using Lengths = std::vector<int32_t>;

constexpr int64_t kSteps = 4, kBatch = 3, kWidth = 2, kHidden = 3;
// Numbers are in float64: some roundings of numbers near 1, carried over a few steps.
constexpr double kRoundings = 1e-13;

Tensor Signals(Shape shape, double seed) {
  Doubles values(shape.elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(seed + static_cast<double>(i * i));
  return Tensor::Of<double>(std::move(shape), values);
}

// A node's inputs and what its attributes say.
struct Cell {
  std::string op = "RNN";
  int64_t directions = 1;
  bool reversed = false, linear_before_reset = false, input_forget = false;
  double clip = 0;
  Lengths lengths = {};  // empty: none are given
  bool bare = false;     // without bias, states and peepholes

  int64_t gates() const { return op == "RNN" ? 1 : op == "GRU" ? 3 : 4; }
  Tensor x = Signals({kSteps, kBatch, kWidth}, 0.1);
  Tensor w = Signals({directions, gates() * kHidden, kWidth}, 0.2);
  Tensor r = Signals({directions, gates() * kHidden, kHidden}, 0.3);
  Tensor bias = Signals({directions, 2 * gates() * kHidden}, 0.4);
  Tensor h = Signals({directions, kBatch, kHidden}, 0.5),
         c = Signals({directions, kBatch, kHidden}, 0.6);
  Tensor peepholes = Signals({directions, 3 * kHidden}, 0.7);

  KernelCase Node() const {
    std::vector<RuntimeValue> inputs = {x, w, r, bare ? RuntimeValue() : bias, {}};
    if (!lengths.empty()) inputs[4] = Tensor::Of<int32_t>({kBatch}, lengths);
    if (!bare) inputs.push_back(h);
    if (!bare && op == "LSTM") inputs.insert(inputs.end(), {c, peepholes});
    AttributeMap attributes = {{"hidden_size", kHidden},
                               {"direction", Text(directions == 2 ? "bidirectional"
                                                  : reversed      ? "reverse"
                                                                  : "forward")}};
    if (linear_before_reset) attributes["linear_before_reset"] = int64_t{1};
    if (input_forget) attributes["input_forget"] = int64_t{1};
    if (clip > 0) attributes["clip"] = static_cast<float>(clip);
    return KernelCase(op, std::move(inputs), std::move(attributes), "", op == "LSTM" ? 3 : 2);
  }
};

// Y, Y_h, and Y_c of LSTM.
std::vector<Doubles> ResultsOf(const KernelCase& node) {
  std::vector<Doubles> out;
  const std::vector<RuntimeValue> values = KernelCase(node).Run().value();
  for (const RuntimeValue& value : values) out.push_back(value.tensor().ToVector<double>());
  return out;
}
void ExpectStates(const std::vector<Doubles>& actual, const std::vector<Doubles>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_THAT(actual[i], Pointwise(DoubleNear(kRoundings), expected[i])) << "output " << i;
}

// One sample in one direction.
class OneSample {
 public:
  OneSample(const Cell& cell, int64_t direction, int64_t sample)
      : cell_(cell), d_(direction), b_(sample) {
    for (int64_t i = 0; i < kHidden; ++i) {
      const int64_t at = (d_ * kBatch + b_) * kHidden + i;
      state.push_back(cell.bare ? 0 : cell.h.data<double>()[at]);
      memory.push_back(cell.bare ? 0 : cell.c.data<double>()[at]);
    }
  }
  Doubles state, memory;  // H and C

  void Step(int64_t t) {
    const Doubles before = state;
    if (cell_.op == "RNN") {
      for (int64_t i = 0; i < kHidden; ++i)
        state[i] = std::tanh(Clipped(FromX(t, 0, i) + FromH(before, 0, i)));
    } else if (cell_.op == "GRU") {
      StepGru(t, before);
    } else {
      for (int64_t i = 0; i < kHidden; ++i) StepLstm(t, before, i);
    }
  }

 private:
  // (X W^T + Wb) and (H R^T + Rb) of unit i of a gate.
  double FromX(int64_t t, int64_t gate, int64_t i) const {
    double sum = Bias(gate * kHidden + i);
    for (int64_t k = 0; k < kWidth; ++k)
      sum += cell_.x.data<double>()[(t * kBatch + b_) * kWidth + k] *
             cell_.w.data<double>()[Row(gate, i) * kWidth + k];
    return sum;
  }
  double FromH(const Doubles& h, int64_t gate, int64_t i) const {
    double sum = Bias((cell_.gates() + gate) * kHidden + i);
    for (int64_t k = 0; k < kHidden; ++k)
      sum += h[k] * cell_.r.data<double>()[Row(gate, i) * kHidden + k];
    return sum;
  }
  int64_t Row(int64_t gate, int64_t i) const { return (d_ * cell_.gates() + gate) * kHidden + i; }
  double Bias(int64_t at) const {
    return cell_.bare ? 0 : cell_.bias.data<double>()[d_ * 2 * cell_.gates() * kHidden + at];
  }
  double Peephole(int64_t gate, int64_t i) const {
    return cell_.bare ? 0 : cell_.peepholes.data<double>()[(d_ * 3 + gate) * kHidden + i];
  }
  double Clipped(double x) const {
    return cell_.clip > 0 ? std::clamp(x, -cell_.clip, cell_.clip) : x;
  }
  double Sigmoid(double x) const { return 1 / (1 + std::exp(-Clipped(x))); }

  void StepGru(int64_t t, const Doubles& before) {
    Doubles update, reset, held;
    for (int64_t i = 0; i < kHidden; ++i) {
      update.push_back(Sigmoid(FromX(t, 0, i) + FromH(before, 0, i)));
      reset.push_back(Sigmoid(FromX(t, 1, i) + FromH(before, 1, i)));
      held.push_back(reset[i] * before[i]);
    }
    for (int64_t i = 0; i < kHidden; ++i) {
      const double hidden =
          cell_.linear_before_reset ? reset[i] * FromH(before, 2, i) : FromH(held, 2, i);
      state[i] =
          (1 - update[i]) * std::tanh(Clipped(FromX(t, 2, i) + hidden)) + update[i] * before[i];
    }
  }
  void StepLstm(int64_t t, const Doubles& before, int64_t i) {
    const auto gate = [&](int64_t g) { return FromX(t, g, i) + FromH(before, g, i); };
    const double input = Sigmoid(gate(0) + Peephole(0, i) * memory[i]),
                 forget =
                     cell_.input_forget ? 1 - input : Sigmoid(gate(2) + Peephole(2, i) * memory[i]);
    memory[i] = forget * memory[i] + input * std::tanh(Clipped(gate(3)));
    state[i] = Sigmoid(gate(1) + Peephole(1, i) * memory[i]) * std::tanh(Clipped(memory[i]));
  }

  const Cell& cell_;
  int64_t d_, b_;
};

std::vector<Doubles> ByLoopsOverTime(const Cell& cell) {
  const int64_t states = cell.directions * kBatch * kHidden;
  std::vector<Doubles> out = {Doubles(kSteps * states), Doubles(states), Doubles(states)};
  for (int64_t d = 0; d < cell.directions; ++d) {
    for (int64_t b = 0; b < kBatch; ++b) {
      OneSample sample(cell, d, b);
      const int64_t steps = cell.lengths.empty() ? kSteps : cell.lengths[b],
                    at = (d * kBatch + b) * kHidden;
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t t = cell.reversed || d == 1 ? steps - 1 - step : step;
        sample.Step(t);
        std::copy(sample.state.begin(), sample.state.end(), out[0].begin() + t * states + at);
      }
      if (steps == 0) continue;  // zeros, whatever the initial states
      std::copy(sample.state.begin(), sample.state.end(), out[1].begin() + at);
      std::copy(sample.memory.begin(), sample.memory.end(), out[2].begin() + at);
    }
  }
  if (cell.op != "LSTM") out.pop_back();
  return out;
}

std::vector<Cell> Cells(const Cell& like) {
  std::vector<Cell> out;
  for (const char* op : {"RNN", "GRU", "LSTM"}) {
    for (const bool variant : {false, true}) {
      if (op[0] == 'R' && variant) continue;
      out.push_back({.op = op,
                     .directions = like.directions,
                     .reversed = like.reversed,
                     .linear_before_reset = variant && op[0] == 'G',
                     .input_forget = variant && op[0] == 'L',
                     .clip = like.clip,
                     .lengths = like.lengths,
                     .bare = like.bare});
    }
  }
  return out;
}

TEST(Recurrent, EqualsPlainLoops) {
  for (const Cell& like : {Cell{}, Cell{.bare = true}, Cell{.clip = 0.25}, Cell{.reversed = true},
                           Cell{.directions = 2}, Cell{.lengths = {4, 0, 2}},
                           Cell{.reversed = true, .lengths = {1, 4, 0}},
                           Cell{.directions = 2, .clip = 0.5, .lengths = {3, 2, 4}}}) {
    for (const Cell& cell : Cells(like)) {
      SCOPED_TRACE(cell.op + (cell.linear_before_reset || cell.input_forget ? "'" : "") +
                   std::to_string(cell.directions) + std::to_string(cell.lengths.size()));
      ExpectStates(ResultsOf(cell.Node()), ByLoopsOverTime(cell));
    }
  }
}

TEST(Recurrent, EndsWithEachSample) {
  for (const Cell& cell : Cells({.lengths = {4, 0, 2}})) {
    const std::vector<Doubles> out = ResultsOf(cell.Node());
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < kHidden; ++i) {
        const int64_t at = b * kHidden + i, length = cell.lengths[b];
        for (int64_t t = length; t < kSteps; ++t) EXPECT_EQ(out[0][t * kBatch * kHidden + at], 0);
        EXPECT_EQ(out[1][at], length == 0 ? 0 : out[0][(length - 1) * kBatch * kHidden + at]);
      }
    }
  }
}

// Blocks of `size` numbers, the last one first.
Doubles BlocksReversed(const Doubles& from, int64_t size) {
  Doubles out;
  for (auto at = from.end(); at != from.begin(); at -= size) out.insert(out.end(), at - size, at);
  return out;
}

TEST(Recurrent, ReverseIsForwardOverTheReversedSequence) {
  for (Cell cell : Cells({})) {
    std::vector<Doubles> forward = ResultsOf(cell.Node());
    forward[0] = BlocksReversed(forward[0], kBatch * kHidden);
    cell.reversed = true;
    cell.x = Tensor::Of<double>(cell.x.shape(),
                                BlocksReversed(cell.x.ToVector<double>(), kBatch * kWidth));
    ExpectStates(ResultsOf(cell.Node()), forward);
  }
}

// Direction d of a tensor whose first axis counts them.
Tensor DirectionOf(const Tensor& both, int64_t d) {
  const Doubles values = both.ToVector<double>();
  const int64_t half = both.elements() / 2;
  Shape shape = both.shape();
  shape[0] = 1;
  return Tensor::Of<double>(shape,
                            Doubles(values.begin() + d * half, values.begin() + (d + 1) * half));
}

TEST(Recurrent, BidirectionalIsBoth) {
  for (const Cell& both : Cells({.directions = 2, .lengths = {4, 3, 1}})) {
    const std::vector<Doubles> out = ResultsOf(both.Node());
    for (const int64_t d : {0, 1}) {
      Cell one = both;
      one.directions = 1;
      one.reversed = d == 1;
      for (Tensor* part : {&one.w, &one.r, &one.bias, &one.h, &one.c, &one.peepholes})
        *part = DirectionOf(*part, d);
      const std::vector<Doubles> expected = ResultsOf(one.Node());
      const int64_t states = kBatch * kHidden;
      for (size_t o = 0; o < out.size(); ++o) {
        for (size_t i = 0; i < expected[o].size(); ++i)
          ASSERT_NEAR(out[o][(i / states * 2 + d) * states + i % states], expected[o][i],
                      kRoundings)
              << both.op;
      }
    }
  }
}

// x [a, b, ...] as [b, a, ...].
Tensor Turned(const Tensor& x, int64_t run) {
  Shape shape = x.shape();
  std::swap(shape[0], shape[1]);
  Doubles out;
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t a = 0; a < shape[1]; ++a) {
      const double* from = x.data<double>() + (a * shape[0] + b) * run;
      out.insert(out.end(), from, from + run);
    }
  }
  return Tensor::Of<double>(shape, out);
}

// Layout 1: X [batch, steps, width], Y [batch, steps, directions, hidden], states [batch,
// directions, hidden].
TEST(Recurrent, LayoutOneHasTheBatchFirst) {
  for (const Cell& cell : Cells({.directions = 2, .lengths = {4, 3, 1}})) {
    const std::vector<Doubles> expected = ResultsOf(cell.Node());
    KernelCase node = cell.Node();
    node.attributes["layout"] = int64_t{1};
    for (const int input : {0, 5, 6}) {
      if (input < static_cast<int>(node.inputs.size()))
        node.inputs[input] = Turned(node.inputs[input].tensor(), input == 0 ? kWidth : kHidden);
    }
    const std::vector<RuntimeValue> out = node.Run().value();
    ASSERT_EQ(out[0].tensor().shape(), (Shape{kBatch, kSteps, 2, kHidden}));
    const double* y = out[0].tensor().data<double>();
    for (int64_t e = 0; e < out[0].tensor().elements(); ++e) {
      const int64_t i = e % kHidden, d = e / kHidden % 2, t = e / kHidden / 2 % kSteps,
                    b = e / kHidden / 2 / kSteps;
      ASSERT_NEAR(y[e], expected[0][((t * 2 + d) * kBatch + b) * kHidden + i], kRoundings)
          << cell.op;
    }
    for (size_t o = 1; o < out.size(); ++o) {
      ASSERT_EQ(out[o].tensor().shape(), (Shape{kBatch, 2, kHidden}));
      EXPECT_THAT(Turned(out[o].tensor(), kHidden).ToVector<double>(),
                  Pointwise(DoubleNear(kRoundings), expected[o]));
    }
  }
}

// f(x) by an RNN of one unit and one step.
double Activated(const char* name, double x, AttributeMap attributes = {}) {
  const auto number = [](double value) { return Tensor::Of<double>({1, 1, 1}, {value}); };
  attributes["activations"] = std::vector<std::string>{name};
  return ResultsOf(KernelCase("RNN", {number(x), number(1), number(0)}, attributes))[0][0];
}

TEST(Recurrent, KnowsAllActivations) {
  const AttributeMap given = {{"activation_alpha", Floats{0.5f}},
                              {"activation_beta", Floats{0.25f}}};
  for (const double x : {-3.0, -0.5, 0.0, 0.5, 0.75, 2.0}) {
    const auto expect = [&](double actual, double expected) {
      EXPECT_NEAR(actual, expected, kRoundings) << x;
    };
    expect(Activated("Relu", x), std::max(x, 0.0));
    expect(Activated("tanh", x), std::tanh(x));  // names in any case
    expect(Activated("Sigmoid", x), 1 / (1 + std::exp(-x)));
    expect(Activated("Affine", x, given), 0.5 * x + 0.25);
    expect(Activated("LeakyRelu", x, given), x < 0 ? 0.5 * x : x);
    expect(Activated("ThresholdedRelu", x, given), x >= 0.5 ? x : 0);
    expect(Activated("ScaledTanh", x, given), 0.5 * std::tanh(0.25 * x));
    expect(Activated("HardSigmoid", x, given), std::clamp(0.5 * x + 0.25, 0.0, 1.0));
    expect(Activated("HardSigmoid", x), std::clamp(0.2 * x + 0.5, 0.0, 1.0));
    expect(Activated("Elu", x, given), x < 0 ? 0.5 * (std::exp(x) - 1) : x);
    expect(Activated("Softsign", x), x / (1 + std::abs(x)));
    expect(Activated("Softplus", x), std::log(1 + std::exp(x)));
    expect(Activated("Relu", x, {{"clip", 0.5f}}), std::clamp(x, 0.0, 0.5));
  }
}

TEST(Recurrent, ActivationsLetNaNThrough) {
  for (const char* name : {"Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ScaledTanh",
                           "HardSigmoid", "Elu", "Softsign", "Softplus"}) {
    EXPECT_TRUE(std::isnan(Activated(name, kNaN))) << name;
    EXPECT_TRUE(std::isnan(Activated(name, kNaN, {{"clip", 0.5f}}))) << name;
  }
  EXPECT_EQ(Activated("ThresholdedRelu", kNaN), 0);  // "x if x >= alpha else 0"
}

TEST(Recurrent, RefusesWhatDoesNotFit) {
  for (const char* op : {"RNN", "GRU", "LSTM"}) {
    const Cell cell{.op = op};
    const auto expect_refused = [&](KernelCase node) {
      EXPECT_EQ(node.Run().status().code(), StatusCode::kInvalidArgument) << op;
    };
    const auto with = [&](size_t input, const Tensor& tensor) {
      KernelCase node = cell.Node();
      node.inputs[input] = tensor;
      return node;
    };
    const auto saying = [&](const char* name, Attribute value) {
      KernelCase node = cell.Node();
      node.attributes[name] = std::move(value);
      return node;
    };
    const size_t count = cell.Node().inputs.size();
    for (size_t input = 0; input < count; ++input) expect_refused(with(input, Signals({5}, 0)));
    expect_refused(with(1, Signals({1, cell.gates() * kHidden, kWidth + 1}, 0)));
    expect_refused(with(4, IntVector({1, 1, 1})));  // int64 lengths
    expect_refused(with(5, Tensor::Zeros(DType::kFloat32, cell.h.shape())));
    expect_refused(saying("hidden_size", kHidden + 1));
    expect_refused(saying("direction", Text("sideways")));
    expect_refused(saying("direction", Text("bidirectional")));  // weights are of one
    expect_refused(saying("layout", int64_t{2}));
    expect_refused(saying("activations", std::vector<std::string>(op[0] == 'R'   ? 1
                                                                  : op[0] == 'G' ? 2
                                                                                 : 3,
                                                                  "Swish")));
    expect_refused(saying("activations", std::vector<std::string>(4, "Tanh")));
  }
}

}  // namespace
}  // namespace caesura
