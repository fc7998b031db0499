// SPDX-License-Identifier: Apache-2.0
// The rows of products of matrices (core/graph/op_def.h), and their gradient rules.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

Expr Product(Expr a, bool transpose_a, Expr b, bool transpose_b) {
  if (!transpose_a && !transpose_b) return Op("MatMul", {a, b});
  return TrainingOp("FusedMatMul", {a, b},
                    {{"transA", int64_t{transpose_a}}, {"transB", int64_t{transpose_b}}});
}

// Y = op(A) op(B) with transposes, both of rank >= 2. Leaves the sums over broadcast batch axes to
// the caller.
struct Factors {
  Expr a, b;
  bool transpose_a, transpose_b;
};

// dA = dY op(B)^T, or its transpose op(B) dY^T where A was transposed
Expr LeftGradient(const Factors& f, Expr dy) {
  return f.transpose_a ? Product(f.b, f.transpose_b, dy, true)
                       : Product(dy, false, f.b, !f.transpose_b);
}

// dB = op(A)^T dY, or its transpose dY^T op(A) where B was transposed
Expr RightGradient(const Factors& f, Expr dy) {
  return f.transpose_b ? Product(dy, true, f.a, f.transpose_a)
                       : Product(f.a, !f.transpose_a, dy, false);
}

// A matrix of weights under a batch: one product of all rows instead of a sum over batches.
bool SharesRight(const Factors& f) { return f.a.rank() > 2 && f.b.rank() == 2 && !f.transpose_a; }
Expr Rows(Expr x) { return Op("Flatten", {x}, {{"axis", int64_t{-1}}}); }

// True if the batch axes are known to be the same, so that nothing was broadcast.
bool SameBatch(Expr a, Expr b) {
  if (a.rank() < 2 || a.rank() != b.rank()) return false;
  ValueType batch_a = a.value()->type(), batch_b = b.value()->type();
  for (ValueType* type : {&batch_a, &batch_b}) type->shape->resize(type->shape->size() - 2);
  return SameShape(batch_a, batch_b);
}

// The right side comes first: mostly it is the weights', and the last to read A, whose bytes are
// free for dA then.
void SetProductGradients(GradientContext& g, const Factors& f, Expr dy) {
  const bool same = SameBatch(f.a, f.b);
  if (g.Needs(1) && SharesRight(f)) {
    g.SetInputGradient(1, RightGradient({Rows(f.a), f.b, false, f.transpose_b}, Rows(dy)));
  } else if (g.Needs(1)) {
    g.SetInputGradient(1, same ? RightGradient(f, dy) : SumTo(RightGradient(f, dy), f.b));
  }
  if (g.Needs(0))
    g.SetInputGradient(0, same ? LeftGradient(f, dy) : SumTo(LeftGradient(f, dy), f.a));
}

// Y = a B for a vector a;  da = dY B^T, dB = a^T dY, with dY as a row
void VectorLeft(GradientContext& g) {
  const Expr a = g.input(0), b = g.input(1), row = Unsqueeze(g.dY(), {-2});
  g.SetInputGradient(0, ReshapeLike(SumTo(Product(row, false, b, true), Unsqueeze(a, {0})), a));
  g.SetInputGradient(1, SumTo(Unsqueeze(a, {1}) * row, b));
}

// Y = A b for a vector b;  dA = dY b^T, db = A^T dY, with dY as a column
void VectorRight(GradientContext& g) {
  const Expr a = g.input(0), b = g.input(1), column = Unsqueeze(g.dY(), {-1});
  g.SetInputGradient(0, column * b);
  g.SetInputGradient(1, SumTo(Squeeze(Product(a, true, column, false), {-1}), b));
}

// Y = A B;  dA = dY B^T, dB = A^T dY
void MatMulRule(GradientContext& g) {
  const int rank_a = g.Rank(0), rank_b = g.Rank(1);
  const Expr a = g.input(0), b = g.input(1);
  if (rank_a == 1 && rank_b == 1) {  // a dot product
    g.SetInputGradient(0, g.dY() * b);
    g.SetInputGradient(1, g.dY() * a);
  } else if (rank_a == 1) {
    VectorLeft(g);
  } else if (rank_b == 1) {
    VectorRight(g);
  } else {
    SetProductGradients(g, {a, b, false, false}, g.dY());
  }
}

