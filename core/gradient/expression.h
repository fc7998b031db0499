// SPDX-License-Identifier: Apache-2.0
// Expr: a value of the graph that gradient rules calculate with. An operator or function on Exprs
// appends the node:
//
//   g.SetInputGradient(0, g.dY() * Cos(g.input(0)));   // Y = sin(X)
//
// A null Expr is an absent input; operators take no null ones. Numbers take the dtype of the Expr
// beside them.
#ifndef CAESURA_CORE_GRADIENT_EXPRESSION_H_
#define CAESURA_CORE_GRADIENT_EXPRESSION_H_

#include <string>
#include <vector>

#include "core/gradient/node_writer.h"

namespace caesura::gradient {

class Expr {
 public:
  Expr() = default;
  Expr(Value* value, NodeWriter* writer) : value_(value), writer_(writer) {}
  explicit operator bool() const { return value_ != nullptr; }
  Value* value() const { return value_; }
  NodeWriter* writer() const { return writer_; }
  DType dtype() const { return value_->dtype(); }
  // -1 when unknown.
  int rank() const { return KnownRank(value_->type()); }

 private:
  Value* value_ = nullptr;
  NodeWriter* writer_ = nullptr;
};
using Exprs = std::vector<Expr>;

// Any op; the writer is that of the first input that is present.
Expr Op(const std::string& op_type, const Exprs& inputs, AttributeMap attributes = {},
        const std::string& domain = "");
Exprs Ops(const std::string& op_type, const Exprs& inputs, int output_count,
          AttributeMap attributes = {}, const std::string& domain = "");
// An op of core/ops.
Expr TrainingOp(const std::string& op_type, const Exprs& inputs, AttributeMap attributes = {});

// --- constants, in the manner of `like` ---
Expr Number(double value, Expr like);
Expr Ints(const std::vector<int64_t>& values, Expr like);
Expr Int(int64_t value, Expr like);                        // a scalar
Expr ShapeOf(Expr x, int64_t start = 0, int64_t end = 0);  // `end` 0: to the last dim
Expr DimOf(Expr x, int64_t axis);                          // rank 1, one element
Expr ZerosLike(Expr x);
Expr OnesLike(Expr x);
Expr Filled(double value, Expr shape, Expr like);

// --- arithmetic ---
Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
Expr operator/(Expr a, Expr b);
Expr operator-(Expr a);
Expr operator+(Expr a, double b);
Expr operator-(Expr a, double b);
Expr operator*(Expr a, double b);
Expr operator/(Expr a, double b);
Expr operator+(double a, Expr b);
Expr operator-(double a, Expr b);
Expr operator*(double a, Expr b);
Expr operator/(double a, Expr b);

Expr Abs(Expr x);
Expr Cos(Expr x);
Expr Cosh(Expr x);
Expr Exp(Expr x);
Expr Log(Expr x);
Expr Reciprocal(Expr x);
Expr Sigmoid(Expr x);
Expr Sign(Expr x);
Expr Sin(Expr x);
Expr Sinh(Expr x);
Expr Sqrt(Expr x);
Expr Square(Expr x);
Expr Tanh(Expr x);
Expr Pow(Expr x, double exponent);

// --- comparison (bool) and choice ---
Expr Equal(Expr a, Expr b);
Expr Greater(Expr a, Expr b);
Expr GreaterOrEqual(Expr a, Expr b);
Expr Less(Expr a, Expr b);
Expr LessOrEqual(Expr a, Expr b);
Expr And(Expr a, Expr b);
Expr Or(Expr a, Expr b);
Expr Where(Expr condition, Expr a, Expr b);
Expr Cast(Expr x, DType dtype);
// 1 where the condition holds, else 0, in the dtype of `like`.
Expr Mask(Expr condition, Expr like);

// --- shape ---
Expr Reshape(Expr x, Expr shape);  // a dim 0 means zero
Expr ReshapeLike(Expr x, Expr like);
Expr Expand(Expr x, Expr shape);
Expr Unsqueeze(Expr x, const std::vector<int64_t>& axes);
Expr Squeeze(Expr x, const std::vector<int64_t>& axes);
Expr Transpose(Expr x, const std::vector<int64_t>& permutation);
Expr Concat(const Exprs& xs, int64_t axis);
// x[..., start:end, ...] along one axis.
Expr Slice(Expr x, Expr start, Expr end, int64_t axis);
Expr Gather(Expr x, Expr indices, int64_t axis);
// Sums over `axes`; empty: over all.
Expr ReduceSum(Expr x, const std::vector<int64_t>& axes, bool keepdims);
// Sums over the axes that broadcasting expanded from the shape of `like`.
Expr SumTo(Expr x, Expr like);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_EXPRESSION_H_
