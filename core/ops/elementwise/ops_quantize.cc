// SPDX-License-Identifier: Apache-2.0
// The rows of quantization (core/graph/op_def.h), and their gradient rules.
// Whole numbers carry no gradient; the scale that turns them back does. Through a pair of
// QuantizeLinear and DequantizeLinear the gradient passes straight where the value was not clipped,
// as it does through PyTorch's fake_quantize.
#include <cmath>
#include <cstring>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/kernels/simd/small_types.h"

namespace caesura {
namespace gradient {
namespace {

// Scales and zero points as the floating values that stand beside the elements of `x`.
class Granularity {
 public:
  Granularity(const Node& node, Expr x) : x_(x) {
    rank_ = x.rank();
    const int64_t stated = node.Attr<int64_t>("axis", 1);
    axis_ = rank_ == 1 ? 0 : stated < 0 ? stated + rank_ : stated;
    block_ = node.Attr<int64_t>("block_size", 0);
  }
  bool is_blocked(Expr scale) const { return block_ != 0 && scale.rank() > 1; }
  bool is_per_axis(Expr scale) const { return scale.rank() == 1 && rank_ > 0; }
  int64_t axis() const { return axis_; }

  // `like`: whose dtype it takes. REQUIRES: the rank of x is known.
  Expr Beside(Expr parameter, Expr like) const {
    const Expr value = Cast(parameter, like.dtype());
    if (is_blocked(parameter)) {
      const Expr dim = Squeeze(DimOf(x_, axis_), {0});
      const Expr positions = Op("Range", {Int(0, dim), dim, Int(1, dim)});
      return Gather(value, positions / Int(block_, dim), axis_);
    }
    if (!is_per_axis(parameter)) return value;
    std::vector<int64_t> along(rank_, 1);
    along[axis_] = -1;
    return Reshape(value, Ints(along, value));
  }

 private:
  Expr x_;
  int rank_;
  int64_t axis_, block_;
};

// The lowest and the highest number of a type that QuantizeLinear writes.
std::pair<double, double> Bounds(DType dtype) {
  if (!kFloat8Types.Contains(dtype) && dtype != DType::kFloat4E2M1) {
    const IntegerRange range = RangeOf(dtype);
    return {static_cast<double>(range.lowest), static_cast<double>(range.highest)};
  }
  double highest = 0;
  for (const float value : DecodeTable(dtype)) {
    if (std::isfinite(value)) highest = std::max(highest, static_cast<double>(value));
  }
  return {-highest, highest};
}

// 1 where QuantizeLinear has not clipped, in the dtype of `like`, and X / s before it was rounded.
struct Quantized {
  Expr mask, ratio;
};

Quantized BeforeRounding(const Node& quantize, Expr x, Expr like) {
  const Granularity granularity(quantize, x);
  const DType wide = x.dtype() == DType::kFloat64 ? DType::kFloat64
                                                  : DType::kFloat32;  // what the kernel divides in
  const Expr from = Cast(x, wide);
  const Expr ratio = from / granularity.Beside({quantize.input(1), x.writer()}, from);
  const DType to = quantize.output(0)->dtype();
  const bool whole = !kFloat8Types.Contains(to) && to != DType::kFloat4E2M1;
  Expr value = whole ? Op("Round", {ratio}) : ratio;
  if (quantize.input(2) != nullptr)
    value = value + granularity.Beside({quantize.input(2), x.writer()}, from);
  const auto [lowest, highest] = Bounds(to);
  const Expr inside =
      And(GreaterOrEqual(value, Number(lowest, value)), LessOrEqual(value, Number(highest, value)));
  return {Mask(inside, like), Cast(ratio, like.dtype())};
}

bool SameParameter(const Value* a, const Value* b) {
  if (a == b) return true;
  const Tensor* first = a->graph()->Initializer(a);
  const Tensor* second = b->graph()->Initializer(b);
  return first != nullptr && second != nullptr && first->dtype() == second->dtype() &&
         first->shape() == second->shape() &&
         std::memcmp(first->raw(), second->raw(), first->bytes()) == 0;
}

// Y = (Q - z) s, with one s for all, one for each entry of an axis, or one a block;  ds = sum of dY
// (Q - z) Where Q = clip(round(X / s') + z'):  dX = dY s / s' where nothing was clipped, and  ds =
// sum of dY (Q - z - X / s)  there
void DequantizeLinearRule(GradientContext& g) {
  const bool has_source = g.input_count() > QuantizedLinks::kQuantizedFrom;
  if (g.Needs(1) && g.IntAttr("block_size", 0) != 0)
    return g.Refuse("has no gradient of blocked scales");
  const int rank = g.Rank(0);
  if (!g.refusal().empty()) return;
  const Granularity granularity(g.node(), g.input(0));
  const Expr scale = g.input(1);
  Quantized before;
  if (has_source) {
    const Node* quantize = g.node().input(0)->producer();
    const Expr x = g.input(QuantizedLinks::kQuantizedFrom);
    // DynamicQuantizeLinear takes its scale from the range of X: it clips nothing.
    const bool clips = quantize->Is("QuantizeLinear");
    if (clips) before = BeforeRounding(*quantize, x, g.dY());
    else before.ratio = Cast(x, g.dY().dtype()) / granularity.Beside(scale, g.dY());
    Expr dx = clips ? before.mask * g.dY() : g.dY();
    if (clips && !SameParameter(quantize->input(1), scale.value())) {
      const Expr own = Granularity(*quantize, x).Beside({quantize->input(1), x.writer()}, dx);
      dx = dx * granularity.Beside(scale, dx) / own;
    }
    g.SetInputGradient(QuantizedLinks::kQuantizedFrom, dx);
  }
  if (!g.Needs(1)) return;
  Expr q = Cast(g.input(0), g.dY().dtype());
  if (g.HasInput(2)) q = q - granularity.Beside(g.input(2), g.dY());
  if (has_source) q = q - (before.mask ? before.mask * before.ratio : before.ratio);
  const Expr product = g.dY() * q;
  std::vector<int64_t> others;
  for (int i = 0; i < rank; ++i) {
    if (i != granularity.axis()) others.push_back(i);
  }
  const bool per_axis = granularity.is_per_axis(scale);
  const bool one_axis = per_axis && others.empty();
  const Expr sum =
      one_axis ? product : ReduceSum(product, per_axis ? others : std::vector<int64_t>{}, false);
  g.SetInputGradient(1, ReshapeLike(sum, scale));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> QuantizeOps() {
  return {
    {.op_type = "DequantizeLinear", .rule = {.function = gradient::DequantizeLinearRule, .stops = {0, 2}},
     .derivative_note = "straight to what QuantizeLinear took, where it did not clip; by the scale, but blocked "
     "scales"},
  };
}
// clang-format on

}  // namespace caesura
