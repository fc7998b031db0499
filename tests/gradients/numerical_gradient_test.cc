// SPDX-License-Identifier: Apache-2.0
// Every gradient rule against central differences of the double kernels, and the float kernels against the double ones.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/graph/graph_text.h"
#include "core/graph/shape_inference.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/gradients/gradient_case.h"
#include "training/gradient/gradient_builder.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

struct Tolerance {
  double epsilon, absolute, relative;
};
constexpr Tolerance kDouble = {1e-6, 1e-5, 1e-3}, kFloat = {1e-2, 1e-2, 2e-2};

std::vector<std::string> Names(const std::string& list) {
  std::vector<std::string> names;
  std::string name;
  for (char c : list + ",") {
    if (c == ',') {
      names.push_back(name);
      name.clear();
    } else if (c != ' ') {
      name += c;
    }
  }
  return names;
}

std::string Replace(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// The case's graph; with `dtype` in place of double.
Model Parse(const GradientCase& c, const std::string& dtype) {
  std::string outputs;
  for (const std::string& name : Names(c.outputs)) outputs += (outputs.empty() ? "double " : ", double ") + name;
  const std::string text = "<ir_version: 10, opset_import: [\"\": " + std::to_string(28) + ", \"ai.caesura\": 1]>\n" +
                           "g (" + c.inputs + ") => (" + outputs + ") " + c.initializers + " {" + c.body + "}";
  std::string replaced = Replace(text, "double", dtype);
  if (dtype == "float") replaced = Replace(replaced, "<to = 11>", "<to = 1>");
  Model model = ParseModelText(replaced).value();
  // The text cannot leave a rank open: an output without dims is not meant to be a scalar.
  for (Value* y : model.graph->outputs()) y->set_type(ValueType::Tensor(y->dtype()));
  EXPECT_TRUE(InferShapes(model).ok());
  return model;
}

Shape InputShape(const GradientCase& c, const Value& input) {
  std::vector<int64_t> dims;
  for (const Dim& dim : *input.type().shape) dims.push_back(dim.known() ? dim.value : c.dims.at(dim.symbol));
  return Shape(std::move(dims));
}

Tensor FromDoubles(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor out = Tensor::Zeros(dtype, shape);
  auto fill = [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < values.size(); ++i) out.data<T>()[i] = static_cast<T>(values[i]);
  };
  DispatchNumeric(dtype, fill) || DispatchDType<bool>(dtype, fill);
  return out;
}

// Random and no two nearly equal, so that differences do not jump over a tie.
std::vector<double> RandomValues(int64_t count, double low, double high, uint32_t seed) {
  std::vector<double> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(low + (high - low) * (static_cast<double>(i) + 0.5) / static_cast<double>(count));
  std::mt19937 random(seed);
  for (double& v : out) v += (std::uniform_real_distribution<double>(-0.3, 0.3)(random)) * (high - low) / static_cast<double>(count);
  std::shuffle(out.begin(), out.end(), random);
  return out;
}

NamedValues Feeds(const GradientCase& c, const Graph& graph) {
  NamedValues feeds;
  uint32_t seed = 1;
  for (const Value* input : graph.inputs()) {
    const Shape shape = InputShape(c, *input);
    auto it = c.feeds.find(input->name());
    const std::vector<double> values =
        it != c.feeds.end() ? it->second : RandomValues(shape.elements(), c.low, c.high, seed++);
    feeds[input->name()] = FromDoubles(input->dtype(), shape, values);
  }
  return feeds;
}

std::unique_ptr<Session> MakeSession(Model model) {
  SessionOptions options;
  options.plan.threads = 1;
  options.providers = {MakeCpuProvider(RegisterTrainingKernels)};
  return Session::Create(std::move(model), options).value();
}

struct Differentiated {
  std::vector<std::string> xs;
  std::unique_ptr<Session> session;  // inputs: the case's, then "dy0"...; outputs: the gradients
};

Differentiated Differentiate(const GradientCase& c, const std::string& dtype) {
  Model model = Parse(c, dtype);
  Graph& graph = *model.graph;
  GradientOptions options;
  Differentiated out;
  for (Value* input : graph.inputs()) {
    if (!IsDifferentiable(input->dtype())) continue;
    options.xs.push_back(input);
    out.xs.push_back(input->name());
  }
  for (Value* y : graph.outputs()) options.ys.push_back({y, nullptr});
  for (size_t i = 0; i < options.ys.size(); ++i) {
    options.ys[i].dy = graph.AddInput("dy" + std::to_string(i), ValueType::Tensor(options.ys[i].y->dtype()));
  }
  const GradientGraph gradient = BuildGradient(graph, options).value();
  EXPECT_EQ(c.has_gradient, gradient.unreachable.size() < options.xs.size());
  graph.ClearOutputs();
  for (Value* dx : gradient.dxs) graph.AddOutput(dx);
  out.session = MakeSession(std::move(model));
  return out;
}

