// SPDX-License-Identifier: Apache-2.0
// Parts of a graph go to providers that run them as a whole (core/providers/subgraph_compiler.h).
#ifndef CAESURA_CORE_PLAN_SUBGRAPH_PARTITION_H_
#define CAESURA_CORE_PLAN_SUBGRAPH_PARTITION_H_

#include <memory>
#include <string>
#include <unordered_set>

#include "core/graph/pass.h"
#include "core/providers/execution_provider.h"

namespace caesura {

inline constexpr char kSubgraphPartitionPass[] = "subgraph_partition";

// Asks the providers in order which nodes of the top-level graph they take, joins neighbours of one
// group as long as no value would have to leave and come back, and puts one node in place of each
// part: ai.caesura::CompiledSubgraph, pinned to its provider, with the part as a graph in its
// attribute "body". Inputs of that node: what the part reads; constants move into it. Outputs: what
// others read, in a training step also the backward part. Nodes that are random, own bodies, belong
// to the backward part or the optimizer, are pinned to another provider, or handle what is no
// tensor of numbers or bools, are not offered.
//
// `changing`: initializers that change between runs (parameters). They stay inputs.
// Runs before passes that fuse for our own kernels, which hide from providers what a node computes.
std::shared_ptr<Pass> MakeSubgraphPartitionPass(const ProviderList& providers,
                                                std::unordered_set<std::string> changing = {});

// True if any of them would be asked.
bool AnyCompiles(const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_SUBGRAPH_PARTITION_H_
