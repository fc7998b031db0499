// SPDX-License-Identifier: Apache-2.0
// A case's text made into a graph of one floating dtype, and the values that it is fed with.
#include <algorithm>
#include <random>
#include <sstream>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "tests/gradients/gradient_case.h"

namespace caesura {
namespace {

std::string Replace(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::vector<double> Rounded(std::vector<double> values, DType dtype) {
  if (dtype == DType::kUndefined) return values;
  return FromDoubles(dtype, Shape{static_cast<int64_t>(values.size())}, values).ToVector<double>();
}

ValueType Retyped(ValueType type, DType from, DType to) {
  if (type.dtype == from) type.dtype = to;
  if (type.element != nullptr)
    type.element = std::make_shared<const ValueType>(Retyped(*type.element, from, to));
  return type;
}

// Puts `to` in the place of `from`, in bodies too; initializers of that dtype are rounded on the
// way.
void Convert(Graph& graph, DType from, DType to, DType rounded) {
  for (Value* value : graph.Values()) {
    const Tensor* found = graph.Initializer(value);
    if (found != nullptr && found->dtype() == from) {
      const Tensor weight = *found;
      graph.SetInitializer(
          value, FromDoubles(to, weight.shape(), Rounded(weight.ToVector<double>(), rounded)));
    }
    value->set_type(Retyped(value->type(), from, to));
  }
  for (const auto& node : graph.nodes()) {
    if (node->Is("Cast") && node->Attr<int64_t>("to", 0) == static_cast<int64_t>(from)) {
      node->SetAttribute("to", static_cast<int64_t>(to));
    }
    for (Graph* body : node->Subgraphs()) Convert(*body, from, to, rounded);
  }
}

// "double[] x" is a scalar, which ONNX's parser takes for a tensor of any rank.
Shape InputShape(const GradientCase& c, const Value& input) {
  std::vector<int64_t> dims;
  for (const Dim& dim : input.type().shape.value_or(std::vector<Dim>{}))
    dims.push_back(dim.known() ? dim.value : c.dims.at(dim.symbol));
  return Shape(std::move(dims));
}

}  // namespace

Tensor FromDoubles(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor out = Tensor::Zeros(dtype, shape);
  auto fill = [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < values.size(); ++i) out.data<T>()[i] = static_cast<T>(values[i]);
  };
  DispatchNumeric(dtype, fill) || DispatchDType<bool>(dtype, fill);
  return out;
}

std::vector<double> RandomValues(int64_t count, double low, double high, uint32_t seed) {
  const double step = (high - low) / static_cast<double>(std::max<int64_t>(count, 1));
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> jitter(-0.3, 0.3);
  std::vector<double> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(low + step * (static_cast<double>(i) + 0.5 + jitter(random)));
  std::shuffle(out.begin(), out.end(), random);
  return out;
}

Result<Model> LoadCase(const GradientCase& c, DType dtype, DType rounded) {
  // The text is in a dtype that ONNX's parser knows numbers of; others are put in its place after
  // the parser.
  const bool in_float = dtype == DType::kFloat32 || !c.no_double.empty();
  const DType written = in_float ? DType::kFloat32 : DType::kFloat64;
  std::string outputs;
  std::istringstream names(c.outputs);
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    outputs += (outputs.empty() ? "double " : ", double ") + name;
  }
  std::string text =
      "g (" + c.inputs + ") => (" + outputs + ") " + c.initializers + " {" + c.body + "}";
  if (in_float) text = Replace(Replace(text, "double", "float"), "<to = 11>", "<to = 1>");
  const char opsets[] =
      "<ir_version: 10, opset_import: [\"\": 28, \"ai.caesura\": 1, \"com.microsoft\": 1]>\n";
  ASSIGN_OR_RETURN(Model model, ParseModelText(opsets + text));
  Convert(*model.graph, written, dtype, rounded);
  // The text cannot leave a rank open: an output without dims is not meant to be a scalar.
  for (Value* y : model.graph->outputs()) y->set_type(ValueType::Tensor(y->dtype()));
  RETURN_IF_ERROR(InferShapes(model));
  return model;
}

NamedValues CaseFeeds(const GradientCase& c, const Graph& graph, DType rounded) {
  NamedValues feeds;
  uint32_t seed = 1;
  for (const Value* input : graph.inputs()) {
    const Shape shape = InputShape(c, *input);
    auto it = c.feeds.find(input->name());
    std::vector<double> values =
        it != c.feeds.end() ? it->second : RandomValues(shape.elements(), c.low, c.high, seed++);
    values.resize(static_cast<size_t>(shape.elements()));  // variants of a case have fewer elements
    if (IsDifferentiable(input->dtype())) values = Rounded(std::move(values), rounded);
    feeds[input->name()] = FromDoubles(input->dtype(), shape, values);
  }
  return feeds;
}

std::vector<GradientCase> AllGradientCases() {
  std::vector<GradientCase> out;
  for (auto* family : {ElementwiseCases, MatMulCases, MovementCases, IndexingCases, ReductionCases,
                       NnCases, ImageCases, ControlFlowCases}) {
    for (GradientCase& c : family()) out.push_back(std::move(c));
  }
  return out;
}

}  // namespace caesura