// Y = alpha op(A) op(B) + bias + addend;  as MatMul, with transposes
void FusedMatMulRule(GradientContext& g) {
  if (g.Rank(0) < 2 || g.Rank(1) < 2)
    return g.Refuse("has a gradient for matrices only, not for vectors");
  const Expr scale =
      g.node().HasAttribute("alpha") ? Number(g.FloatAttr("alpha", 1), g.dY()) : Expr();
  const Factors f = {g.input(0), g.input(1), g.IntAttr("transA", 0) != 0,
                     g.IntAttr("transB", 0) != 0};
  SetProductGradients(g, f, scale ? g.dY() * scale : g.dY());
  if (g.Needs(2)) g.SetInputGradient(2, SumTo(g.dY(), g.input(2)));
  if (g.Needs(3)) g.SetInputGradient(3, g.dY());
}

// Y = alpha op(A) op(B) + beta C;  dA, dB as MatMul times alpha, dC = beta dY
void GemmRule(GradientContext& g) {
  const double alpha = g.FloatAttr("alpha", 1), beta = g.FloatAttr("beta", 1);
  const Factors f = {g.input(0), g.input(1), g.IntAttr("transA", 0) != 0,
                     g.IntAttr("transB", 0) != 0};
  const Expr scaled = alpha == 1 ? g.dY() : g.dY() * alpha;
  if (g.Needs(1)) g.SetInputGradient(1, RightGradient(f, scaled));
  if (g.Needs(0)) g.SetInputGradient(0, LeftGradient(f, scaled));
  if (!g.Needs(2)) return;
  const Expr dC = SameShape(g.input(2).value()->type(), g.output().value()->type())
                      ? g.dY()
                      : SumTo(g.dY(), g.input(2));
  g.SetInputGradient(2, beta == 1 ? dC : dC * beta);
}

// Y = det X;  dX = dY Y X^-T
void DetRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("DetGrad", {g.dY(), g.input(0), g.output()}));
}

// --- bodies ---

// The last two axes swapped.
Expr Swapped(Expr x, int rank) {
  std::vector<int64_t> axes(rank);
  for (int i = 0; i < rank; ++i) axes[i] = i;
  std::swap(axes[rank - 1], axes[rank - 2]);
  return Transpose(x, axes);
}

// dX = dY times the cofactors: the determinants of X without a row and a column
void DetGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1);
  const int rank = b.Rank(1);
  const auto& shape = x.value()->type().shape;
  const int64_t n = rank < 2 ? -1 : shape->back().value;
  if (n < 1) return b.Refuse("has matrices of an unknown size");
  if (n == 1) return b.SetOutput(0, ReshapeLike(dy, x));
  std::vector<int64_t> others, signs, order;  // `others`: of each place those that stay
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) {
      if (k != i) others.push_back(k);
      signs.push_back((i + k) % 2 == 0 ? 1 : -1);
    }
  }
  const auto square = [&](const std::vector<int64_t>& of, int64_t columns) {
    return Op("Reshape", {Ints(of, x), Ints({n, columns}, x)});
  };
  const Expr left = square(others, n - 1);
  const Expr rows = Gather(x, left, rank - 2), minors = Gather(rows, left, rank);
  for (int i = 0; i < rank - 2; ++i) order.push_back(i);
  for (const int i : {0, 2, 1, 3}) order.push_back(rank - 2 + i);
  const Expr sign = Cast(square(signs, n), x.dtype());
  const Expr cofactors = Op("Det", {Transpose(minors, order)}) * sign;
  b.SetOutput(0, Unsqueeze(dy, {rank - 2, rank - 1}) * cofactors);
}

