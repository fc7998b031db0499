// SPDX-License-Identifier: Apache-2.0
// The rows of sequences and optionals (core/graph/op_def.h), and their gradient rules.
// The gradient of a sequence is the sequence of its elements' gradients.
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/gradient/sequence_map.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace gradient {
namespace {

// `position`, or the default, counted from the front of a sequence of length n.
Expr FromFront(Expr position, Expr n, Expr absent) {
  if (!position) return absent;
  const Expr p = Cast(position, DType::kInt64);
  return Where(Less(p, Int(0, p)), p + n, p);
}

// S = [X1, X2, ...];  dXi = dS[i]
void SequenceConstructRule(GradientContext& g) {
  for (int i = 0; i < g.input_count(); ++i) {
    if (g.Needs(i)) g.SetInputGradient(i, Op("SequenceAt", {g.dY(), Int(i, g.dY())}));
  }
}

// Y = S[p];  dS = zeros with dS[p] = dY
void SequenceAtRule(GradientContext& g) {
  const Expr s = g.input(0), p = FromFront(g.input(1), Op("SequenceLength", {s}), Expr());
  const Expr others = Op("SequenceErase", {ZerosOf(s), p});
  g.SetInputGradient(0, Op("SequenceInsert", {others, g.dY(), p}));
}

// T = S with X before position p;  dX = dT[p], dS = dT without it
void SequenceInsertRule(GradientContext& g) {
  const Expr length = Op("SequenceLength", {g.dY()}), n = length - Int(1, length),
             p = FromFront(g.input(2), n, n);
  g.SetInputGradient(0, Op("SequenceErase", {g.dY(), p}));
  if (g.Needs(1)) g.SetInputGradient(1, Op("SequenceAt", {g.dY(), p}));
}

// T = S without the element at p;  dS = dT with zeros at p
void SequenceEraseRule(GradientContext& g) {
  const Expr s = g.input(0), n = Op("SequenceLength", {s}),
             p = FromFront(g.input(1), n, n - Int(1, n));
  g.SetInputGradient(0, Op("SequenceInsert", {g.dY(), ZerosLike(Op("SequenceAt", {s, p})), p}));
}

// S = parts of X along an axis;  dX = the parts of dS side by side
void SplitToSequenceRule(GradientContext& g) {
  const int64_t stacked = !g.HasInput(1) && g.IntAttr("keepdims", 1) == 0;
  g.SetInputGradient(0, Op("ConcatFromSequence", {g.dY()},
                           {{"axis", g.IntAttr("axis", 0)}, {"new_axis", stacked}}));
}

// Y = elements of S side by side;  dS = the parts of dY
void ConcatFromSequenceRule(GradientContext& g) {
  const int64_t axis = g.IntAttr("axis", 0);
  if (g.IntAttr("new_axis", 0) != 0) {
    const AttributeMap attributes = {{"axis", axis}, {"keepdims", int64_t{0}}};
    return g.SetInputGradient(0, Op("SplitToSequence", {g.dY()}, attributes));
  }
  const Expr sizes = MapSequence({g.input(0)}, DType::kInt64,
                                 [axis](const Exprs& e) { return DimOf(e[0], axis); });
  const Expr lengths = Op("ConcatFromSequence", {sizes}, {{"axis", int64_t{0}}});
  g.SetInputGradient(0, Op("SplitToSequence", {g.dY(), lengths}, {{"axis", axis}}));
}

// O = X that may be absent;  dX = dO
void OptionalRule(GradientContext& g) { g.SetInputGradient(0, g.dY()); }

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> SequenceOps() {
  return {
    {.op_type = "ConcatFromSequence", .rule = {.function = gradient::ConcatFromSequenceRule}},
    {.op_type = "Optional", .rule = {.function = gradient::OptionalRule}},
    {.op_type = "OptionalGetElement", .rule = {.function = gradient::OptionalRule}},
    {.op_type = "SequenceAt", .rule = {.function = gradient::SequenceAtRule, .stops = {1}}},
    {.op_type = "SequenceConstruct", .rule = {.function = gradient::SequenceConstructRule}},
    {.op_type = "SequenceErase", .rule = {.function = gradient::SequenceEraseRule, .stops = {1}}},
    {.op_type = "SequenceInsert", .rule = {.function = gradient::SequenceInsertRule, .stops = {2}}},
    {.op_type = "SplitToSequence", .rule = {.function = gradient::SplitToSequenceRule, .stops = {1}}},
  };
}
// clang-format on

}  // namespace caesura
