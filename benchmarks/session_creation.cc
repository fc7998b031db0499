// SPDX-License-Identifier: Apache-2.0
// What it takes to make a session of a graph of N nodes and to plan its first run, by stage. The
// graph is a stack of small layers, each with a shape chain, products, arithmetic and parameters of
// its own, as exporters write them.
//
//   BM_Passes/N         the forward passes
//   BM_Plan/N           planning on the CPU
//   BM_Session/N        both, from a model that was read
//   BM_DeviceSession/N  the same for a device with the CPU fallback of shape chains
#include <benchmark/benchmark.h>

#include "core/onnx/inference/shape_inference.h"
#include "core/plan/execution_plan.h"
#include "core/providers/counting_provider.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"

namespace caesura {
namespace {

constexpr int64_t kWidth = 8;

Value* Constant(Graph& graph, const char* name, const std::vector<int64_t>& values) {
  return graph.AddInitializer(
      name, Tensor::Of<int64_t>(Shape{static_cast<int64_t>(values.size())}, values));
}

// y = relu(reshape(x, [rows + 1 - 1, -1]) w + b) + x: ten nodes.
Value* AddLayer(Graph& graph, Value* x, Value* one) {
  auto op = [&](const char* type, std::vector<Value*> inputs, AttributeMap attributes = {}) {
    return graph.AddOp(type, std::move(inputs), std::move(attributes))->output(0);
  };
  Value* w = graph.AddInitializer("w", Tensor::Zeros(DType::kFloat32, Shape{kWidth, kWidth}));
  Value* b = graph.AddInitializer("b", Tensor::Zeros(DType::kFloat32, Shape{kWidth}));
  Value* rows = op("Gather", {op("Shape", {x}), Constant(graph, "first", {0})});
  Value* same = op("Sub", {op("Add", {rows, one}), one});
  Value* shape = op("Concat", {same, Constant(graph, "rest", {-1})}, {{"axis", int64_t{0}}});
  Value* product = op("MatMul", {op("Reshape", {x, shape}), w});
  return op("Add", {op("Relu", {op("Add", {product, b})}), x});
}

Model MakeModel(int64_t nodes) {
  Model model;
  model.graph = std::make_shared<Graph>();
  model.opsets = {{"", 23}};
  Graph& graph = *model.graph;
  ValueType type = ValueType::Tensor(DType::kFloat32);
  type.shape = std::vector<Dim>{{-1, "N"}, {kWidth, ""}};
  Value* one = Constant(graph, "one", {1});
  Value* x = graph.AddInput("x", type);
  while (static_cast<int64_t>(graph.nodes().size()) < nodes) x = AddLayer(graph, x, one);
  graph.AddOutput(x);
  for (const auto& node : graph.nodes()) node->set_since_version(13);
  if (!InferShapes(model).ok()) std::abort();
  return model;
}

const ProviderList& Cpu() {
  static const ProviderList* providers = new ProviderList{MakeCpuProvider()};
  return *providers;
}

void MakeSessions(benchmark::State& timer, const ProviderList& providers, bool passes, bool plan) {
  const Model model = MakeModel(timer.range(0));
  const NamedValues feeds = {{"x", Tensor::Zeros(DType::kFloat32, Shape{4, kWidth})}};
  for (auto _ : timer) {
    timer.PauseTiming();
    SessionOptions options;
    options.providers = providers;
    if (passes) {
      options.passes = [](const ProviderList& now) {
        PassList list = ForwardPasses();
        for (const auto& pass : PlacementPasses(now)) list.push_back(pass);
        return list;
      };
    }
    Model copy = model.Clone();
    timer.ResumeTiming();
    auto session = Session::Create(std::move(copy), std::move(options));
    if (!session.ok()) return timer.SkipWithError(session.status().ToString().c_str());
    if (plan && !(*session)->Plan(feeds).ok()) timer.SkipWithError("no plan");
    timer.PauseTiming();
    session->reset();
    timer.ResumeTiming();
  }
  timer.SetComplexityN(timer.range(0));
  timer.counters["ns/node"] = benchmark::Counter(
      static_cast<double>(timer.range(0)) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_Passes(benchmark::State& timer) { MakeSessions(timer, Cpu(), true, false); }
void BM_Plan(benchmark::State& timer) { MakeSessions(timer, Cpu(), false, true); }
void BM_Session(benchmark::State& timer) { MakeSessions(timer, Cpu(), true, true); }
void BM_DeviceSession(benchmark::State& timer) {
  MakeSessions(timer, CountingDevice({}).providers(), true, true);
}
BENCHMARK(BM_Passes)
    ->Arg(1000)
    ->Arg(10000)
    ->Arg(100000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity();
BENCHMARK(BM_Plan)->Arg(1000)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond)->Complexity();
BENCHMARK(BM_Session)
    ->Arg(1000)
    ->Arg(10000)
    ->Arg(100000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity();
BENCHMARK(BM_DeviceSession)
    ->Arg(1000)
    ->Arg(10000)
    ->Arg(100000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity();

}  // namespace
}  // namespace caesura

BENCHMARK_MAIN();
