// SPDX-License-Identifier: Apache-2.0
// Graphs run on a counting device, with the CPU fallback of shape chains in one of its modes.
#ifndef CAESURA_TESTS_GRAPH_TRANSFORMS_DEVICE_RUN_H_
#define CAESURA_TESTS_GRAPH_TRANSFORMS_DEVICE_RUN_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/providers/counting_provider.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {

struct DeviceRunOptions {
  CpuFallbackMode mode = CpuFallbackMode::kOn;
  std::set<std::string> device_inputs =
      {};  // integer inputs that come on the device; floats do in any case
  std::set<std::string> without = {};  // ops without a kernel on the device
  std::unordered_set<std::string> keep = {};
  bool fold = true;  // Shape and what follows from it is settled when the run is planned
  bool fetch_on_host =
      false;  // otherwise results stay where they are made, and are fetched after the counting
};

struct DeviceRun {
  Values results;       // on the host
  DeviceCounts counts;  // of the run
  CpuFallbackReport report;
  std::set<std::string>
      on_host;  // names of nodes of the device's graph that are pinned to the host
  std::shared_ptr<Graph> graph;
};

inline bool IsFloating(const RuntimeValue& value) {
  return value.tensor().dtype() == DType::kFloat32 || value.tensor().dtype() == DType::kFloat16;
}

inline Tensor Moved(const Tensor& tensor, const ExecutionProvider& device, CopyKind kind) {
  Tensor out = Tensor::Allocate(tensor.dtype(), tensor.shape(),
                                kind == CopyKind::kToHost ? HostAllocator() : device.allocator())
                   .value();
  EXPECT_TRUE(device.Copy(kind, out.raw(), tensor.raw(), tensor.bytes()).ok());
  return out;
}

inline void CollectPinned(const Graph& graph, std::set<std::string>* names) {
  for (const auto& node : graph.nodes()) {
    if (node->provider() == kCpuProviderName) names->insert(node->name());
    for (const Graph* body : node->Subgraphs()) CollectPinned(*body, names);
  }
}

// `feeds` in the order of the graph's inputs.
inline DeviceRun RunOnDevice(std::shared_ptr<Graph> graph, const Values& feeds,
                             const DeviceRunOptions& options = {}) {
  DeviceRun run;
  run.graph = graph;
  CountingDevice device({.without = options.without, .close_pages = true});
  CpuFallbackOptions fallback{
      options.mode, options.keep, {}, std::make_shared<CpuFallbackReport>()};
  fallback.device_inputs.insert(options.device_inputs.begin(), options.device_inputs.end());
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (IsFloating(feeds[i])) fallback.device_inputs.insert(graph->inputs()[i]->name());
  }
  Model model;
  model.graph = graph;
  const auto records = RunPasses({MakeCpuFallbackPass(device.providers(), fallback)}, model);
  EXPECT_TRUE(records.ok()) << records.status().ToString();
  run.report = *fallback.report;
  CollectPinned(*graph, &run.on_host);
  Values given;
  for (size_t i = 0; i < feeds.size(); ++i) {
    const bool there =
        IsFloating(feeds[i]) || options.device_inputs.count(graph->inputs()[i]->name());
    given.push_back(there ? Moved(feeds[i].tensor(), *device.providers()[0], CopyKind::kToDevice)
                          : feeds[i]);
  }
  PlanOptions plan_options{.fold_constants = options.fold};
  if (!options.fetch_on_host)
    plan_options.fetch_devices.assign(graph->outputs().size(), std::nullopt);
  auto plan = TryPlan(graph, given, plan_options, device.providers());
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return run;
  ExecutionState state(*plan);
  device.Reset();
  auto results = Finish(state, std::move(given));
  EXPECT_TRUE(results.ok()) << results.status().ToString() << "\n" << (*plan)->ToString();
  run.counts = device.counts();
  if (!results.ok()) return run;
  for (const RuntimeValue& result : *results) {
    const bool there = !result.tensor().device().is_host();
    run.results.push_back(there ? Moved(result.tensor(), *device.providers()[0], CopyKind::kToHost)
                                : result);
  }
  return run;
}

// The same all on the CPU.
inline Values RunOnCpu(const std::shared_ptr<Graph>& graph, const Values& feeds) {
  static const ProviderList* cpu = new ProviderList{MakeCpuProvider()};
  return RunPlan(PlanOf(graph, feeds, {}, *cpu), feeds);
}

// With the fallback on; and checked against the CPU, and against the counts with it off.
inline DeviceRun RunChecked(const std::string& body, const Values& feeds,
                            DeviceRunOptions options = {}) {
  const Values expected = RunOnCpu(GraphOf(body), feeds);
  options.mode = CpuFallbackMode::kOff;
  const DeviceRun off = RunOnDevice(GraphOf(body), feeds, options);
  EXPECT_TRUE(SameBits(off.results, expected)) << "with the fallback off";
  options.mode = CpuFallbackMode::kOn;
  DeviceRun on = RunOnDevice(GraphOf(body), feeds, options);
  EXPECT_TRUE(SameBits(on.results, expected)) << on.report.ToString();
  EXPECT_LE(on.counts.copies_to_host, off.counts.copies_to_host) << on.report.ToString();
  EXPECT_LE(on.counts.copies_to_device, off.counts.copies_to_device) << on.report.ToString();
  EXPECT_LE(on.counts.synchronisations, off.counts.synchronisations) << on.report.ToString();
  return on;
}

inline RuntimeValue Ints(Shape shape, const std::vector<int64_t>& values) {
  return Tensor::Of<int64_t>(std::move(shape), values);
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_GRAPH_TRANSFORMS_DEVICE_RUN_H_
