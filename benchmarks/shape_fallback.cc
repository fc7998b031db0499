// SPDX-License-Identifier: Apache-2.0
// What a run of a model copies between the host and a device, and how often the host waits, by the
// mode of the CPU fallback of shape chains. The device is the counting one
// (core/providers/counting_provider.h): the figures are those of any device that has all kernels.
//
//   shape_fallback net.onnx input_ids=2,5 attention_mask=2,5
//
// Feeds are ones, on the device; sizes are on the host. Results stay where they are made,
// parameters are on the device already. Three ways to know shapes:
//   known     the plan is made for the shapes of the feeds, as sessions do
//   unknown   nothing is folded, as in a runtime that plans once for all shapes
//   inputs    what the model asks of its inputs' shapes are inputs of its own, as a capture with
//   symbolic sizes has them
// A model with sizes among its inputs (NAME:=5, int64 scalars on the host) is run as it is, with
// `inputs` alone. benchmarks/shape_fallback.py exports and captures models and prints tables.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/onnx/model_reader.h"
#include "core/plan/function_expansion.h"
#include "core/providers/counting_provider.h"
#include "core/runtime/subgraph.h"
#include "graph_transforms/pipeline.h"
#include "core/gradient/yield_insertion.h"
#include "training/step/parameters.h"
#include "training/step/step_program.h"
#include "training/step/trainable.h"

namespace caesura {
namespace {

using Shapes = std::map<std::string, Shape>;

// Symbols of the model's inputs.
struct Given {
  Shapes shapes;
  std::map<std::string, Tensor> sizes;
};

enum class Sizes { kKnown, kUnknown, kInputs };

struct Case {
  bool backward;
  Sizes sizes;
  CpuFallbackMode mode;
};

// Makes the shapes of graph inputs, as far as the graph asks for them, inputs themselves:
// "sizes_of_x" and so on.
void TakeSizesAsInputs(Graph& graph, const Shapes& shapes, std::map<std::string, Tensor>* sizes) {
  std::unordered_set<const Node*> gone;
  for (const auto& node : graph.nodes()) {
    auto shape = node->input(0) == nullptr ? shapes.end() : shapes.find(node->input(0)->name());
    if (!node->Is("Shape") || shape == shapes.end() || !graph.IsGraphInput(node->input(0)))
      continue;
    const int64_t rank = shape->second.rank();
    std::vector<int64_t> dims;
    for (int64_t i = node->Attr<int64_t>("start", 0);
         i < std::min(rank, node->Attr<int64_t>("end", rank)); ++i) {
      dims.push_back(shape->second[static_cast<int>(i)]);
    }
    const Shape count{static_cast<int64_t>(dims.size())};
    Value* input = graph.AddInput(graph.UniqueName("sizes_of_" + shape->first),
                                  ValueType::Tensor(DType::kInt64, count));
    (*sizes)[input->name()] = Tensor::Of<int64_t>(count, dims);
    graph.ReplaceAllUses(node->output(0), input);
    gone.insert(node.get());
  }
  graph.RemoveNodes(gone);
}

Result<std::vector<RuntimeValue>> MakeFeeds(const Graph& graph, const Shapes& shapes,
                                            const std::map<std::string, Tensor>& sizes,
                                            const ExecutionProvider& device) {
  std::vector<RuntimeValue> feeds;
  for (const Value* input : graph.inputs()) {
    if (auto size = sizes.find(input->name()); size != sizes.end()) {
      feeds.emplace_back(size->second);
      continue;
    }
    auto shape = shapes.find(input->name());
    if (shape == shapes.end())
      return InvalidArgument("no shape given for input '" + input->name() + "'");
    Tensor ones = Tensor::Zeros(input->dtype(), shape->second);
    if (!DispatchNumeric(input->dtype(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          std::fill_n(ones.data<T>(), ones.elements(), static_cast<T>(1));
        })) {
      std::memset(ones.raw(), 1, ones.bytes());  // bools
    }
    if (shape->second.rank() > 0) {
      ASSIGN_OR_RETURN(ones, CopyToDevice(ones, device));
    }
    feeds.emplace_back(std::move(ones));
  }
  return feeds;
}

// One run from start to end; at the yield the outputs come back as their own gradients.
Status RunOnce(const std::shared_ptr<const ExecutionPlan>& plan,
               const std::vector<RuntimeValue>& feeds, const RunOptions& options) {
  ExecutionState state(plan);
  RETURN_IF_ERROR(state.Start(feeds, options));
  for (;;) {
    ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(state));
    if (outcome == RunOutcome::kFinished) return {};
    const std::vector<RuntimeValue> outputs = state.TakeYielded();
    std::vector<RuntimeValue> gradients;
    for (int of : plan->yields()[0].resume_of) gradients.push_back(outputs[of]);
    RETURN_IF_ERROR(state.Resume(std::move(gradients)));
  }
}

Status Measure(const Model& original, const Given& given, const Case& row) {
  CountingDevice device({});
  const ProviderList& providers = device.providers();
  Model model = original.Clone();
  const Shapes& shapes = given.shapes;
  std::map<std::string, Tensor> sizes = given.sizes;
  if (row.sizes == Sizes::kInputs) TakeSizesAsInputs(*model.graph, shapes, &sizes);
  ASSIGN_OR_RETURN(const std::vector<std::string> trainable, TrainableNames(model, {}));
  RETURN_IF_ERROR(RunForwardPasses(model, trainable, {}));
  if (row.backward) RETURN_IF_ERROR(BuildModuleGraph(*model.graph, {trainable, {}}).status());
  ASSIGN_OR_RETURN(const bool expanded, ExpandMissingKernels(*model.graph, providers));
  static_cast<void>(expanded);
  if (row.backward) RETURN_IF_ERROR(RunPasses(StepPasses(), model).status());
  CpuFallbackOptions fallback{row.mode};
  for (const Value* input : model.graph->inputs()) {
    auto shape = shapes.find(input->name());
    if (shape != shapes.end() && shape->second.rank() > 0)
      fallback.device_inputs.insert(input->name());
  }
  RETURN_IF_ERROR(RunPasses(PlacementPasses(providers, fallback), model).status());

  PlanOptions options{.fold_constants = row.sizes != Sizes::kUnknown};
  options.fetch_devices.assign(model.graph->outputs().size(), std::nullopt);
  ParameterSet parameters;
  for (const std::string& name : trainable) {
    const Value* value = model.graph->FindValue(name);
    options.parameters.push_back(value);
    parameters.Add(name, *model.graph->Initializer(value));
  }
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> feeds,
                   MakeFeeds(*model.graph, shapes, sizes, *providers[0]));
  std::vector<FeedSpec> specs;
  for (const RuntimeValue& feed : feeds) specs.push_back(FeedSpec::Of(feed));
  ASSIGN_OR_RETURN(
      const std::shared_ptr<const ExecutionPlan> plan,
      ExecutionPlan::Create(model.graph, specs, providers, WithSubgraphs(options, providers)));
  ValueCache cache(plan->cache_entries());
  RunOptions run;
  run.parameters = &parameters;
  run.cache = &cache;
  RETURN_IF_ERROR(RunOnce(plan, feeds, run));  // copies the parameters
  device.Reset();
  RETURN_IF_ERROR(RunOnce(plan, feeds, run));
  const DeviceCounts counts = device.counts();
  size_t on_host = 0;
  for (const auto& node : model.graph->nodes()) on_host += !node->provider().empty();
  static constexpr const char* kModes[] = {"off", "forward", "seed", "on"};
  static constexpr const char* kSizes[] = {"known", "unknown", "inputs"};
  const auto number = [](const char* name, uint64_t value) {
    std::printf(", \"%s\": %llu", name, static_cast<unsigned long long>(value));
  };
  std::printf("{\"pass\": \"%s\", \"shapes\": \"%s\", \"mode\": \"%s\"",
              row.backward ? "forward+backward" : "forward", kSizes[static_cast<int>(row.sizes)],
              kModes[static_cast<int>(row.mode)]);
  number("nodes", model.graph->nodes().size());
  number("moved", on_host);
  number("kernels", counts.kernels);
  number("to_device", counts.copies_to_device);
  number("to_device_bytes", counts.bytes_to_device);
  number("to_host", counts.copies_to_host);
  number("to_host_bytes", counts.bytes_to_host);
  number("waits", counts.synchronisations);
  std::printf("}\n");
  std::fflush(stdout);
  return {};
}

