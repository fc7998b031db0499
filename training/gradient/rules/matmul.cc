// SPDX-License-Identifier: Apache-2.0
// Gradient rules of matrix products. FusedMatMul (A, B; transA, transB) multiplies the transposes
// of the last two axes and broadcasts the others, as MatMul does.
#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

namespace caesura::gradient {
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

}  // namespace

std::vector<GradientRule> MatMulRules() {
  return {
      {.op_type = "Det", .function = DetRule},
      {.op_type = "FusedMatMul", .function = FusedMatMulRule, .domain = kTrainingDomain},
      {.op_type = "Gemm", .function = GemmRule},
      {.op_type = "MatMul", .function = MatMulRule},
  };
}

}  // namespace caesura::gradient
