// SPDX-License-Identifier: Apache-2.0
// Gradient rules of quantization. Whole numbers carry no gradient; the scale that turns them back does.
#include "training/gradient/gradient_rules.h"

namespace caesura::gradient {
namespace {

// Y = (Q - z) s, with one s for all or one for each entry of an axis;  ds = sum of dY (Q - z)
void DequantizeLinearRule(GradientContext& g) {
  if (g.IntAttr("block_size", 0) != 0) return g.Refuse("has no gradient of blocked scales");
  const int rank = g.Rank(0), scale_rank = g.Rank(1);
  const int64_t stated = g.IntAttr("axis", 1), axis = stated < 0 ? stated + rank : stated;
  std::vector<int64_t> along(rank, 1), others;
  for (int i = 0; i < rank; ++i) {
    if (i != axis) others.push_back(i);
  }
  const bool per_axis = scale_rank == 1 && rank > 0;
  if (per_axis) along[axis] = -1;
  Expr q = Cast(g.input(0), g.dY().dtype());
  if (g.HasInput(2)) {
    const Expr z = Cast(g.input(2), g.dY().dtype());
    q = q - (per_axis ? Reshape(z, Ints(along, z)) : z);
  }
  const Expr product = g.dY() * q;
  const bool one_axis = per_axis && others.empty();
  const Expr sum = one_axis ? product : ReduceSum(product, per_axis ? others : std::vector<int64_t>{}, false);
  g.SetInputGradient(1, ReshapeLike(sum, g.input(1)));
}

}  // namespace

std::vector<GradientRule> QuantizeRules() {
  return {{.op_type = "DequantizeLinear", .function = DequantizeLinearRule, .stops = {0, 2}}};
}

}  // namespace caesura::gradient