Result<Given> ParseInputs(int count, char** texts) {
  Given given;
  for (int i = 0; i < count; ++i) {
    const std::string text = texts[i];
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return InvalidArgument("expected NAME=1,2,3 or NAME:=5, got '" + text + "'");
    if (text[equals - 1] == ':') {
      const int64_t size = std::strtoll(text.c_str() + equals + 1, nullptr, 10);
      given.sizes[text.substr(0, equals - 1)] = Tensor::Scalar<int64_t>(size);
      continue;
    }
    std::vector<int64_t> dims;
    std::istringstream numbers(text.substr(equals + 1));
    for (std::string number; std::getline(numbers, number, ',');) {
      dims.push_back(std::strtoll(number.c_str(), nullptr, 10));
    }
    given.shapes[text.substr(0, equals)] = Shape(std::move(dims));
  }
  return given;
}

Status RunAll(int argc, char** argv) {
  if (argc < 2) return InvalidArgument("usage: shape_fallback MODEL INPUT=SHAPE INPUT:=SIZE ...");
  ASSIGN_OR_RETURN(const Model model, ReadModel(argv[1]));
  ASSIGN_OR_RETURN(const Given given, ParseInputs(argc - 2, argv + 2));
  Status all;
  for (const bool backward : {false, true}) {
    for (const Sizes sizes : {Sizes::kKnown, Sizes::kUnknown, Sizes::kInputs}) {
      if (!given.sizes.empty() && (backward || sizes != Sizes::kInputs)) continue;
      for (const CpuFallbackMode mode : {CpuFallbackMode::kOff, CpuFallbackMode::kForward,
                                         CpuFallbackMode::kSeed, CpuFallbackMode::kOn}) {
        const Status status = Measure(model, given, {backward, sizes, mode});
        if (status.ok()) continue;
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        all = status;
      }
    }
  }
  return all;
}

}  // namespace
}  // namespace caesura

int main(int argc, char** argv) { return caesura::RunAll(argc, argv).ok() ? 0 : 1; }