void FusedMatMulBody(OpBody& b) {
  Expr factors[] = {b.input(0), b.input(1)};
  const DType wide =
      static_cast<DType>(b.IntAttr("dtype", static_cast<int64_t>(factors[0].dtype())));
  const bool swaps[] = {b.IntAttr("transA", 0) != 0, b.IntAttr("transB", 0) != 0};
  const bool are_matrices = factors[0].rank() == 2 && factors[1].rank() == 2;
  Expr y;
  if (are_matrices && b.HasInput(2) + b.HasInput(3) < 2) {
    Exprs inputs = {Cast(factors[0], wide), Cast(factors[1], wide)};
    if (b.HasInput(2) || b.HasInput(3))
      inputs.push_back(Cast(b.input(b.HasInput(2) ? 2 : 3), wide));
    AttributeMap attributes = b.Attributes({"alpha"});
    if (swaps[0]) attributes["transA"] = int64_t{1};
    if (swaps[1]) attributes["transB"] = int64_t{1};
    return b.SetOutput(0, Op("Gemm", inputs, attributes));
  }
  for (int i = 0; i < 2; ++i) {
    factors[i] = Cast(factors[i], wide);
    if (swaps[i] && b.Rank(i) >= 2) factors[i] = Swapped(factors[i], b.Rank(i));
  }
  y = Op("MatMul", {factors[0], factors[1]});
  if (b.node().HasAttribute("alpha")) y = y * b.FloatAttr("alpha", 1);
  for (const int i : {2, 3}) {
    if (b.HasInput(i)) y = y + Cast(b.input(i), wide);
  }
  b.SetOutput(0, y);
}

}  // namespace
}  // namespace gradient

namespace {

// Matrices on both sides; the left batch dims where the right side has none, or the same.
Status InferFusedMatMul(Graph& graph, Node* node) {
  const Value *a = node->input(0), *b = node->input(1);
  if (a == nullptr || b == nullptr || !a->type().shape || !b->type().shape)
    return SameDType(graph, node);
  std::vector<Dim> left = *a->type().shape;
  const std::vector<Dim>& right = *b->type().shape;
  const bool fits =
      left.size() >= 2 && right.size() >= 2 &&
      (right.size() == 2 ||
       (left.size() == right.size() && std::equal(left.begin(), left.end() - 2, right.begin())));
  if (!fits) return SameDType(graph, node);
  if (node->Attr<int64_t>("transA", 0) != 0) std::swap(left[left.size() - 2], left.back());
  left.back() = right[right.size() - (node->Attr<int64_t>("transB", 0) != 0 ? 2 : 1)];
  ValueType type = ValueType::Tensor(ResultDType(*node));
  type.shape = std::move(left);
  Value* y = node->output(0);
  if (y != nullptr && (!y->type().is_tensor() || !y->type().shape)) y->set_type(std::move(type));
  return {};
}

}  // namespace

// clang-format off
std::vector<OpDef> GemmOps() {
  using Work = OpDef::Work;
  constexpr int kAll = OpDef::kAll;
  return {
    {.op_type = "Det", .rule = {.function = gradient::DetRule}},
    {.op_type = "Gemm", .computes_in_half = true, .half_inputs = kAll, .work = Work::kProduct,
     .rule = {.function = gradient::GemmRule}},
    {.op_type = "MatMul", .computes_in_half = true, .half_inputs = kAll, .work = Work::kProduct,
     .rule = {.function = gradient::MatMulRule}},
    // FusedMatMul (A, B, bias?, addend?) -> Y  Y = alpha op(A) op(B) + bias + addend, where transA and transB swap the
    // last two axes; the bias is a row, the addend has Y's shape. Attribute dtype: float32, of Y and the addend where
    // the others are of half. Made by rules and by matmul_epilogue
    {.op_type = "FusedMatMul", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 4,
     .infer = InferFusedMatMul, .computes_in_half = true, .half_inputs = kAll, .work = Work::kProduct,
     .rule = {.function = gradient::FusedMatMulRule}, .body = gradient::FusedMatMulBody},
    // DetGrad (dY, X, Y) -> dX
    {.op_type = "DetGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3, .type_of_output = {1},
     .rule = {.stops = {2}, .by_body = true}, .body = gradient::DetGradBody},
  };
}
// clang-format on

}  // namespace caesura
