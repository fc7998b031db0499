// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/providers/cpu_provider.h"
#include "tests/gradients/gradient_check.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/gradient/gradient_builder.h"

namespace caesura {
namespace {

Result<std::unique_ptr<Session>> MakeSession(Model model, const ProviderList& providers,
                                             PassList passes = {}) {
  SessionOptions options;
  options.passes = [passes = std::move(passes)](const ProviderList&) { return passes; };
  options.threads = 1;
  options.providers = providers;
  options.fallback = false;
  if (providers.empty()) options.providers = {MakeCpuProvider()};
  return Session::Create(std::move(model), options);
}

Result<std::vector<Tensor>> RunAll(Session& session, const NamedValues& feeds) {
  RunOptions options;
  options.step = 1;  // the same random numbers each time
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> values, session.Run(feeds, {}, options));
  std::vector<Tensor> out;
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

}  // namespace

Result<CaseRun> RunForward(const GradientCase& c, DType dtype, DType rounded,
                           const ProviderList& providers) {
  CaseRun run;
  ASSIGN_OR_RETURN(Model model, LoadCase(c, dtype, rounded));
  ASSIGN_OR_RETURN(run.forward, MakeSession(std::move(model), providers));
  run.feeds = CaseFeeds(c, *run.forward->model().graph, rounded);
  ASSIGN_OR_RETURN(run.ys, RunAll(*run.forward, run.feeds));
  return run;
}

namespace {

// Makes the graph compute gradients of its outputs by `xs`. Random gradients of the outputs become
// the run's dys, and are fed to new inputs whose names begin with `prefix`.
Result<GradientGraph> Differentiate(Graph& graph, const std::vector<Value*>& xs,
                                    const std::string& prefix, DType exact, bool with_shapes,
                                    CaseRun* run, NamedValues* feeds) {
  GradientOptions options;
  options.xs = xs;
  run->dys.clear();
  const std::vector<Value*> ys = graph.outputs();
  for (size_t i = 0; i < ys.size(); ++i) {
    const std::string name = prefix + std::to_string(i);
    const DType type = ys[i]->dtype();
    const Shape& shape = run->ys[i].shape();
    options.ys.push_back({ys[i], graph.AddInput(name, with_shapes ? ValueType::Tensor(type, shape)
                                                                  : ValueType::Tensor(type))});
    const std::vector<double> random =
        RandomValues(run->ys[i].elements(), -1, 1, 99 + static_cast<uint32_t>(i));
    run->dys.push_back(FromDoubles(exact, shape, random).ToVector<double>());
    (*feeds)[name] = FromDoubles(type, shape, run->dys.back());
  }
  ASSIGN_OR_RETURN(GradientGraph gradient, BuildGradient(graph, options));
  graph.ClearOutputs();
  for (Value* dx : gradient.dxs) graph.AddOutput(dx);
  return gradient;
}

std::vector<Value*> FloatingInputs(const Graph& graph) {
  std::vector<Value*> out;
  for (Value* input : graph.inputs()) {
    if (IsDifferentiable(input->dtype())) out.push_back(input);
  }
  return out;
}

// Takes the results of the backward run.
Status TakeGradients(const std::vector<Tensor>& dxs, CaseRun* run) {
  for (size_t k = 0; k < dxs.size(); ++k) {
    const Shape& shape = run->feeds.at(run->xs[k]).tensor().shape();
    if (dxs[k].shape() != shape) {
      return Internal("the gradient of '" + run->xs[k] + "' is " + dxs[k].shape().ToString() +
                      ", not " + shape.ToString());
    }
    run->gradients.push_back(dxs[k].ToVector<double>());
  }
  return {};
}

}  // namespace

Status RunBackward(const GradientCase& c, DType dtype, CaseRun* run, DType rounded,
                   const PassList& passes, const ProviderList& providers) {
  ASSIGN_OR_RETURN(Model model, LoadCase(c, dtype, rounded));
  const std::vector<Value*> xs = FloatingInputs(*model.graph);
  for (const Value* x : xs) run->xs.push_back(x->name());
  NamedValues feeds = run->feeds;
  const DType exact = rounded == DType::kUndefined ? dtype : rounded;
  // Fusion needs shapes to show; without passes the rules are on their own.
  ASSIGN_OR_RETURN(const GradientGraph gradient,
                   Differentiate(*model.graph, xs, "dy", exact, !passes.empty(), run, &feeds));
  run->reachable = gradient.unreachable.size() < xs.size();
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   MakeSession(std::move(model), providers, passes));
  for (const auto& node : session->model().graph->nodes())
    run->fused |= node->Is("FusedRows", kCaesuraDomain);
  ASSIGN_OR_RETURN(const std::vector<Tensor> dxs, RunAll(*session, feeds));
  return TakeGradients(dxs, run);
}

Result<CaseRun> RunSecond(const GradientCase& c) {
  const DType dtype = c.no_double.empty() ? DType::kFloat64 : DType::kFloat32;
  ASSIGN_OR_RETURN(CaseRun run, RunForward(c, dtype));
  ASSIGN_OR_RETURN(Model model, LoadCase(c, dtype));
  RETURN_IF_ERROR(
      Differentiate(*model.graph, FloatingInputs(*model.graph), "dy", dtype, true, &run, &run.feeds)
          .status());
  RETURN_IF_ERROR(InferShapes(model));
  ASSIGN_OR_RETURN(run.forward, MakeSession(model.Clone(), {}));
  ASSIGN_OR_RETURN(run.ys, RunAll(*run.forward, run.feeds));
  const std::vector<Value*> xs = FloatingInputs(*model.graph);
  for (const Value* x : xs) run.xs.push_back(x->name());
  NamedValues feeds = run.feeds;
  RETURN_IF_ERROR(Differentiate(*model.graph, xs, "v", dtype, true, &run, &feeds).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeSession(std::move(model), {}));
  ASSIGN_OR_RETURN(const std::vector<Tensor> dxs, RunAll(*session, feeds));
  RETURN_IF_ERROR(TakeGradients(dxs, &run));
  return run;
}

std::vector<std::vector<double>> Differences(const CaseRun& run, double epsilon) {
  std::vector<std::vector<double>> out;
  for (const std::string& name : run.xs) {
    const Tensor& x = run.feeds.at(name).tensor();
    std::vector<double>& differences = out.emplace_back();
    for (int64_t i = 0; i < x.elements(); ++i) {
      const auto at = [&](double offset) {
        double y = 0;
        DispatchDType<float, double>(x.dtype(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          const T kept = x.data<T>()[i];
          x.data<T>()[i] = static_cast<T>(kept + offset);
          y = Dot(RunAll(*run.forward, run.feeds).value(), run.dys);
          x.data<T>()[i] = kept;
        });
        return y;
      };
      differences.push_back((at(epsilon) - at(-epsilon)) / (2 * epsilon));
    }
  }
  return out;
}

double ScaleOf(const std::vector<double>& values) {
  double scale = 1;
  for (double v : values) scale = std::max(scale, std::abs(v));
  return scale;
}

}  // namespace caesura
