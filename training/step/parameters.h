// SPDX-License-Identifier: Apache-2.0
// Programs with parameters, as training sessions and split modules make them, and the parameters
// that such programs share.
#ifndef CAESURA_TRAINING_STEP_PARAMETERS_H_
#define CAESURA_TRAINING_STEP_PARAMETERS_H_

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/execute/parameter_set.h"
#include "core/runtime/program.h"
#include "graph_transforms/shapes/cpu_fallback.h"

namespace caesura {

// `passes`, then PlacementPasses with these options.
PassMaker WithPlacement(PassMaker passes, CpuFallbackOptions fallback = {});
// The names of graph inputs that are no scalars, as CpuFallbackOptions::device_inputs has them:
// where PyTorch's tensors are on a GPU, its numbers are on the host.
std::unordered_set<std::string> InputsWithDims(const Graph& graph);
// The hook that keeps a plan's arena within `budget` bytes by recomputation
// (graph_transforms/recompute.h); null for 0, which is no limit.
PlanFitter WithinBudget(size_t budget);

// The parameters of a session or module on these providers (none: the CPU provider), with
// training's kernels on the CPU.
std::shared_ptr<ProviderFallback> TrainingFallback(ProviderList providers, bool enabled);

// A captured graph of calls, forward or backward, on a GPU's provider, or on the host where `gpu`
// is null: it has no parameters, and the passes are those of a step. Its outputs stay where they
// are made. threads: per kernel, as PlanOptions has it.
Result<std::unique_ptr<Program>> OpenCaptured(Model model,
                                              std::shared_ptr<const ExecutionProvider> gpu,
                                              const ProviderFallback::MakeProvider& make_cpu,
                                              int threads);

// The forward passes, on a model whose initializers named in `trainable` and running statistics
// change between runs.
Status RunForwardPasses(Model& model, const std::vector<std::string>& trainable,
                        const std::vector<std::string>& disabled_passes);

// Names of the running statistics that a model in training updates, in the order of its values.
std::vector<std::string> StatisticNames(const Graph& graph);

// Gives graphs that share initializers of these names copies of them, shared as before. One after
// the other: no two copies of all are held at any time, unless others hold them.
Status CopyInitializers(const std::vector<std::string>& names, const std::vector<Graph*>& graphs);
// Adds the graph's initializers of these names, not copied.
void AddParameters(const Graph& graph, const std::vector<std::string>& names,
                   ParameterSet* parameters);
// Makes the first `count` parameters the initializers of their names: one copy of them in memory.
void ShareParameters(const ParameterSet& parameters, int count, Graph* graph);

// kInvalidArgument where `value` has another dtype or shape than parameter `name` has.
Status CheckReplaceable(const std::string& name, const Tensor& own, const Tensor& value);
// The index of parameter `name`: kNotFound when there is none, kInvalidArgument when `value` has
// another dtype or shape.
Result<int> FindReplaceable(const ParameterSet& parameters, const std::string& name,
                            const Tensor& value);

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_PARAMETERS_H_
