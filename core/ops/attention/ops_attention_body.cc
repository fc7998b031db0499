// SPDX-License-Identifier: Apache-2.0
// Attention and its gradient by products. Both write the probabilities in the same way, so that
// they are computed once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ops/infer_types.h"
#include "core/ops/op_bodies.h"

namespace caesura::gradient {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Q, K, V and the mask as inputs from `first` on: tensors of heads [batch, heads, positions, size].
class Attention {
 public:
  Attention(OpBody& b, int first) : b_(b), first_(first) {}

  // False where the node was refused.
  bool Write() {
    rank_ = b_.Rank(first_);
    const auto size_of = [&](int input, int axis) {
      const auto& shape = b_.input(input).value()->type().shape;
      return shape && axis < static_cast<int>(shape->size()) ? (*shape)[axis].value : -1;
    };
    if (rank_ == 4) {
      q_heads_ = size_of(first_, 1);
      k_heads_ = size_of(first_ + 1, 1);
    } else {
      q_heads_ = b_.IntAttr("q_num_heads", -1);
      k_heads_ = b_.IntAttr("kv_num_heads", -1);
    }
    if (q_heads_ < 1 || k_heads_ < 1) {
      b_.Refuse("has an unknown number of heads");
      return false;
    }
    if (b_.IntAttr("softmax_precision", 0) != 0 &&
        static_cast<DType>(b_.IntAttr("softmax_precision", 0)) != b_.input(first_).dtype()) {
      b_.Refuse("has a softmax of another precision");
      return false;
    }
    q = Heads(b_.input(first_), q_heads_);
    k = Repeated(Heads(b_.input(first_ + 1), k_heads_));
    v = Repeated(Heads(b_.input(first_ + 2), k_heads_));
    const int64_t width = size_of(first_, rank_ - 1), size = rank_ == 4 ? width : width / q_heads_;
    if (!b_.node().HasAttribute("scale") && width < 0) {
      b_.Refuse("is scaled by the size of its heads, which is unknown");
      return false;
    }
    scale = b_.node().HasAttribute("scale") ? b_.FloatAttr("scale", 1)
                                            : 1 / std::sqrt(static_cast<double>(size));
    scores = Op("MatMul", {q * scale, Transpose(k, {0, 1, 3, 2})});
    softcap = b_.FloatAttr("softcap", 0);
    if (softcap > 0) {
      capped = Tanh(scores / softcap);
      scores = capped * softcap;
    }
    return AddMask() && AddPositions();
  }

  Expr Probabilities() {
    const Expr p = Op("Softmax", {scores}, {{"axis", int64_t{-1}}}), zero = Number(0, p);
    const int64_t nan_rows = b_.IntAttr("nan_rows", 0);  // NanRows of attention_spec.h
    if (nan_rows == 2) return Where(Op("IsNaN", {p}), zero, p);
    return nan_rows == 0 && has_mask ? Where(Nowhere(), zero, p) : p;
  }
  // It is +inf for queries that may look nowhere.
  Expr LogSum() {
    const Expr wide = Cast(scores, LogSumDType(scores.dtype()));
    const Expr sum = Op("ReduceLogSumExp", {wide, Ints({-1}, wide)}, {{"keepdims", int64_t{1}}});
    const Expr known = has_mask ? Where(Nowhere(), Number(kInfinity, sum), sum) : sum;
    return Squeeze(known, {-1});
  }

  // Heads as the node has them in inputs and outputs.
  Expr Joined(Expr x) const {
    if (rank_ == 4) return x;
    return Op("Reshape", {Transpose(x, {0, 2, 1, 3}), Ints({0, 0, -1}, x)});
  }
  // The gradient of keys or values: sums over the queries' heads that share one.
  Expr Shared(Expr x) const {
    if (q_heads_ == k_heads_) return x;
    const Expr apart =
        Op("Reshape", {x, Concat({Ints({0, k_heads_, q_heads_ / k_heads_}, x), ShapeOf(x, 2)}, 0)});
    return ReduceSum(apart, {2}, false);
  }

  Expr q, k, v, scores, capped;
  double scale = 1, softcap = 0;
  bool has_mask = false;

