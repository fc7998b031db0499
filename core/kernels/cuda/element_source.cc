// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/element_source.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "core/graph/op_def.h"

namespace caesura {
namespace {

// A function of <math.h> by its double name, for the dtype.
std::string Call(const std::string& name, DType dtype, const std::string& arguments) {
  return name + (dtype == DType::kFloat64 ? "(" : "f(") + arguments + ")";
}

// The expression with the value in place of the name x.
std::string WithX(std::string_view expression, const std::string& value) {
  const auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  std::string out = "(";
  for (size_t i = 0; i < expression.size(); ++i) {
    const bool is_x = expression[i] == 'x' && (i == 0 || !in_name(expression[i - 1])) &&
                      (i + 1 == expression.size() || !in_name(expression[i + 1]));
    out += is_x ? value : std::string(1, expression[i]);
  }
  return out + ")";
}

// One op's expression while it is written. `x(i)` is input i.
struct Scribe {
  const Node& node;
  DType dtype;  // of input 0
  const std::vector<DType>& dtypes;
  DType output;
  const std::vector<std::string>& inputs;

  const std::string& x(size_t i) const { return inputs[i]; }
  std::string number(double value) const { return CudaLiteral(dtype, value); }
  std::string attribute(const char* name, float fallback) const {
    return number(node.Attr<float>(name, fallback));
  }
  std::string call(const std::string& name, const std::string& arguments) const {
    return Call(name, dtype, arguments);
  }
  // An expression in the name x, with input 0 in its place.
  std::string with_x(std::string_view expression) const {
    return std::string("((") + CudaComputeType(dtype) + ")" + WithX(expression, x(0)) + ")";
  }
};

using Write = std::string (*)(const Scribe&);

struct Row {
  const char* op_type;
  DTypeSet types;
  Write write;
  const char* domain = "";
};

std::string Sigmoid(const Scribe& s, const std::string& x) {
  return "Inverse(" + s.number(1) + " + " + s.call("exp", "-(" + x + ")") + ")";
}

std::string Softplus(const Scribe& s, const std::string& x) {
  return "(" + s.call("fmax", x + ", " + s.number(0)) + " + " +
         s.call("log1p", s.call("exp", "-" + s.call("fabs", x))) + ")";
}

// x < limit ? low : x, a NaN staying itself.
std::string Choose(const std::string& condition, const std::string& yes, const std::string& no) {
  return "(" + condition + " ? " + yes + " : " + no + ")";
}

// Integers wrap around: they are computed without a sign.
std::string Arithmetic(const Scribe& s, const std::string& op) {
  if (IsFloating(s.dtype)) return "(" + s.x(0) + " " + op + " " + s.x(1) + ")";
  return "(" + std::string("(") + CudaComputeType(s.output) + ")((u64)" + s.x(0) + " " + op +
         " (u64)" + s.x(1) + "))";
}

std::string Negated(const Scribe& s) {
  if (IsFloating(s.dtype)) return "(-" + s.x(0) + ")";
  return std::string("((") + CudaComputeType(s.dtype) + ")(0 - (u64)" + s.x(0) + "))";
}

std::string Magnitude(const Scribe& s) {
  if (IsFloating(s.dtype)) return s.call("fabs", s.x(0));
  return Choose(s.x(0) + " < 0", Negated(s), s.x(0));
}

std::string Remainder(const Scribe& s) {
  const std::string both = s.x(0) + ", " + s.x(1);
  return s.node.Attr<int64_t>("fmod", 0) != 0 ? s.call("fmod", both) : "FloorMod(" + both + ")";
}

// C++ promotes narrow integers.
std::string Bits(const Scribe& s, const std::string& expression) {
  return std::string("((") + CudaComputeType(s.dtype) + ")(" + expression + "))";
}

// An amount of all bits or more leaves zero.
std::string BitShift(const Scribe& s) {
  const std::string direction = s.node.Attr<std::string>("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") return {};
  return Choose(s.x(1) + " >= " + std::to_string(8 * DTypeSize(s.dtype)), "0",
                Bits(s, "(u64)" + s.x(0) + (direction == "LEFT" ? " << " : " >> ") + s.x(1)));
}

std::string Shrink(const Scribe& s) {
  const std::string limit = s.attribute("lambd", 0.5f), bias = s.attribute("bias", 0);
  return Choose(s.x(0) + " < -" + limit, s.x(0) + " + " + bias,
                Choose(s.x(0) + " > " + limit, s.x(0) + " - " + bias, s.number(0)));
}

// The wider of two, a NaN of either being the result.
std::string Extreme(const Scribe& s, const std::string& op) {
  std::string out = s.x(0);
  for (size_t i = 1; i < s.inputs.size(); ++i)
    out = "Extreme" + std::string(op == ">" ? "Max" : "Min") + "(" + out + ", " + s.x(i) + ")";
  return out;
}

std::string SumOf(const Scribe& s) {
  std::string out = s.x(0);
  for (size_t i = 1; i < s.inputs.size(); ++i) out = "(" + out + " + " + s.x(i) + ")";
  return out;
}

// Phi(x), by the function that keeps its digits where x is far below 0.
std::string NormalShare(const Scribe& s, const std::string& x) {
  return "(" + s.number(0.5) + " * " +
         s.call("erfc", "-(" + x + ") * " + s.number(std::sqrt(0.5))) + ")";
}

// sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3)
std::string TanhShare(const Scribe& s, const std::string& x) {
  const std::string scale = s.number(2 * std::sqrt(2 / 3.14159265358979323846));
  return Sigmoid(
      s, scale + " * (" + x + " + " + s.number(0.044715) + " * " + x + " * " + x + " * " + x + ")");
}

std::string Gelu(const Scribe& s) {
  const bool tanh = s.node.Attr<std::string>("approximate", "none") == "tanh";
  return "(" + s.x(0) + " * " + (tanh ? TanhShare(s, s.x(0)) : NormalShare(s, s.x(0))) + ")";
}

std::string GeluGrad(const Scribe& s) {
  const std::string &dy = s.x(0), &x = s.x(1);
  if (s.node.Attr<std::string>("approximate", "none") == "tanh") {
    const std::string share = TanhShare(s, x);
    const std::string slope = s.number(2 * std::sqrt(2 / 3.14159265358979323846)) + " * (" +
                              s.number(1) + " + " + s.number(3 * 0.044715) + " * " + x + " * " + x +
                              ")";
    return "(" + dy + " * (" + share + " + " + x + " * " + share + " * (" + s.number(1) + " - " +
           share + ") * " + slope + "))";
  }
  const std::string density = s.number(1 / std::sqrt(2 * 3.14159265358979323846)) + " * " +
                              s.call("exp", s.number(-0.5) + " * " + x + " * " + x);
  return "(" + dy + " * (" + NormalShare(s, x) + " + " + x + " * " + density + "))";
}

std::string DropoutGrad(const Scribe& s) {
  const std::string ratio = s.x(2).empty() ? "0.5" : "(double)" + s.x(2);
  const std::string scale = std::string("(") + CudaComputeType(s.dtype) + ")(" + ratio +
                            " < 1 ? 1 / (1 - " + ratio + ") : 0)";
  return Choose(s.x(1), s.x(0) + " * " + scale, s.number(0));
}

std::string Clip(const Scribe& s) {
  std::string out = s.x(0);
  if (s.inputs.size() > 1 && !s.x(1).empty()) out = Choose(out + " < " + s.x(1), s.x(1), out);
  if (s.inputs.size() > 2 && !s.x(2).empty()) out = Choose(out + " > " + s.x(2), s.x(2), out);
  return out;
}

std::string Power(const Scribe& s) {
  if (!IsFloating(s.dtypes[1]) && DTypeSize(s.dtypes[1]) > 2 && s.dtype != DType::kFloat64)
    return "(float)pow((double)" + s.x(0) + ", (double)" + s.x(1) + ")";
  return s.call("pow", s.x(0) + ", (" + CudaComputeType(s.dtype) + ")" + s.x(1));
}

std::string Cast(const Scribe& s) {
  if (IsFloating(s.dtype) && IsInteger(s.output)) {
    const bool wide = s.output == DType::kInt64 || s.output == DType::kUInt32;
    const char* truncated = s.output == DType::kUInt64 ? "TruncatedTo64Bits"
                            : wide                     ? "Truncated64"
                                                       : "Truncated32";
    return std::string("((") + CudaComputeType(s.output) + ")" + truncated + "(" + s.x(0) + "))";
  }
  if (s.output == DType::kBool) return "(" + s.x(0) + " != 0)";
  // A cast to a half and back is there to round, and its half may be in a register, as a float.
  const Node* from = s.node.input(0)->producer();
  const bool rounds = IsHalf(s.dtype) && s.output != s.dtype && from != nullptr && from->Is("Cast");
  const std::string x =
      rounds ? std::string("Rounded<") + CudaStorageType(s.dtype) + ">(" + s.x(0) + ")" : s.x(0);
  return std::string("((") + CudaComputeType(s.output) + ")" + x + ")";
}

constexpr DTypeSet kBool = {DType::kBool};

constexpr DTypeSet kPReluTypes =
    kFloatTypes | DTypeSet{DType::kInt32, DType::kInt64, DType::kUInt32, DType::kUInt64};

const std::vector<Row>& Rows() {
#define ROW_FUNCTION(op, name)                                            \
  {                                                                       \
    op, kFloatTypes, [](const Scribe& s) { return s.call(name, s.x(0)); } \
  }
#define COMPARISON(name, op)                                                                   \
  {                                                                                            \
    name, kCudaTypes, [](const Scribe& s) { return "(" + s.x(0) + " " op " " + s.x(1) + ")"; } \
  }
  static const auto* rows = new std::vector<Row>{
#define FUNCTION(op, domain, result) \
  {#op, kFloatTypes, [](const Scribe& s) { return s.with_x(#result); }, domain},
#include "core/kernels/element_functions.inc"
#undef FUNCTION
      {"Abs", kNumericTypes, Magnitude},
      ROW_FUNCTION("Exp", "exp"),
      ROW_FUNCTION("Log", "log"),
      ROW_FUNCTION("Erf", "erf"),
      ROW_FUNCTION("Tanh", "tanh"),
      {"Neg", kFloatTypes | kSignedTypes, Negated},
      {"Sign", kNumericTypes,
       [](const Scribe& s) {
         const std::string sign = std::string("(") + CudaComputeType(s.dtype) + ")((" + s.x(0) +
                                  " > 0) - (" + s.x(0) + " < 0))";
         return kFloatTypes.Contains(s.dtype) ? Choose(s.x(0) + " != " + s.x(0), s.x(0), sign)
                                              : sign;
       }},
      {"Relu", kFloatTypes,
       [](const Scribe& s) { return Choose(s.x(0) + " < 0", s.number(0), s.x(0)); }},
      {"LeakyRelu", kFloatTypes,
       [](const Scribe& s) {
         return Choose(s.x(0) + " < 0", s.attribute("alpha", 0.01f) + " * " + s.x(0), s.x(0));
       }},
      {"ThresholdedRelu", kFloatTypes,
       [](const Scribe& s) {
         return Choose(s.x(0) + " > " + s.attribute("alpha", 1), s.x(0), s.number(0));
       }},
      {"Elu", kFloatTypes,
       [](const Scribe& s) {
         return Choose(s.x(0) + " < 0", s.attribute("alpha", 1) + " * " + s.call("expm1", s.x(0)),
                       s.x(0));
       }},
      {"Selu", kFloatTypes,
       [](const Scribe& s) {
         const std::string alpha = s.attribute("alpha", 1.67326319217681884765625f);
         return "(" + s.attribute("gamma", 1.05070102214813232421875f) + " * " +
                Choose(s.x(0) + " <= 0", alpha + " * " + s.call("expm1", s.x(0)), s.x(0)) + ")";
       }},
      {"Celu", kFloatTypes,
       [](const Scribe& s) {
         const std::string alpha = s.attribute("alpha", 1);
         return Choose(s.x(0) + " < 0", alpha + " * " + s.call("expm1", s.x(0) + " / " + alpha),
                       s.x(0));
       }},
      {"HardSigmoid", kFloatTypes,
       [](const Scribe& s) {
         const std::string line = "(" + s.attribute("alpha", 0.2f) + " * " + s.x(0) + " + " +
                                  s.attribute("beta", 0.5f) + ")";
         return Choose(line + " < 0", s.number(0), Choose(line + " > 1", s.number(1), line));
       }},
      {"HardSwish", kFloatTypes,
       [](const Scribe& s) {
         const std::string gate = "(" + s.x(0) + " / 6 + " + s.number(0.5) + ")";
         return "(" + s.x(0) + " * " +
                Choose(gate + " < 0", s.number(0), Choose(gate + " > 1", s.number(1), gate)) + ")";
       }},
      {"Swish", kFloatTypes,
       [](const Scribe& s) {
         return "(" + s.x(0) + " * " + Sigmoid(s, s.attribute("alpha", 1) + " * " + s.x(0)) + ")";
       }},
      {"Sigmoid", kFloatTypes, [](const Scribe& s) { return Sigmoid(s, s.x(0)); }},
      {"Softplus", kFloatTypes, [](const Scribe& s) { return Softplus(s, s.x(0)); }},
      {"Softsign", kFloatTypes,
       [](const Scribe& s) {
         return "(" + s.x(0) + " / (" + s.number(1) + " + " + s.call("fabs", s.x(0)) + "))";
       }},
      {"Mish", kFloatTypes,
       [](const Scribe& s) {
         return "(" + s.x(0) + " * " + s.call("tanh", Softplus(s, s.x(0))) + ")";
       }},
      {"Gelu", kFloatTypes, Gelu},
      {"IsNaN", kFloatTypes, [](const Scribe& s) { return "(" + s.x(0) + " != " + s.x(0) + ")"; }},
      {"IsInf", kFloatTypes,
       [](const Scribe& s) {
         std::string out = "false";
         if (s.node.Attr<int64_t>("detect_positive", 1) != 0) out = s.x(0) + " == INFINITE";
         if (s.node.Attr<int64_t>("detect_negative", 1) != 0)
           out += " || " + s.x(0) + " == -INFINITE";
         return "(" + out + ")";
       }},
      {"Clip", kNumericTypes, Clip},
      {"Shrink", kFloatTypes, Shrink},
      {"Add", kNumericTypes, [](const Scribe& s) { return Arithmetic(s, "+"); }},
      {"Sub", kNumericTypes, [](const Scribe& s) { return Arithmetic(s, "-"); }},
      {"Mul", kNumericTypes, [](const Scribe& s) { return Arithmetic(s, "*"); }},
      {"Div", kFloatTypes, [](const Scribe& s) { return Arithmetic(s, "/"); }},
      {"Pow", kFloatTypes, Power},
      {"Mod", kFloatTypes, Remainder},
      {"PRelu", kPReluTypes,
       [](const Scribe& s) { return Choose(s.x(0) + " < 0", Arithmetic(s, "*"), s.x(0)); }},
      {"Max", kNumericTypes, [](const Scribe& s) { return Extreme(s, ">"); }},
      {"Min", kNumericTypes, [](const Scribe& s) { return Extreme(s, "<"); }},
      {"Sum", kFloatTypes, SumOf},
      {"Mean", kFloatTypes,
       [](const Scribe& s) {
         return "(" + SumOf(s) + " / " + s.number(static_cast<double>(s.inputs.size())) + ")";
       }},
      COMPARISON("Equal", "=="),
      COMPARISON("Greater", ">"),
      COMPARISON("GreaterOrEqual", ">="),
      COMPARISON("Less", "<"),
      COMPARISON("LessOrEqual", "<="),
      {"And", kBool, [](const Scribe& s) { return "(" + s.x(0) + " && " + s.x(1) + ")"; }},
      {"Or", kBool, [](const Scribe& s) { return "(" + s.x(0) + " || " + s.x(1) + ")"; }},
      {"Xor", kBool, [](const Scribe& s) { return "(" + s.x(0) + " != " + s.x(1) + ")"; }},
      {"Not", kBool, [](const Scribe& s) { return "(!" + s.x(0) + ")"; }},
      {"BitwiseAnd", kIntegerTypes,
       [](const Scribe& s) { return Bits(s, s.x(0) + " & " + s.x(1)); }},
      {"BitwiseOr", kIntegerTypes,
       [](const Scribe& s) { return Bits(s, s.x(0) + " | " + s.x(1)); }},
      {"BitwiseXor", kIntegerTypes,
       [](const Scribe& s) { return Bits(s, s.x(0) + " ^ " + s.x(1)); }},
      {"BitwiseNot", kIntegerTypes, [](const Scribe& s) { return Bits(s, "~" + s.x(0)); }},
      {"BitShift", kUnsignedTypes, BitShift},
      {"Where", kBool, [](const Scribe& s) { return Choose(s.x(0), s.x(1), s.x(2)); }},
      {"Identity", kCudaTypes, [](const Scribe& s) { return s.x(0); }},
      {"Cast", kCudaTypes, Cast},
      {"ReluGrad", kFloatTypes,
       [](const Scribe& s) { return Choose(s.x(1) + " <= 0", s.number(0), s.x(0)); },
       kCaesuraDomain},
      {"SigmoidGrad", kFloatTypes,
       [](const Scribe& s) {
         return "(" + s.x(0) + " * " + s.x(1) + " * (" + s.number(1) + " - " + s.x(1) + "))";
       },
       kCaesuraDomain},
      {"TanhGrad", kFloatTypes,
       [](const Scribe& s) {
         return "(" + s.x(0) + " * (" + s.number(1) + " - " + s.x(1) + " * " + s.x(1) + "))";
       },
       kCaesuraDomain},
      {"GeluGrad", kFloatTypes, GeluGrad, kCaesuraDomain},
      {"DropoutGrad", kFloatTypes, DropoutGrad, kCaesuraDomain},
  };
#undef ROW_FUNCTION
#undef COMPARISON
  return *rows;
}

const Row* Find(const Node& node) {
  for (const Row& row : Rows()) {
    if (node.op_type() == row.op_type && node.domain() == row.domain) return &row;
  }
  return nullptr;
}

}  // namespace

const char* CudaStorageType(DType dtype) {
  if (dtype == DType::kFloat16) return "f16";
  if (dtype == DType::kBFloat16) return "bf16";
  return CudaComputeType(dtype);
}

size_t CudaVectorAlignment(DType dtype, int64_t elements) {
  return std::min<size_t>(16, DTypeSize(dtype) * static_cast<size_t>(elements));
}

const char* CudaComputeType(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return "double";
    case DType::kInt8: return "signed char";
    case DType::kUInt8: return "unsigned char";
    case DType::kInt16: return "short";
    case DType::kUInt16: return "unsigned short";
    case DType::kInt32: return "int";
    case DType::kUInt32: return "unsigned";
    case DType::kInt64: return "i64";
    case DType::kUInt64: return "u64";
    case DType::kBool: return "bool";
    default: return "float";
  }
}

std::string CudaLiteral(DType dtype, double value) {
  char text[48];
  std::snprintf(text, sizeof text, dtype == DType::kFloat64 ? "%.17e" : "%.9ef", value);
  return value < 0 ? "(" + std::string(text) + ")" : text;
}

std::optional<std::string> CudaElementExpression(const Node& node,
                                                 const std::vector<DType>& input_dtypes,
                                                 DType output_dtype,
                                                 const std::vector<std::string>& inputs) {
  const Row* row = Find(node);
  if (row == nullptr || input_dtypes.empty() || !row->types.Contains(input_dtypes[0])) return {};
  for (const DType dtype : input_dtypes) {
    if (dtype != DType::kUndefined && !kCudaTypes.Contains(dtype)) return {};
  }
  if (!kCudaTypes.Contains(output_dtype)) return {};
  std::string text = row->write({node, input_dtypes[0], input_dtypes, output_dtype, inputs});
  if (text.empty()) return {};
  return text;
}

const std::vector<CudaElementOp>& CudaElementOps() {
  static const auto* ops = [] {
    auto* out = new std::vector<CudaElementOp>();
    for (const Row& row : Rows()) out->push_back({row.op_type, row.domain, row.types});
    return out;
  }();
  return *ops;
}

}  // namespace caesura
