// SPDX-License-Identifier: Apache-2.0
// Updates that reduce or multiply whole parameters, of ONNX's ops: the formulas of torch.optim (as
// of PyTorch 2.13). g is the gradient, already scaled; t the number of the step. What is one number
// for all of a parameter is a float64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "training/step/update_writer.h"

namespace caesura {
namespace {

const ValueType kNumber = ValueType::Tensor(DType::kFloat64, Shape{});

double SmallestStep(DType dtype) {
  return dtype == DType::kFloat64   ? std::numeric_limits<double>::epsilon()
         : dtype == DType::kFloat32 ? 0x1p-23
         : dtype == DType::kFloat16 ? 0x1p-10
                                    : 0x1p-7;
}

}  // namespace

Value* UpdateWriter::Constant(double value) {
  return graph_.AddInitializer("caesura.constant", Tensor::Scalar<double>(value));
}

Value* UpdateWriter::Number(const std::string& op_type, std::vector<Value*> inputs) {
  return Op(op_type, std::move(inputs), kNumber);
}

Value* UpdateWriter::As(Value* value, DType dtype) {
  ValueType type = value->type();
  type.dtype = dtype;
  return Op("Cast", {value}, type, {{"to", static_cast<int64_t>(dtype)}});
}

Value* UpdateWriter::Fed(const Rates& rates, const std::string& name) {
  const auto& fed = options_.fed_coefficients;
  const auto found = std::find(fed.begin(), fed.end(), name);
  if (found == fed.end()) return nullptr;
  const int64_t at = static_cast<int64_t>(rates.group.row * fed.size()) + (found - fed.begin());
  return Op(
      "Gather",
      {rates.coefficients, graph_.AddInitializer("caesura.place", Tensor::Scalar<int64_t>(at))},
      kNumber);
}

Value* UpdateWriter::Coefficient(const Rates& rates, const std::string& name, double written) {
  if (options_.fed_coefficients.empty() && name == "learning_rate") return rates.coefficients;
  Value* fed = Fed(rates, name);
  return fed == nullptr ? Constant(written) : fed;
}

Value* UpdateWriter::Scaled(const Rates& rates, Value* gradient) {
  return Op("Mul", {gradient, As(rates.scale, gradient->dtype())}, gradient->type());
}

void UpdateWriter::Store(const Rates& rates, Value* target, Value* value) {
  const ValueType flag = ValueType::Tensor(DType::kBool, Shape{});
  if (inverse_scale_ != nullptr) {
    // Not finite: the difference to itself is no number.
    Value* difference = Number("Sub", {rates.scale, rates.scale});
    value = Op("Where", {Op("IsNaN", {difference}, flag), target, value}, target->type());
  } else if (options_.skips_unused) {
    value = Op("Where", {Op("IsInf", {rates.scale}, flag), target, value}, target->type());
  }
  Assign(target, value);
}

// Shazeer and Stern 2018, with PyTorch's rates:  w = t^beta2_decay;  a = max(epsilon2, rms(p))
// min(lr, 1 / sqrt(t)) p *= 1 - lr weight_decay;  of two axes or more  R = lerp(R, mean(g^2, last
// axis), w), C = lerp(C, mean(g^2, last but one), w),  V = R C / max(mean(R), epsilon1);  otherwise
// V = lerp(V, g^2, w) u = g / max(sqrt(V), epsilon1);  p -= a u / max(1, rms(u) / d)
void UpdateWriter::Compose(const Adafactor& o, const Rates& rates, Value* parameter,
                           Value* gradient) {
  const Tensor& like = *graph_.Initializer(parameter);
  const DType dtype = like.dtype();
  const ValueType type = ValueType::Tensor(dtype, like.shape());
  const int rank = static_cast<int>(like.shape().rank());
  const double epsilon1 = o.epsilon1 < 0 ? SmallestStep(dtype) : o.epsilon1;
  const double side = std::sqrt(static_cast<double>(std::max<int64_t>(1, like.elements())));
  const auto rms = [&](Value* x) {
    Value* norm =
        Op("ReduceL2", {x}, ValueType::Tensor(dtype, Shape{}), {{"keepdims", int64_t{0}}});
    return Number("Div", {As(norm, DType::kFloat64), Constant(side)});
  };
  Value* rate = Coefficient(rates, "learning_rate", o.learning_rate);
  Value* t = As(rates.step, DType::kFloat64);
  if (Value* offset = Fed(rates, kStepOffset)) t = Number("Add", {t, offset});
  Value* weight = Number("Pow", {t, Coefficient(rates, "beta2_decay", o.beta2_decay)});
  Value* most = Number("Min", {rate, Number("Reciprocal", {Number("Sqrt", {t})})});
  Value* alpha = Number(
      "Mul", {Number("Max", {Coefficient(rates, "epsilon2", o.epsilon2), rms(parameter)}), most});
  Value* decay = Number("Mul", {rate, Coefficient(rates, "weight_decay", o.weight_decay)});
  Value* kept = Op("Mul", {parameter, As(Number("Sub", {Constant(1), decay}), dtype)}, type);

  Value* g = Scaled(rates, gradient);
  if (o.maximize) g = Op("Neg", {g}, type);
  Value* g2 = Op("Mul", {g, g}, type);
  Value *in = As(weight, dtype), *stays = As(Number("Sub", {Constant(1), weight}), dtype);
  // lerp(state, by, weight), which the state becomes.
  const auto moved = [&](const char* name, Value* by, const Shape& shape) {
    const ValueType of = ValueType::Tensor(dtype, shape);
    Value* state = State(std::string("optimizer.") + name, parameter->name(), shape, dtype);
    Value* result = Op("Add", {Op("Mul", {state, stays}, of), Op("Mul", {by, in}, of)}, of);
    Store(rates, state, result);
    return result;
  };
  const auto mean = [&](Value* x, int axis, const Shape& shape) {
    Value* axes = graph_.AddInitializer("caesura.axes", Tensor::Of<int64_t>({1}, {axis}));
    return Op("ReduceMean", {x, axes}, ValueType::Tensor(dtype, shape));
  };
  Value* variance = nullptr;
  if (rank < 2) {
    variance = moved("variance", g2, like.shape());
  } else {
    Shape row = like.shape(), column = row;
    row[rank - 1] = column[rank - 2] = 1;
    Value* rows = moved("row_var", mean(g2, rank - 1, row), row);
    Value* columns = moved("col_var", mean(g2, rank - 2, column), column);
    Shape whole = row;
    whole[rank - 2] = 1;
    const ValueType of = ValueType::Tensor(dtype, whole);
    Value* least = Op("Max", {mean(rows, rank - 2, whole), As(Constant(epsilon1), dtype)}, of);
    variance = Op("Div", {Op("Mul", {rows, columns}, type), least}, type);
  }
  Value* root =
      Op("Sqrt", {Op("Max", {variance, As(Constant(epsilon1 * epsilon1), dtype)}, type)}, type);
  Value* u = Op("Mul", {Op("Reciprocal", {root}, type), g}, type);
  Value* clip = Number("Max", {Constant(1), Number("Div", {rms(u), Coefficient(rates, "d", o.d)})});
  Value* size = As(Number("Div", {alpha, clip}), dtype);
  Store(rates, parameter, Op("Sub", {kept, Op("Mul", {u, size}, type)}, type));
}

// Jordan et al. 2024:  B = lerp(B, g, 1 - momentum);  u = lerp(g, B, momentum) with Nesterov,
// otherwise B X = u / max(|u|, epsilon), wide (transposed where it is tall);  ns_steps times  A = X
// X';  X = a X + (b A + c A A) X p *= 1 - lr weight_decay;  p -= lr ratio X, by the sides of the
// matrix X is rounded to bfloat16 after each product, as in PyTorch.
void UpdateWriter::Compose(const Muon& o, const Rates& rates, Value* parameter, Value* gradient) {
  const Tensor& like = *graph_.Initializer(parameter);
  const DType dtype = like.dtype();
  const ValueType type = ValueType::Tensor(dtype, like.shape());
  const int64_t rows = like.shape()[0], columns = like.shape()[1];
  const bool is_tall = rows > columns;
  const auto binary = [&](const char* op, Value* a, Value* b) { return Op(op, {a, b}, a->type()); };
  // a + (b - a) weight
  const auto lerp = [&](Value* a, Value* b, Value* weight) {
    return binary("Add", binary("Mul", a, As(Number("Sub", {Constant(1), weight}), dtype)),
                  binary("Mul", b, As(weight, dtype)));
  };
  const auto rounded = [&](Value* x) { return As(As(x, DType::kBFloat16), DType::kFloat32); };
  const auto number = [&](double value) {
    return graph_.AddInitializer("caesura.constant", Tensor::Scalar(static_cast<float>(value)));
  };
  const AttributeMap swapped = {{"perm", std::vector<int64_t>{1, 0}}};
  const int64_t least = std::min(rows, columns), most = std::max(rows, columns);
  const ValueType flat = ValueType::Tensor(DType::kFloat32, Shape{least, most});
  const ValueType tall = ValueType::Tensor(DType::kFloat32, Shape{most, least});
  const ValueType square = ValueType::Tensor(DType::kFloat32, Shape{least, least});

  Value* g = Scaled(rates, gradient);
  Value* momentum = Coefficient(rates, "momentum", o.momentum);
  Value* state = State("optimizer.momentum_buffer", parameter->name(), like.shape(), dtype);
  Value* buffer = lerp(state, g, Number("Sub", {Constant(1), momentum}));
  Store(rates, state, buffer);
  Value* x = rounded(o.nesterov ? lerp(g, buffer, momentum) : buffer);
  if (is_tall) x = Op("Transpose", {x}, flat, swapped);
  Value* norm = rounded(
      Op("ReduceL2", {x}, ValueType::Tensor(DType::kFloat32, Shape{}), {{"keepdims", int64_t{0}}}));
  x = rounded(binary("Div", x, binary("Max", norm, number(o.epsilon))));
  for (int i = 0; i < static_cast<int>(o.ns_steps); ++i) {
    Value* gram = rounded(Op("MatMul", {x, Op("Transpose", {x}, tall, swapped)}, square));
    Value* product = binary("Mul", Op("MatMul", {gram, gram}, square), number(o.ns_c));
    Value* polynomial = rounded(binary("Add", binary("Mul", gram, number(o.ns_b)), product));
    x = rounded(
        binary("Add", binary("Mul", x, number(o.ns_a)), Op("MatMul", {polynomial, x}, flat)));
  }
  if (is_tall) x = Op("Transpose", {x}, tall, swapped);
  const double sides = static_cast<double>(rows) / static_cast<double>(columns);
  const double ratio = o.match_rms_adamw
                           ? 0.2 * std::sqrt(static_cast<double>(most))
                           : std::sqrt(o.spectral_unclamped ? sides : std::max(1.0, sides));
  Value* rate = Coefficient(rates, "learning_rate", o.learning_rate);
  Value* decay = Number("Mul", {rate, Coefficient(rates, "weight_decay", o.weight_decay)});
  Value* kept = Op("Mul", {parameter, As(Number("Sub", {Constant(1), decay}), dtype)}, type);
  Value* size = As(Number("Mul", {rate, Constant(ratio)}), dtype);
  Store(rates, parameter, Op("Sub", {kept, Op("Mul", {As(x, dtype), size}, type)}, type));
}

}  // namespace caesura