 private:
  Expr Heads(Expr x, int64_t heads) const {
    if (rank_ == 4) return x;
    return Transpose(Op("Reshape", {x, Ints({0, 0, heads, -1}, x)}), {0, 2, 1, 3});
  }
  // A head of keys for each one of queries.
  Expr Repeated(Expr x) const {
    if (q_heads_ == k_heads_) return x;
    const Expr ones = Ints({1, 1, q_heads_ / k_heads_, 1, 1}, x);
    return Op("Reshape", {Expand(Unsqueeze(x, {2}), ones),
                          Concat({Ints({0, q_heads_}, x), ShapeOf(x, 2)}, 0)});
  }
  Expr Nowhere() const {
    const Expr most = Op("ReduceMax", {scores, Ints({-1}, scores)});
    return Equal(most, Number(-kInfinity, most));
  }
  bool AddMask() {
    const Expr mask = b_.input(first_ + 3);
    if (!mask) return true;
    has_mask = true;
    const auto &of_mask = mask.value()->type().shape,
               &of_keys = b_.input(first_ + 1).value()->type().shape;
    const Dim keys = of_keys ? (*of_keys)[rank_ == 4 ? 2 : 1] : Dim{};
    const bool fits = of_mask && !of_mask->empty() &&
                      (of_mask->back() == keys && (keys.known() || !keys.symbol.empty()));
    if (!fits) {
      b_.Refuse("has a mask that may be shorter than the keys");
      return false;
    }
    scores = mask.dtype() == DType::kBool
                 ? Where(mask, scores, Number(b_.FloatAttr("hidden_score", -kInfinity), scores))
                 : scores + mask;
    return true;
  }
  // Causality and windows.
  bool AddPositions() {
    for (const int i : {4, 5, 6}) {
      if (first_ == 0 && b_.HasInput(i)) {
        b_.Refuse("has a cache or lengths of its samples");
        return false;
      }
    }
    const int64_t left = b_.IntAttr("left_window_size", -1);
    int64_t right = b_.IntAttr("right_window_size", -1);
    if (b_.IntAttr("is_causal", 0) != 0) right = right < 0 ? 0 : std::min<int64_t>(right, 0);
    if (left < 0 && right < 0) return true;
    const auto places = [&](Expr x, int64_t axis) {
      const Expr count = Squeeze(DimOf(x, 2), {0});
      return Unsqueeze(Op("Range", {Int(0, count), count, Int(1, count)}), {axis});
    };
    const Expr queries = places(q, 1), keys = places(k, 0);
    Expr sees;
    if (right >= 0) sees = LessOrEqual(keys, queries + Int(right, keys));
    if (left >= 0) {
      const Expr from = GreaterOrEqual(keys, queries - Int(left, keys));
      sees = sees ? And(sees, from) : from;
      has_mask = true;  // a query past all keys sees none
    }
    scores = Where(sees, scores, Number(-kInfinity, scores));
    return true;
  }

  OpBody& b_;
  int first_, rank_ = 0;
  int64_t q_heads_ = 0, k_heads_ = 0;
};

}  // namespace

void AttentionTrainingBody(OpBody& b) {
  Attention a(b, 0);
  if (b.Wants(1) || b.Wants(2) || b.Wants(3))
    return b.Refuse("has keys, values or scores as outputs");
  if (!a.Write()) return;
  b.SetOutput(0, a.Joined(Op("MatMul", {a.Probabilities(), a.v})));
  if (b.Wants(4)) b.SetOutput(4, a.LogSum());
}

// dV = P^T dY, dS = P (dP - sum of dP P) with dP = dY V^T, dQ = dS K, dK = dS^T Q, dM = dS
void AttentionGradBody(OpBody& b) {
  Attention a(b, 1);
  if (!a.Write()) return;
  const auto turned = [](Expr x) { return Transpose(x, {0, 1, 3, 2}); };
  Expr dy = b.input(0);
  const int64_t heads = b.IntAttr("q_num_heads", 0);
  if (b.Rank(1) == 3)
    dy = Transpose(Op("Reshape", {dy, Ints({0, 0, heads, -1}, dy)}), {0, 2, 1, 3});
  const Expr p = a.Probabilities();
  if (b.Wants(2)) b.SetOutput(2, a.Joined(a.Shared(Op("MatMul", {turned(p), dy}))));
  if (!b.Wants(0) && !b.Wants(1) && !b.Wants(3)) return;
  const Expr dp = Op("MatMul", {dy, turned(a.v)});
  Expr ds = p * (dp - ReduceSum(dp * p, {-1}, true));
  if (b.Wants(3)) {
    ValueType type = ValueType::Tensor(ds.dtype());
    type.shape = std::vector<Dim>(4);
    ds.value()->set_type(std::move(type));
    b.SetOutput(3, SumTo(ds, b.input(4)));
  }
  if (a.softcap > 0) ds = ds * (1 - Square(a.capped));
  ds = ds * a.scale;
  if (b.Wants(0)) b.SetOutput(0, a.Joined(Op("MatMul", {ds, a.k})));
  if (b.Wants(1)) b.SetOutput(1, a.Joined(a.Shared(Op("MatMul", {turned(ds), a.q}))));
}

}  // namespace caesura::gradient
