// SPDX-License-Identifier: Apache-2.0
#include "core/ops/fused_rows/cuda_row_source.h"

#include <algorithm>
#include <numeric>

#include "core/graph/op_def.h"
#include "core/kernels/cuda/element_source.h"

namespace caesura {
namespace {

// Shared memory that one row may take beside others: blocks have 48 KiB without asking.
constexpr int64_t kSharedBytes = 16 << 10;

std::string Type(DType dtype) { return CudaComputeType(dtype); }

std::string Math(const char* name, DType dtype, const std::string& x) {
  return std::string(name) + (dtype == DType::kFloat64 ? "(" : "f(") + x + ")";
}

}  // namespace

std::string RowScribe::Width(int64_t columns) const {
  return columns == columns_ ? "columns" : std::to_string(columns);
}

std::string RowScribe::VectorLoop(int64_t columns, const std::string& body) const {
  // Only a thread's last vector may lie beyond the row: their number is of this many columns.
  const std::string last = std::to_string(Vectors(columns) - 1), vector = std::to_string(vector_);
  return "#pragma unroll\nfor (int c = 0; c <= " + last + "; ++c) {\nconst int first = (c * " +
         std::to_string(threads_) + " + (int)threadIdx.x) * " + vector + ";\nif (c < " + last +
         " || first < " + Width(columns) + ") {\n" + body + "}\n}\n";
}

std::string RowScribe::Loop(int64_t columns, const std::string& body) const {
  const std::string vector = std::to_string(vector_);
  return VectorLoop(columns, "#pragma unroll\nfor (int j = 0; j < " + vector +
                                 "; ++j) {\nconst int k = c * " + vector +
                                 " + j, column = first + j;\n" + body + "}\n");
}

std::string RowScribe::OnceAligned(const std::string& body) const {
  const std::string whole = "{\nconstexpr bool whole = true;\n" + body + "}";
  if (vector_ == 1) return whole + "\n";
  return "if (aligned) " + whole + " else {\nconstexpr bool whole = false;\n" + body + "}\n";
}

std::string RowScribe::Definition(const std::string& name, RowValue what,
                                  const std::string& element) {
  most_columns_ = std::max(most_columns_, what.columns);
  if (!what.wide()) return "const " + Type(what.dtype) + " " + name + " = " + element + ";\n";
  common_columns_ = std::gcd(common_columns_, what.columns);
  return Type(what.dtype) + " " + name + "[" + std::to_string(Items(what.columns)) + "];\n" +
         Loop(what.columns, name + "[k] = " + element + ";\n");
}

std::string RowScribe::Let(RowValue what, const std::string& element) {
  const std::string name = Name();
  text_ += Definition(name, what, element);
  return name;
}

std::string RowScribe::Reduce(RowValue what, const std::string& op, const std::string& first,
                              const std::string& element) {
  const std::string part = Name(), name = Name(), type = Type(what.dtype);
  text_ +=
      type + " " + part + " = " + first + ";\n" +
      Loop(what.columns, part + " = " + op + "()(" + part + ", (" + type + ")" + element + ");\n") +
      "const " + type + " " + name + " = RowReduceInTurn<" + std::to_string(threads_) + ">(" +
      part + ", " + op + "(), turn);\n";
  return name;
}

std::string RowScribe::Sum(RowValue what, const std::string& element) {
  return Reduce(what, "RowSum", "0", element);
}

void RowScribe::Bind(const Value* value, const std::string& name, RowValue what) {
  if (value != nullptr) known_[value] = {name, what};
}

void RowScribe::Declare(const Value* value, RowValue what, const std::string& from,
                        const Tensor* contents) {
  const std::string name = Name(), buffer = name + "_at", storage = CudaStorageType(what.dtype);
  if (what.wide()) {
    const std::string vector = std::to_string(vector_);
    buffers_ += "Vector<" + storage + ", " + vector + "> " + buffer + "[" +
                std::to_string(Vectors(what.columns)) + "];\n";
    loads_ += VectorLoop(
        what.columns, buffer + "[c] = LoadVector<" + vector + ", whole>(" + from + " + first);\n");
    unpacked_ += Definition(name, what, "Load(" + buffer + "[c].at + j)");
  } else {
    buffers_ += "Vector<" + storage + ", 1> " + buffer + ";\n";
    loads_ += buffer + " = LoadVector<1, true>(" + from + ");\n";
    unpacked_ += Definition(name, what, "Load(" + buffer + ".at)");
  }
  Bind(value, name, what);
  if (contents != nullptr) contents_[value] = contents;
}

std::string RowScribe::StoreTo(const std::string& to, const Value* value) const {
  const RowValue& what = *Find(value);
  if (!what.wide()) return "if (threadIdx.x == 0) Store(" + to + ", " + Element(value) + ");\n";
  const std::string vector = std::to_string(vector_);
  return VectorLoop(what.columns, "Vector<" + std::string(CudaStorageType(what.dtype)) + ", " +
                                      vector + "> v;\n#pragma unroll\nfor (int j = 0; j < " +
                                      vector + "; ++j) {\nconst int k = c * " + vector +
                                      " + j;\nStore(v.at + j, " + Element(value) +
                                      ");\n}\nStoreVector<whole>(" + to + " + first, v);\n");
}

const RowValue* RowScribe::Find(const Value* value) const {
  auto found = known_.find(value);
  return found == known_.end() ? nullptr : &found->second.what;
}

std::string RowScribe::Element(const Value* value) const {
  const Known& known = known_.at(value);
  return known.what.wide() ? known.name + "[k]" : known.name;
}

void RowScribe::AddColumnSum(int index, const Value* value) {
  text_ += Loop(Find(value)->columns,
                "sums" + std::to_string(index) + "[k] += " + Element(value) + ";\n");
}

bool RowScribe::Add(const Node& node) {
  const OpDef& traits = OpDefOf(node);
  for (const Value* input : node.inputs()) {
    const bool host = traits.rows == OpDef::Rows::kReduces || traits.rows == OpDef::Rows::kSums ||
                      node.Is("Split");
    if (input != nullptr && Find(input) == nullptr && !(host && input != node.input(0)))
      return false;
  }
  if (traits.rows == OpDef::Rows::kReduces) return AddReduction(node);
  if (traits.rows == OpDef::Rows::kSums) {
    // The sum itself is the caller's: what a row has of it is the value.
    known_[node.output(0)] = known_.at(node.input(0));
    return true;
  }
  if (traits.rows == OpDef::Rows::kAlongAxis) {
    if (node.Is("Split")) return AddSplit(node);
    if (node.Is("Concat")) return AddConcat(node);
    if (!Find(node.input(0))->wide()) return false;
    return AddSoftmax(node) || AddSoftmaxGrad(node) || AddNorm(node) || AddNormGrad(node);
  }
  return AddElementwise(node);
}

bool RowScribe::AddElementwise(const Node& node) {
  std::vector<DType> dtypes;
  std::vector<std::string> inputs;
  int64_t columns = 1;
  for (const Value* input : node.inputs()) {
    const RowValue* what = Find(input);
    if (what != nullptr && what->wide()) {
      if (columns > 1 && what->columns != columns) return false;
      columns = what->columns;
    }
    dtypes.push_back(what == nullptr ? DType::kUndefined : what->dtype);
    inputs.push_back(what == nullptr ? "" : Element(input));
  }
  const DType dtype = node.output(0)->dtype();
  const auto expression = CudaElementExpression(node, dtypes, dtype, inputs);
  if (!expression) return false;
  Bind(node.output(0), Let({dtype, columns}, *expression), {dtype, columns});
  return true;
}

bool RowScribe::AddReduction(const Node& node) {
  const RowValue what = *Find(node.input(0));
  if (!kFloatTypes.Contains(what.dtype) || node.Attr<int64_t>("keepdims", 1) != 1) return false;
  if (!what.wide()) return false;  // a row of one element
  const std::string x = Element(node.input(0)), &op = node.op_type();
  std::string result;
  if (op == "ReduceSum") result = Sum(what, x);
  else if (op == "ReduceMean") result = Sum(what, x) + " / " + Width(what.columns);
  else if (op == "ReduceSumSquare") result = Sum(what, x + " * " + x);
  else if (op == "ReduceL2") result = Math("sqrt", what.dtype, Sum(what, x + " * " + x));
  else if (op == "ReduceMax") result = Reduce(what, "RowMax", "-INFINITE", x);
  else if (op == "ReduceMin") result = Reduce(what, "RowMin", "INFINITE", x);
  else return false;
  Bind(node.output(0), Let({what.dtype, 1}, result), {what.dtype, 1});
  return true;
}

bool RowScribe::AddSoftmax(const Node& node) {
  const bool log = node.Is("LogSoftmax");
  if (!log && !node.Is("Softmax")) return false;
  const RowValue what = *Find(node.input(0));
  if (!kFloatTypes.Contains(what.dtype)) return false;
  const std::string x = Element(node.input(0));
  const std::string most = Reduce(what, "RowMax", "-INFINITE", x);
  const std::string power = Let(what, Math("exp", what.dtype, x + " - " + most)) + "[k]";
  const std::string sum = Sum(what, power);
  if (!log) {
    Bind(node.output(0), Let(what, power + " / " + sum), what);
    return true;
  }
  const std::string shift = Let({what.dtype, 1}, most + " + " + Math("log", what.dtype, sum));
  Bind(node.output(0), Let(what, x + " - " + shift), what);
  return true;
}

bool RowScribe::AddSoftmaxGrad(const Node& node) {
  const bool log = node.Is("LogSoftmaxGrad", kCaesuraDomain);
  if (!log && !node.Is("SoftmaxGrad", kCaesuraDomain)) return false;
  const RowValue what = *Find(node.input(0));
  const std::string dy = Element(node.input(0)), y = Element(node.input(1));
  const std::string sum = Sum(what, log ? dy : dy + " * " + y);
  Bind(node.output(0),
       Let(what, log ? dy + " - " + Math("exp", what.dtype, y) + " * " + sum
                     : y + " * (" + dy + " - " + sum + ")"),
       what);
  return true;
}

bool RowScribe::AddNorm(const Node& node) {
  const bool centred = node.Is("LayerNormalization");
  if (!centred && !node.Is("RMSNormalization")) return false;
  const RowValue what = *Find(node.input(0));
  if (!kFloatTypes.Contains(what.dtype) || node.Attr<int64_t>("stash_type", 1) != 1) return false;
  const std::string x = Element(node.input(0));
  const RowValue scalar = {what.dtype == DType::kFloat64 ? what.dtype : DType::kFloat32, 1};
  const std::string epsilon = CudaLiteral(what.dtype, node.Attr<float>("epsilon", 1e-5f));
  std::string mean, from = x;
  if (centred) {
    mean = Let(scalar, Sum(what, x) + " / " + Width(what.columns));
    from = Let(what, x + " - " + mean) + "[k]";
  }
  const std::string squares = Sum(what, from + " * " + from);
  const std::string inverse =
      Let(scalar,
          CudaLiteral(what.dtype, 1) + " / " +
              Math("sqrt", what.dtype, squares + " / " + Width(what.columns) + " + " + epsilon));
  std::string y = from + " * " + inverse + " * " + Element(node.input(1));
  if (centred && node.inputs().size() > 2 && node.input(2) != nullptr)
    y += " + " + Element(node.input(2));
  Bind(node.output(0), Let(what, y), what);
  if (node.outputs().size() > 1) Bind(node.output(1), mean, scalar);
  if (node.outputs().size() > 2) Bind(node.output(2), inverse, scalar);
  return true;
}

bool RowScribe::AddNormGrad(const Node& node) {
  const bool centred = node.Is("LayerNormalizationGrad", kCaesuraDomain);
  if (!centred && !node.Is("RMSNormalizationGrad", kCaesuraDomain)) return false;
  const RowValue what = *Find(node.input(0));
  if (!kFloatTypes.Contains(what.dtype) || node.Attr<int64_t>("stash_type", 1) != 1) return false;
  const std::string dy = Element(node.input(0)), x = Element(node.input(1));
  std::string inverse;
  if (centred) {
    inverse = Element(node.input(4));
  } else {
    const std::string epsilon = CudaLiteral(what.dtype, node.Attr<float>("epsilon", 1e-5f));
    const std::string squares = Sum(what, x + " * " + x);
    inverse =
        Let({what.dtype, 1},
            CudaLiteral(what.dtype, 1) + " / " +
                Math("sqrt", what.dtype, squares + " / " + Width(what.columns) + " + " + epsilon));
  }
  const std::string normal =
      Let(what, (centred ? "(" + x + " - " + Element(node.input(3)) + ")" : x) + " * " + inverse) +
      "[k]";
  const std::string scaled = Let(what, dy + " * " + Element(node.input(2))) + "[k]";
  const std::string slope = Sum(what, scaled + " * " + normal);
  std::string dx = scaled + " - " + normal + " * (" + slope + " / " + Width(what.columns) + ")";
  if (centred)
    dx = scaled + " - " + Sum(what, scaled) + " / " + Width(what.columns) + " - " + normal +
         " * (" + slope + " / " + Width(what.columns) + ")";
  Bind(node.output(0), Let(what, "(" + dx + ") * " + inverse), what);
  if (node.outputs().size() > 1) Bind(node.output(1), Let(what, dy + " * " + normal), what);
  if (node.outputs().size() > 2 && node.output(2) != nullptr)
    known_[node.output(2)] = known_.at(node.input(0));
  return true;
}

bool RowScribe::StaysInThreads(int64_t columns) const {
  return columns > 1 && columns % (threads_ * vector_) == 0;
}

std::string RowScribe::ElementFrom(const Value* value, int64_t begin) const {
  return known_.at(value).name + "[k + " + std::to_string(Items(begin)) + "]";
}

bool RowScribe::AddSplit(const Node& node) {
  const RowValue what = *Find(node.input(0));
  const auto count = static_cast<int64_t>(node.outputs().size());
  std::vector<int64_t> extents(count, (what.columns + count - 1) / count);
  if (node.inputs().size() > 1 && node.input(1) != nullptr) {
    const auto known = contents_.find(node.input(1));
    const Tensor* given = known != contents_.end()
                              ? known->second
                              : node.input(1)->graph()->Initializer(node.input(1));
    if (given == nullptr || !given->device().is_host()) return false;
    extents = given->ToVector<int64_t>();
  } else if (what.columns % count != 0) {
    return false;
  }
  if (std::all_of(extents.begin(), extents.end(), [&](int64_t e) { return StaysInThreads(e); })) {
    int64_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      const RowValue part{what.dtype, extents[i]};
      Bind(node.output(static_cast<int>(i)), Let(part, ElementFrom(node.input(0), begin)), part);
      begin += extents[i];
    }
    return begin == what.columns;
  }
  if (what.columns * static_cast<int64_t>(DTypeSize(what.dtype)) > kSharedBytes) return false;
  const std::string row = Name();
  text_ += "__shared__ " + Type(what.dtype) + " " + row + "[" + std::to_string(what.columns) +
           "];\n" + Loop(what.columns, row + "[column] = " + Element(node.input(0)) + ";\n") +
           "__syncthreads();\n";
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const RowValue part{what.dtype, extents[i]};
    // One column is one element for the whole row.
    Bind(node.output(static_cast<int>(i)),
         Let(part, row + "[" + std::to_string(begin) + (part.wide() ? " + column" : "") + "]"),
         part);
    begin += extents[i];
  }
  text_ += "__syncthreads();\n";
  return begin == what.columns;
}