std::vector<Tensor> RunAll(Session& session, const NamedValues& feeds) {
  std::vector<Tensor> out;
  RunOptions options;
  options.step = 1;  // the same random numbers each time
  const std::vector<RuntimeValue> values = session.Run(feeds, {}, options).value();
  for (const RuntimeValue& value : values) out.push_back(value.tensor());
  return out;
}

double Dot(const std::vector<Tensor>& ys, const std::vector<std::vector<double>>& dys) {
  double sum = 0;
  for (size_t i = 0; i < ys.size(); ++i) {
    const std::vector<double> y = ys[i].ToVector<double>();
    for (size_t j = 0; j < y.size(); ++j) sum += y[j] * dys[i][j];
  }
  return sum;
}

class Gradient : public testing::TestWithParam<GradientCase> {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(RegisterTrainingOpSchemas().ok()); }

  // Gradients in `dtype` for the same feeds and output gradients, as doubles.
  std::vector<std::vector<double>> Gradients(const std::string& dtype, const std::vector<Tensor>& ys,
                                             const std::vector<std::vector<double>>& dys) {
    const Differentiated d = Differentiate(GetParam(), dtype);
    NamedValues feeds = Feeds(GetParam(), *Parse(GetParam(), dtype).graph);
    const DType type = dtype == "float" ? DType::kFloat32 : DType::kFloat64;
    for (size_t i = 0; i < ys.size(); ++i) feeds["dy" + std::to_string(i)] = FromDoubles(type, ys[i].shape(), dys[i]);
    std::vector<std::vector<double>> out;
    for (const Tensor& dx : RunAll(*d.session, feeds)) out.push_back(dx.ToVector<double>());
    return out;
  }
  std::vector<std::vector<double>> OutputGradients(const std::vector<Tensor>& ys) {
    std::vector<std::vector<double>> dys;
    for (const Tensor& y : ys) dys.push_back(RandomValues(y.elements(), -1, 1, 99 + static_cast<uint32_t>(dys.size())));
    return dys;
  }
};

TEST_P(Gradient, MatchesDifferences) {
  const std::string dtype = GetParam().float_only ? "float" : "double";
  const Tolerance tolerance = GetParam().float_only ? kFloat : kDouble;
  auto forward = MakeSession(Parse(GetParam(), dtype));
  NamedValues feeds = Feeds(GetParam(), *forward->model().graph);
  const std::vector<Tensor> ys = RunAll(*forward, feeds);
  const std::vector<std::vector<double>> dys = OutputGradients(ys);
  const std::vector<std::vector<double>> gradients = Gradients(dtype, ys, dys);
  size_t k = 0;
  for (const Value* input : forward->inputs()) {
    if (!IsDifferentiable(input->dtype())) continue;
    const std::vector<double>& gradient = gradients[k++];
    const Tensor x = feeds.at(input->name()).tensor();
    ASSERT_EQ(static_cast<int64_t>(gradient.size()), x.elements()) << "shape of d" << input->name();
    for (int64_t i = 0; i < x.elements(); ++i) {
      auto at = [&](double offset) {
        double y = 0;
        DispatchDType<float, double>(x.dtype(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          const T kept = x.data<T>()[i];
          x.data<T>()[i] = static_cast<T>(kept + offset);
          y = Dot(RunAll(*forward, feeds), dys);
          x.data<T>()[i] = kept;
        });
        return y;
      };
      const double expected = (at(tolerance.epsilon) - at(-tolerance.epsilon)) / (2 * tolerance.epsilon);
      EXPECT_NEAR(gradient[i], expected, tolerance.absolute + tolerance.relative * std::abs(expected))
          << "d" << input->name() << "[" << i << "]";
    }
  }
}

TEST_P(Gradient, FloatMatchesDouble) {
  const GradientCase& c = GetParam();
  if (c.float_tolerance == 0 || c.float_only) GTEST_SKIP() << "the float graph is another one";
  const std::vector<Tensor> ys = RunAll(*MakeSession(Parse(c, "double")), Feeds(c, *Parse(c, "double").graph));
  const std::vector<std::vector<double>> dys = OutputGradients(ys);
  const std::vector<std::vector<double>> expected = Gradients("double", ys, dys), found = Gradients("float", ys, dys);
  ASSERT_EQ(expected.size(), found.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    ASSERT_EQ(expected[k].size(), found[k].size());
    double scale = 1;
    for (double v : expected[k]) scale = std::max(scale, std::abs(v));
    for (size_t i = 0; i < expected[k].size(); ++i) EXPECT_NEAR(found[k][i], expected[k][i], c.float_tolerance * scale);
  }
}

std::vector<GradientCase> AllCases() {
  std::vector<GradientCase> out;
  for (auto* family : {ElementwiseCases, MatMulCases, MovementCases, IndexingCases, ReductionCases, NnCases, ImageCases,
                       ControlFlowCases}) {
    for (GradientCase& c : family()) out.push_back(std::move(c));
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Rules, Gradient, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caesura
