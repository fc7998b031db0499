// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/expression.h"

namespace caesura::gradient {
namespace {

NodeWriter* WriterOf(const Exprs& inputs) {
  for (const Expr& input : inputs) {
    if (input.writer() != nullptr) return input.writer();
  }
  return nullptr;
}

}  // namespace

Exprs Ops(const std::string& op_type, const Exprs& inputs, int output_count,
          AttributeMap attributes, const std::string& domain) {
  NodeWriter* writer = WriterOf(inputs);
  std::vector<Value*> values;
  for (const Expr& input : inputs) values.push_back(input.value());
  Node* node = writer->Add(op_type, std::move(values), std::move(attributes), domain, output_count);
  Exprs out;
  for (Value* output : node->outputs()) out.emplace_back(output, writer);
  return out;
}

Expr Op(const std::string& op_type, const Exprs& inputs, AttributeMap attributes,
        const std::string& domain) {
  return Ops(op_type, inputs, 1, std::move(attributes), domain)[0];
}

Expr TrainingOp(const std::string& op_type, const Exprs& inputs, AttributeMap attributes) {
  return Op(op_type, inputs, std::move(attributes), kCaesuraDomain);
}

Expr Number(double value, Expr like) {
  NodeWriter* writer = like.writer();
  if (like.dtype() != DType::kUndefined) return {writer->Scalar(value, like.dtype()), writer};
  return Op("CastLike", {Expr(writer->Scalar(value, DType::kFloat32), writer), like});
}

Expr Ints(const std::vector<int64_t>& values, Expr like) {
  return {like.writer()->Ints(values), like.writer()};
}
Expr Int(int64_t value, Expr like) { return {like.writer()->Int(value), like.writer()}; }
Expr ShapeOf(Expr x, int64_t start, int64_t end) {
  return {x.writer()->ShapeOf(x.value(), start, end), x.writer()};
}
Expr DimOf(Expr x, int64_t axis) { return ShapeOf(x, axis, axis + 1); }
Expr ZerosLike(Expr x) { return Expand(Number(0, x), ShapeOf(x)); }
Expr OnesLike(Expr x) { return Expand(Number(1, x), ShapeOf(x)); }
Expr Filled(double value, Expr shape, Expr like) { return Expand(Number(value, like), shape); }

Expr operator+(Expr a, Expr b) { return Op("Add", {a, b}); }
Expr operator-(Expr a, Expr b) { return Op("Sub", {a, b}); }
Expr operator*(Expr a, Expr b) { return Op("Mul", {a, b}); }
Expr operator/(Expr a, Expr b) { return Op("Div", {a, b}); }
Expr operator-(Expr a) { return Op("Neg", {a}); }
Expr operator+(Expr a, double b) { return a + Number(b, a); }
Expr operator-(Expr a, double b) { return a - Number(b, a); }
Expr operator*(Expr a, double b) { return a * Number(b, a); }
Expr operator/(Expr a, double b) { return a / Number(b, a); }
Expr operator+(double a, Expr b) { return Number(a, b) + b; }
Expr operator-(double a, Expr b) { return Number(a, b) - b; }
Expr operator*(double a, Expr b) { return Number(a, b) * b; }
Expr operator/(double a, Expr b) { return Number(a, b) / b; }

Expr Abs(Expr x) { return Op("Abs", {x}); }
Expr Cos(Expr x) { return Op("Cos", {x}); }
Expr Cosh(Expr x) { return Op("Cosh", {x}); }
Expr Exp(Expr x) { return Op("Exp", {x}); }
Expr Log(Expr x) { return Op("Log", {x}); }
Expr Reciprocal(Expr x) { return Op("Reciprocal", {x}); }
Expr Sigmoid(Expr x) { return Op("Sigmoid", {x}); }
Expr Sign(Expr x) {
  return Op("Sign", {Op("Shrink", {x}, {{"lambd", 0.0f}, {"bias", 0.0f}})});  // 0 of NaN
}
Expr Sin(Expr x) { return Op("Sin", {x}); }
Expr Sinh(Expr x) { return Op("Sinh", {x}); }
Expr Sqrt(Expr x) { return Op("Sqrt", {x}); }
Expr Square(Expr x) { return x * x; }
Expr Tanh(Expr x) { return Op("Tanh", {x}); }
Expr Pow(Expr x, double exponent) { return Op("Pow", {x, Number(exponent, x)}); }

Expr Equal(Expr a, Expr b) { return Op("Equal", {a, b}); }
Expr Greater(Expr a, Expr b) { return Op("Greater", {a, b}); }
Expr GreaterOrEqual(Expr a, Expr b) { return Op("GreaterOrEqual", {a, b}); }
Expr Less(Expr a, Expr b) { return Op("Less", {a, b}); }
Expr LessOrEqual(Expr a, Expr b) { return Op("LessOrEqual", {a, b}); }
Expr And(Expr a, Expr b) { return Op("And", {a, b}); }
Expr Or(Expr a, Expr b) { return Op("Or", {a, b}); }
Expr Where(Expr condition, Expr a, Expr b) { return Op("Where", {condition, a, b}); }
Expr Cast(Expr x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return Op("Cast", {x}, {{"to", static_cast<int64_t>(dtype)}});
}
Expr Mask(Expr condition, Expr like) {
  if (like.dtype() == DType::kUndefined) return Op("CastLike", {condition, like});
  return Cast(condition, like.dtype());
}

Expr Reshape(Expr x, Expr shape) { return Op("Reshape", {x, shape}, {{"allowzero", int64_t{1}}}); }
Expr ReshapeLike(Expr x, Expr like) { return Reshape(x, ShapeOf(like)); }
Expr Expand(Expr x, Expr shape) { return Op("Expand", {x, shape}); }
Expr Unsqueeze(Expr x, const std::vector<int64_t>& axes) {
  return Op("Unsqueeze", {x, Ints(axes, x)});
}
Expr Squeeze(Expr x, const std::vector<int64_t>& axes) { return Op("Squeeze", {x, Ints(axes, x)}); }
Expr Transpose(Expr x, const std::vector<int64_t>& permutation) {
  return Op("Transpose", {x}, {{"perm", permutation}});
}
Expr Concat(const Exprs& xs, int64_t axis) {
  return xs.size() == 1 ? xs[0] : Op("Concat", xs, {{"axis", axis}});
}
Expr Slice(Expr x, Expr start, Expr end, int64_t axis) {
  return Op("Slice", {x, start, end, Ints({axis}, x)});
}
Expr Gather(Expr x, Expr indices, int64_t axis) {
  return Op("Gather", {x, indices}, {{"axis", axis}});
}
Expr ReduceSum(Expr x, const std::vector<int64_t>& axes, bool keepdims) {
  AttributeMap attributes = {{"keepdims", int64_t{keepdims}}};
  return Op("ReduceSum", axes.empty() ? Exprs{x} : Exprs{x, Ints(axes, x)}, std::move(attributes));
}
Expr SumTo(Expr x, Expr like) {
  if (SameShape(x.value()->type(), like.value()->type())) return x;
  return TrainingOp("SumTo", {x, ShapeOf(like)});
}

}  // namespace caesura::gradient
