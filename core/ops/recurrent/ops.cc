// SPDX-License-Identifier: Apache-2.0
// The rows of recurrent layers (core/graph/op_def.h), and their gradient rules.
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

// h_t = f(W x_t + R h_(t-1) + B);  back through time
void RnnRule(GradientContext& g, const std::string& op) {
  Exprs inputs = {g.dY(0), g.dY(1)};
  for (int i = 0; i < 6; ++i) inputs.push_back(g.input(i));
  inputs.push_back(g.TrainingOutput(op + "Training", 2, ValueType::Tensor(g.input(0).dtype())));
  g.SetInputGradients(op + "Grad", inputs, {0, 1, 2, 3, 5}, g.attributes());
}
void PlainRnnRule(GradientContext& g) { RnnRule(g, "RNN"); }
void GruRule(GradientContext& g) { RnnRule(g, "GRU"); }

// c_t = f c_(t-1) + i c', h_t = o tanh c_t;  back through time
void LstmRule(GradientContext& g) {
  Exprs inputs = {g.dY(0), g.dY(1), g.dY(2)};
  for (int i = 0; i < 8; ++i) inputs.push_back(g.input(i));
  inputs.push_back(g.TrainingOutput("LSTMTraining", 3, ValueType::Tensor(g.input(0).dtype())));
  g.SetInputGradients("LSTMGrad", inputs, {0, 1, 2, 3, 5, 6, 7}, g.attributes());
}

}  // namespace
}  // namespace gradient

namespace {

constexpr char kAsScans[] =
    "a Scan stands for a layer without lengths, activations or a clip of its own only";

// Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden], from X [steps,
// batch, input] and R [directions, hidden, 4 * hidden].
Status InferDynamicQuantizeLstm(Graph&, Node* node) {
  const auto dims_of = [&](int input) {
    const Value* value = node->input(input);
    const bool known = value != nullptr && value->type().shape && value->type().shape->size() == 3;
    return known ? *value->type().shape : std::vector<Dim>(3);
  };
  const std::vector<Dim> x = dims_of(0), r = dims_of(2);
  for (int i = 0; i < 3; ++i) {
    Value* output = node->output(i);
    if (output == nullptr || (output->type().is_tensor() && output->type().shape)) continue;
    ValueType type = ValueType::Tensor(DType::kFloat32);
    type.shape = {r[0], x[1], r[1]};
    if (i == 0) type.shape->insert(type.shape->begin(), x[0]);
    output->set_type(std::move(type));
  }
  return {};
}

}  // namespace

// clang-format off
std::vector<OpDef> RecurrentOps() {
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "GRU", .rule = {.function = gradient::GruRule, .stops = {4}}, .body = gradient::RecurrentBody},
    {.op_type = "LSTM", .rule = {.function = gradient::LstmRule, .stops = {4}}, .body = gradient::RecurrentBody},
    {.op_type = "RNN", .rule = {.function = gradient::PlainRnnRule, .stops = {4}}, .body = gradient::RecurrentBody},
    // RNNTraining, GRUTraining (as ONNX's) -> Y, Y_h, trace; LSTMTraining -> Y, Y_h, Y_c, trace  the trace
    // [directions, ...] is the gates, states and cells of all steps (core/ops/recurrent/recurrent_cell.h)
    {.op_type = "RNNTraining", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 6, .max_outputs = 3,
     .rule = {.function = gradient::PlainRnnRule, .stops = {4}}, .body_refusal = kAsScans},
    {.op_type = "GRUTraining", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 6, .max_outputs = 3,
     .rule = {.function = gradient::GruRule, .stops = {4}}, .body_refusal = kAsScans},
    {.op_type = "LSTMTraining", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 8, .max_outputs = 4,
     .rule = {.function = gradient::LstmRule, .stops = {4}}, .body_refusal = kAsScans},
    // RNNGrad (dY?, dY_h?, X, W, R, B?, sequence_lens?, initial_h?, trace) -> dX, dW, dR, dB, dinitial_h
    {.op_type = "RNNGrad", .domain = kCaesuraDomain, .min_inputs = 9, .max_inputs = 9, .max_outputs = 5,
     .type_of_output = {2, 3, 4, 5, 7}, .derivative = Derivative::kRefusal, .derivative_note = kNoSecondDerivative,
     .body_refusal = kAsScans},
    // GRUGrad likewise. LSTMGrad (dY?, dY_h?, dY_c?, X, W, R, B?, sequence_lens?, initial_h?, initial_c?, P?, trace)
    // -> dX, dW, dR, dB, dinitial_h, dinitial_c, dP
    {.op_type = "GRUGrad", .domain = kCaesuraDomain, .min_inputs = 9, .max_inputs = 9, .max_outputs = 5,
     .type_of_output = {2, 3, 4, 5, 7}, .derivative = Derivative::kRefusal, .derivative_note = kNoSecondDerivative,
     .body_refusal = kAsScans},
    {.op_type = "LSTMGrad", .domain = kCaesuraDomain, .min_inputs = 12, .max_inputs = 12, .max_outputs = 7,
     .type_of_output = {3, 4, 5, 6, 8, 9, 10}, .derivative = Derivative::kRefusal,
     .derivative_note = kNoSecondDerivative,
     .body_refusal = kAsScans},
    {.op_type = "DynamicQuantizeLSTM", .domain = kContribDomain, .min_inputs = 12, .max_inputs = 12,
     .min_outputs = 0, .max_outputs = 3, .infer = InferDynamicQuantizeLstm},
  };
}
// clang-format on

}  // namespace caesura
