// SPDX-License-Identifier: Apache-2.0
// The lists of passes, in order, a sentence each.
#ifndef CAESURA_GRAPH_TRANSFORMS_PIPELINE_H_
#define CAESURA_GRAPH_TRANSFORMS_PIPELINE_H_

#include <string>
#include <unordered_set>
#include <vector>

#include "core/graph/graph.h"
#include "core/providers/execution_provider.h"

namespace caesura {

struct CpuFallbackOptions;  // graph_transforms/shapes/cpu_fallback.h

// For the forward graph before it is differentiated, or fused. Initializers named in `parameters`
// change between runs: no pass may rely on their values.
PassList ForwardPasses(std::unordered_set<std::string> parameters = {});

// For the forward graph after the above, to compute in `precision` where that is safe; none for
// float32.
PassList PrecisionPasses(DType precision);

// For a graph that is to be run as it is: parts go to the providers that compile them
// (core/plan/subgraph_partition.h), and of what is left neighbours become single kernels. Not to be
// differentiated any more. `changing`: initializers that change between runs.
PassList FusionPasses(const ProviderList& providers = {},
                      std::unordered_set<std::string> changing = {});

// For a model that is only run (SessionOptions::passes): forward, fusion, and placement where the
// providers have devices.
PassList InferencePasses(const ProviderList& providers = {});

// For a graph that holds its backward part already, with nothing in it that only we can run.
// `changing`: initializers that change between runs.
PassList SimplifyPasses(std::unordered_set<std::string> changing = {});

// For a model of ONNX's own operators, which other runtimes run.
PassList PlainPasses();

// For a graph that holds its backward part and optimizer already; ends with fusion.
PassList StepPasses(const ProviderList& providers = {},
                    std::unordered_set<std::string> changing = {});

// A step of a training session, as SessionStepPasses needs to know it.
struct SessionStep {
  std::vector<std::string> parameters;  // initializers that steps change
  bool early = false;          // CommitMode::kEagerConsume: updates come as soon as they may
  bool exchanges = false;      // it has collectives
  bool may_recompute = false;  // within a memory budget
};
// For a step of a training session: StepPasses, then its collectives and updates are put in place.
PassList SessionStepPasses(const ProviderList& providers, const SessionStep& step);

// For a graph that was captured with its backward: StepPasses, then yields hand inputs back early.
PassList CapturedPasses(const ProviderList& providers);

// For a graph that is about to be planned for these providers, after all other passes. Empty where
// all of them are on the host.
PassList PlacementPasses(const ProviderList& providers);
PassList PlacementPasses(const ProviderList& providers, CpuFallbackOptions fallback);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_PIPELINE_H_
