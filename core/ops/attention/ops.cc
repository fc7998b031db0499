// SPDX-License-Identifier: Apache-2.0
// The rows of attention (core/graph/op_def.h), and their gradient rules.
#include <optional>
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

constexpr int kLogSumExp = 4;  // output of AttentionTraining

// P = softmax(Q K^T + M), Y = P V;  dV = P^T dY, dS = softmax' (dY V^T), dQ = dS K, dK = dS^T Q, dM
// = dS
void AttentionRule(GradientContext& g) {
  Exprs inputs = {g.dY(), g.input(0), g.input(1), g.input(2), g.input(3)};
  if (g.FloatAttr("softcap", 0) <= 0 && !g.Needs(3)) {  // the kernel's fast way
    const bool wide = g.input(0).dtype() == DType::kFloat64;
    inputs.push_back(g.output());
    inputs.push_back(g.TrainingOutput("AttentionTraining", kLogSumExp,
                                      ValueType::Tensor(wide ? DType::kFloat64 : DType::kFloat32)));
  }
  g.SetInputGradients("AttentionGrad", inputs, {0, 1, 2, 3}, g.attributes());
}

// The kernel's form: no cache, and only Y differentiated. All else through the function body.
bool IsPlainAttention(const GradientContext& g) {
  return !g.HasInput(4) && !g.HasInput(5) && !g.HasInput(6) && !g.IsOnPath(1) && !g.IsOnPath(2) &&
         !g.IsOnPath(3);
}

// Y = X rotated by an angle;  dX = dY rotated back: the same with -sin
void RotaryEmbeddingRule(GradientContext& g) {
  g.SetInputGradient(
      0, Op("RotaryEmbedding", {g.dY(), g.input(1), -g.input(2), g.input(3)}, g.attributes()));
}

bool AnglesAreFixed(const GradientContext& g) { return !g.Needs(1) && !g.Needs(2); }

}  // namespace
}  // namespace gradient

namespace {

// As ONNX's Attention (opset 23): 4-D inputs are [batch, heads, length, head size], 3-D ones
// [batch, length, heads * head size]. lse is [batch, heads, length] either way. present_key and
// present_value get a dtype and no shape.
Status InferAttention(Graph& graph, Node* node) {
  const Value *q = node->input(0), *v = node->input(2);
  if (q == nullptr || v == nullptr || !q->type().is_tensor()) return {};
  const auto &qs = q->type().shape, &vs = v->type().shape;
  std::optional<std::vector<Dim>> y, lse;
  if (qs && vs && qs->size() == 4 && vs->size() == 4) {
    y = {{(*qs)[0], (*qs)[1], (*qs)[2], (*vs)[3]}};
    lse = {{(*qs)[0], (*qs)[1], (*qs)[2]}};
  } else if (qs && vs && qs->size() == 3 && vs->size() == 3) {
    const int64_t heads = node->Attr<int64_t>("q_num_heads", 0),
                  kv_heads = node->Attr<int64_t>("kv_num_heads", 0);
    const bool known = (*vs)[2].known() && heads > 0 && kv_heads > 0;
    y = {{(*qs)[0], (*qs)[1], known ? Dim{(*vs)[2].value / kv_heads * heads, ""} : Dim{}}};
    lse = {{(*qs)[0], Dim{heads > 0 ? heads : -1, ""}, (*qs)[1]}};
  }
  SetOutputType(*node, 0, q->dtype(), std::move(y));
  SetOutputType(*node, 4, LogSumDType(q->dtype()), std::move(lse));
  return SameDType(graph, node);
}

}  // namespace

// clang-format off
std::vector<OpDef> AttentionOps() {
  using Work = OpDef::Work;
  using Derivative = OpDef::Derivative;
  constexpr int kAll = OpDef::kAll;
  return {
    {.op_type = "Attention", .computes_in_half = true, .half_inputs = kAll, .work = Work::kAttention,
     .rule = {.function = gradient::AttentionRule, .applies = gradient::IsPlainAttention},
     .derivative_note = "Y by Q, K, V and a floating mask; with a cache, its lengths or further outputs through the "
     "function body"},
    {.op_type = "LinearAttention", .derivative = Derivative::kBody,
     .derivative_note = "function body: a Scan over tokens"},
    {.op_type = "RotaryEmbedding",
     .rule = {.function = gradient::RotaryEmbeddingRule, .stops = {3}, .applies = gradient::AnglesAreFixed},
     .derivative_note = "X rotated back; cosine and sine tables through the function body"},
    // AttentionTraining (Q, K, V, attn_mask?, past_key?, past_value?, nonpad_kv_seqlen?) -> Y, present_key,
    // present_value, qk_matmul_output, lse  ONNX's Attention; lse [batch, heads, queries] is the logarithm of each
    // query's sum of e^score, +inf for one that may look nowhere; float32 (float64 for float64)
    {.op_type = "AttentionTraining", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 7,
     .max_outputs = 5, .infer = InferAttention, .work = Work::kAttention,
     .rule = {.function = gradient::AttentionRule, .applies = gradient::IsPlainAttention},
     .body = gradient::AttentionTrainingBody},
    // AttentionGrad (dY, Q, K, V, attn_mask?, Y?, lse?) -> dQ, dK, dV, dattn_mask  Y and lse as AttentionTraining gave
    // them: without them the probabilities take batch * heads * queries * keys elements of memory
    {.op_type = "AttentionGrad", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 7, .max_outputs = 4,
     .type_of_output = {1, 2, 3, 4}, .rule = {.stops = {5, 6}, .by_body = true},
     .body = gradient::AttentionGradBody},
  };
}
// clang-format on

}  // namespace caesura
