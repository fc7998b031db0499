// SPDX-License-Identifier: Apache-2.0
// What the executor costs apart from its kernels:
//
//   BM_ChainOfAdds/N   one run of N distinct Add calls on 1-element values, no fusion, no folding,
//   no observer. The
//                      slope over N is the overhead a node (the addition itself, about 1 ns,
//                      included).
//   BM_EmptyKernels/N  the same with kernels that do nothing: the loop alone.
//   BM_YieldResume     a run that is suspended and resumed K times; the time is one suspend +
//   resume.
//
// benchmarks/executor_overhead.py runs the first one beside ONNX Runtime and prints slopes.
#include <benchmark/benchmark.h>

#include "core/execute/partial_executor.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/providers/cpu_provider.h"

namespace caesura {
namespace {

Shape One() { return Shape{1}; }

std::shared_ptr<const ExecutionPlan> PlanChain(const char* op, const char* domain, int nodes,
                                               ProviderList providers) {
  auto graph = std::make_shared<Graph>();
  const ValueType type = ValueType::Tensor(DType::kFloat32, One());
  Value* x = graph->AddInput("x", type);
  Value* v = x;
  for (int i = 0; i < nodes; ++i) {
    v = graph->AddOp(op, {v, x}, {}, domain)->output(0);
    v->set_type(type);
  }
  graph->AddOutput(v);
  FeedSpec feed;
  feed.dtype = DType::kFloat32;
  feed.shape = One();
  PlanOptions options;
  options.threads = 1;
  options.fold_constants = false;
  return ExecutionPlan::Create(graph, {feed}, providers, options).value();
}

void RunChain(benchmark::State& timer, const std::shared_ptr<const ExecutionPlan>& plan) {
  ExecutionState state(plan);
  const RuntimeValue x = Tensor::Of<float>(One(), {0.5f});
  for (auto _ : timer) {
    if (!state.Start({x}, {}).ok() || !PartialExecutor::Run(state).ok())
      timer.SkipWithError("the run failed");
    benchmark::DoNotOptimize(state.TakeFetches());
  }
  timer.SetItemsProcessed(timer.iterations() * static_cast<int64_t>(plan->steps().size()));
}

void BM_ChainOfAdds(benchmark::State& timer) {
  RunChain(timer, PlanChain("Add", "", static_cast<int>(timer.range(0)), {MakeCpuProvider()}));
}
BENCHMARK(BM_ChainOfAdds)->Arg(1)->Arg(200)->Arg(1000);

Status CreateNothing(KernelInfo& info) {
  info.SetOutput(0, DType::kFloat32, One());
  info.SetCompute([](KernelContext&) { return Status(); });
  return {};
}

void BM_EmptyKernels(benchmark::State& timer) {
  auto more = [](KernelRegistry& r) {
    r.Add({.op_type = "Nothing", .domain = "test", .create = CreateNothing});
  };
  RunChain(timer,
           PlanChain("Nothing", "test", static_cast<int>(timer.range(0)), {MakeCpuProvider(more)}));
}
BENCHMARK(BM_EmptyKernels)->Arg(1)->Arg(1000);

// A yield between two additions, `yields` times; each hands out a value of `elements` elements that
// moves out and takes one in.
std::shared_ptr<const ExecutionPlan> PlanYields(int yields, int64_t elements) {
  auto graph = std::make_shared<Graph>();
  const ValueType type = ValueType::Tensor(DType::kFloat32, Shape{elements});
  Value* x = graph->AddInput("x", type);
  Value* v = x;
  for (int i = 0; i < yields; ++i) {
    v = graph->AddOp("Add", {v, x})->output(0);
    v->set_type(type);
    v = graph->AddOp("YieldOp", {v}, {}, kCaesuraDomain)->output(0);
    v->set_type(type);
  }
  v = graph->AddOp("Add", {v, x})->output(0);
  v->set_type(type);
  graph->AddOutput(v);
  FeedSpec feed;
  feed.dtype = DType::kFloat32;
  feed.shape = Shape{elements};
  PlanOptions options;
  options.threads = 1;
  return ExecutionPlan::Create(graph, {feed}, {MakeCpuProvider()}, options).value();
}

constexpr int kYields = 100;

void BM_YieldResume(benchmark::State& timer) {
  auto plan = PlanYields(kYields, timer.range(0));
  ExecutionState state(plan);
  const RuntimeValue x = Tensor::Zeros(DType::kFloat32, Shape{timer.range(0)});
  for (auto _ : timer) {
    if (!state.Start({x}, {}).ok()) timer.SkipWithError("cannot start");
    for (int i = 0; i < kYields; ++i) {
      if (!PartialExecutor::Run(state).ok()) timer.SkipWithError("the run failed");
      std::vector<RuntimeValue> values = state.TakeYielded();
      if (!state.Resume(std::move(values)).ok()) timer.SkipWithError("cannot resume");
    }
    if (!PartialExecutor::Run(state).ok()) timer.SkipWithError("the run failed");
  }
  timer.SetItemsProcessed(timer.iterations() * kYields);
  timer.counters["per_yield"] =
      benchmark::Counter(static_cast<double>(timer.iterations() * kYields),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_YieldResume)->Arg(1)->Arg(4096);

}  // namespace
}  // namespace caesura

BENCHMARK_MAIN();
