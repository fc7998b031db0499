// SPDX-License-Identifier: Apache-2.0
// RNN, GRU and LSTM as Scans over the steps, whose gradients are made of ONNX's operators, too.
#include <string>
#include <utility>
#include <vector>

#include "core/ops/op_bodies.h"

namespace caesura::gradient {
namespace {

Expr At(Expr x, int64_t direction) { return x ? Gather(x, Int(direction, x), 0) : Expr(); }

Exprs Parts(Expr x, int count) {
  if (count == 1) return {x};
  return Ops("Split", {x}, count,
             {{"axis", int64_t{-1}}, {"num_outputs", static_cast<int64_t>(count)}});
}

// A layer in one direction.
class Layer {
 public:
  Layer(OpBody& b, int64_t hidden, int64_t direction) : b_(b), hidden_(hidden) {
    is_lstm_ = b.node().Is("LSTM");
    is_gru_ = b.node().Is("GRU");
    resets_late_ = is_gru_ && b.IntAttr("linear_before_reset", 0) != 0;
    weights_ = Transpose(At(b.input(1), direction), {1, 0});
    recurrence_ = Transpose(At(b.input(2), direction), {1, 0});
    if (const Expr bias = At(b.input(3), direction)) {
      const Exprs halves = Parts(bias, 2);
      bias_ = halves[0];
      recurrent_bias_ = halves[1];
    }
    h_ = At(b.input(5), direction);
    if (is_lstm_) c_ = At(b.input(6), direction);
    if (is_lstm_ && b.HasInput(7)) peepholes_ = Parts(At(b.input(7), direction), 3);
  }
  int gates() const { return is_lstm_ ? 4 : is_gru_ ? 3 : 1; }

  // The last states, then the states of all steps; x is [steps, batch, input].
  Exprs Write(Expr x, bool is_reversed) {
    Expr each = Op("MatMul", {x, weights_});
    if (bias_) each = each + bias_;
    if (bias_ && !resets_late_) each = each + recurrent_bias_;
    const Expr zeros = Filled(0, Concat({DimOf(x, 1), Ints({hidden_}, x)}, 0), x);
    Exprs inputs = {h_ ? h_ : zeros};
    if (is_lstm_) inputs.push_back(c_ ? c_ : zeros);
    const auto states = static_cast<int>(inputs.size());
    inputs.push_back(each);
    InnerGraph body("step", *x.writer());
    Exprs before;
    for (int i = 0; i < states; ++i)
      before.push_back(body.Input("state", x.dtype(), {-1, hidden_}));
    const Expr own = body.Input("own", x.dtype(), {-1, gates() * hidden_});
    const Exprs after = is_lstm_ ? Lstm(body, before, own)
                        : is_gru_
                            ? Gru(body, before[0], own)
                            : Exprs{Tanh(own + Op("MatMul", {before[0], body.Outer(recurrence_)}))};
    for (const Expr& state : after) body.Output(state);
    body.Output(Op("Identity", {after[0]}));
    AttributeMap attributes = {{"body", body.graph()}, {"num_scan_inputs", int64_t{1}}};
    if (is_reversed) {
      attributes["scan_input_directions"] = std::vector<int64_t>{1};
      attributes["scan_output_directions"] = std::vector<int64_t>{1};
    }
    Exprs out = Ops("Scan", inputs, states + 1, std::move(attributes));
    for (int i = 0; i <= states; ++i) {
      ValueType type = ValueType::Tensor(x.dtype());
      type.shape = std::vector<Dim>(i < states ? 2 : 3);
      type.shape->back() = Dim{hidden_, ""};
      out[i].value()->set_type(std::move(type));
    }
    return out;
  }

 private:
  Exprs Lstm(InnerGraph& body, const Exprs& before, Expr own) const {
    const Expr h = before[0], c = before[1];
    const Exprs gates = Parts(own + Op("MatMul", {h, body.Outer(recurrence_)}), 4);
    const auto peeped = [&](int gate, int place, Expr cell) {
      return peepholes_.empty() ? gates[gate] : gates[gate] + body.Outer(peepholes_[place]) * cell;
    };
    const Expr i = Sigmoid(peeped(0, 0, c)), f = Sigmoid(peeped(2, 2, c));
    const Expr cell = f * c + i * Tanh(gates[3]);
    return {Sigmoid(peeped(1, 1, cell)) * Tanh(cell), cell};
  }

  Exprs Gru(InnerGraph& body, Expr h, Expr own) const {
    const Exprs parts = Parts(own, 3), factors = Parts(body.Outer(recurrence_), 3);
    const auto product = [&](Expr x, int gate) { return Op("MatMul", {x, factors[gate]}); };
    Exprs biases(3);
    if (resets_late_ && recurrent_bias_) biases = Parts(body.Outer(recurrent_bias_), 3);
    const auto late = [&](int gate) {
      const Expr sum = product(h, gate);
      return biases[gate] ? sum + biases[gate] : sum;
    };
    const Expr z = Sigmoid(parts[0] + late(0)), r = Sigmoid(parts[1] + late(1));
    const Expr n = Tanh(parts[2] + (resets_late_ ? r * late(2) : product(r * h, 2)));
    return {(1 - z) * n + z * h};
  }

  OpBody& b_;
  int64_t hidden_;
  bool is_lstm_ = false, is_gru_ = false, resets_late_ = false;
  Expr weights_, recurrence_, bias_, recurrent_bias_, h_, c_;
  Exprs peepholes_;  // of i, o and f; empty: none
};

}  // namespace

void RecurrentBody(OpBody& b) {
  for (const char* name : {"activations", "clip", "input_forget"}) {
    const bool is_off = std::string(name) == "input_forget" && b.IntAttr(name, 0) == 0;
    if (b.node().HasAttribute(name) && !is_off)
      return b.Refuse(std::string("has the attribute '") + name + "', which its Scan leaves out");
  }
  if (b.HasInput(4)) return b.Refuse("has sequences of several lengths");
  const auto& shape = b.input(2).value()->type().shape;
  const int64_t hidden = shape && shape->size() == 3 ? (*shape)[2].value : -1;
  const int64_t directions = shape && shape->size() == 3 ? (*shape)[0].value : -1;
  if (hidden < 1 || directions < 1) return b.Refuse("has weights of unknown sizes");
  const bool is_batch_first = b.IntAttr("layout", 0) != 0;
  if (is_batch_first && (b.HasInput(5) || b.HasInput(6)))
    return b.Refuse("has first states of another layout");
  const Expr x = is_batch_first ? Transpose(b.input(0), {1, 0, 2}) : b.input(0);
  const bool is_reversed = b.Attr<std::string>("direction", "forward") == "reverse";
  std::vector<Exprs> ends;  // of each output the parts of the directions
  for (int64_t d = 0; d < directions; ++d) {
    const Exprs found = Layer(b, hidden, d).Write(x, is_reversed || d == 1);
    ends.resize(found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const bool is_all = i + 1 == found.size();
      ends[i].push_back(Unsqueeze(found[i], {is_all ? 1 : 0}));
    }
  }
  Expr all = Concat(ends.back(), 1);
  if (is_batch_first) all = Transpose(all, {2, 0, 1, 3});
  b.SetOutput(0, all);
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    const Expr last = Concat(ends[i], 0);
    b.SetOutput(static_cast<int>(i) + 1, is_batch_first ? Transpose(last, {1, 0, 2}) : last);
  }
}

}  // namespace caesura::gradient
