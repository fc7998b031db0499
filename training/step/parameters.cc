// SPDX-License-Identifier: Apache-2.0
#include "training/step/parameters.h"

#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/recompute.h"
#include "core/gradient/training_mode.h"

namespace caesura {

PassMaker WithPlacement(PassMaker passes, CpuFallbackOptions fallback) {
  return
      [passes = std::move(passes), fallback = std::move(fallback)](const ProviderList& providers) {
        PassList list = passes(providers);
        for (auto& pass : PlacementPasses(providers, fallback)) list.push_back(std::move(pass));
        return list;
      };
}

std::unordered_set<std::string> InputsWithDims(const Graph& graph) {
  std::unordered_set<std::string> out;
  for (const Value* input : graph.inputs()) {
    const auto& shape = input->type().shape;
    if (!shape || !shape->empty()) out.insert(input->name());
  }
  return out;
}

PlanFitter WithinBudget(size_t budget) {
  if (budget == 0) return nullptr;
  return [budget](const SharedPlan& plan) { return PlanWithin(plan, budget); };
}

std::shared_ptr<ProviderFallback> TrainingFallback(ProviderList providers, bool enabled) {
  const auto cpu = [] { return MakeCpuProvider(); };
  if (providers.empty()) providers.push_back(cpu());
  return std::make_shared<ProviderFallback>(std::move(providers), cpu, enabled);
}

Result<std::unique_ptr<Program>> OpenCaptured(Model model,
                                              std::shared_ptr<const ExecutionProvider> gpu,
                                              const ProviderFallback::MakeProvider& make_cpu,
                                              int threads) {
  // Without schemas the values after such ops would have no shapes, and would not be fused.
  CpuFallbackOptions fallback_options;
  if (gpu != nullptr) fallback_options.device_inputs = InputsWithDims(*model.graph);
  PreparedGraphOptions options{.passes =
                                   WithPlacement(CapturedPasses, std::move(fallback_options))};
  options.plan.threads = threads;
  ProviderList providers;
  if (gpu != nullptr) {
    options.plan.fetch_devices.assign(model.graph->outputs().size(), std::nullopt);
    providers.push_back(std::move(gpu));
  }
  providers.push_back(make_cpu());
  auto fallback = std::make_shared<ProviderFallback>(std::move(providers), make_cpu);
  return Program::Create(std::move(model), std::move(fallback), std::move(options));
}

Status RunForwardPasses(Model& model, const std::vector<std::string>& trainable,
                        const std::vector<std::string>& disabled_passes) {
  std::unordered_set<std::string> changing(trainable.begin(), trainable.end());
  for (const std::string& name : StatisticNames(*model.graph)) changing.insert(name);
  return RunPasses(ForwardPasses(std::move(changing)), model, disabled_passes).status();
}

std::vector<std::string> StatisticNames(const Graph& graph) {
  const std::unordered_set<const Value*> statistics = RunningStatistics(graph);
  std::vector<std::string> names;
  for (const Value* value : graph.Values()) {
    if (statistics.count(value)) names.push_back(value->name());
  }
  return names;
}

Status CopyInitializers(const std::vector<std::string>& names, const std::vector<Graph*>& graphs) {
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const Tensor copy,
                     graphs.front()->Initializer(graphs.front()->FindValue(name))->Clone());
    for (Graph* graph : graphs) graph->SetInitializer(graph->FindValue(name), copy);
  }
  return {};
}

void AddParameters(const Graph& graph, const std::vector<std::string>& names,
                   ParameterSet* parameters) {
  for (const std::string& name : names)
    parameters->Add(name, *graph.Initializer(graph.FindValue(name)));
}

void ShareParameters(const ParameterSet& parameters, int count, Graph* graph) {
  for (int i = 0; i < count; ++i)
    graph->SetInitializer(graph->FindValue(parameters.name(i)), parameters.tensor(i));
}

Result<int> FindReplaceable(const ParameterSet& parameters, const std::string& name,
                            const Tensor& value) {
  const int i = parameters.Find(name);
  if (i < 0) return NotFound("there is no parameter '" + name + "'");
  RETURN_IF_ERROR(CheckReplaceable(name, parameters.tensor(i), value));
  return i;
}

Status CheckReplaceable(const std::string& name, const Tensor& own, const Tensor& value) {
  if (own.dtype() == value.dtype() && own.shape() == value.shape()) return {};
  return InvalidArgument("parameter '" + name + "' is " + DTypeName(own.dtype()) +
                         own.shape().ToString() + ", got " + DTypeName(value.dtype()) +
                         value.shape().ToString());
}

}  // namespace caesura