bool RowScribe::AddConcat(const Node& node) {
  RowValue whole{Find(node.input(0))->dtype, 0};
  bool stay = true;
  for (const Value* input : node.inputs()) {
    whole.columns += Find(input)->columns;
    stay &= StaysInThreads(Find(input)->columns);
  }
  if (stay) {
    const std::string name = Name();
    most_columns_ = std::max(most_columns_, whole.columns);
    text_ += Type(whole.dtype) + " " + name + "[" + std::to_string(Items(whole.columns)) + "];\n";
    int64_t begin = 0;
    for (const Value* input : node.inputs()) {
      const int64_t columns = Find(input)->columns;
      text_ += Loop(
          columns, name + "[k + " + std::to_string(Items(begin)) + "] = " + Element(input) + ";\n");
      begin += columns;
    }
    Bind(node.output(0), name, whole);
    return true;
  }
  if (whole.columns * static_cast<int64_t>(DTypeSize(whole.dtype)) > kSharedBytes) return false;
  const std::string row = Name();
  text_ +=
      "__shared__ " + Type(whole.dtype) + " " + row + "[" + std::to_string(whole.columns) + "];\n";
  int64_t begin = 0;
  for (const Value* input : node.inputs()) {
    const RowValue part = *Find(input);
    const std::string at = row + "[" + std::to_string(begin);
    text_ += part.wide() ? Loop(part.columns, at + " + column] = " + Element(input) + ";\n")
                         : "if (threadIdx.x == 0) " + at + "] = " + Element(input) + ";\n";
    begin += part.columns;
  }
  text_ += "__syncthreads();\n";
  Bind(node.output(0), Let(whole, row + "[column]"), whole);
  text_ += "__syncthreads();\n";
  return true;
}

}  // namespace caesura
