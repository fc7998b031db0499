// SPDX-License-Identifier: Apache-2.0
// The kernel of the nodes that a partition makes (core/plan/subgraph_partition.h): the provider
// compiles the node's body when the kernel is made, and runs it in each step.
#ifndef CAESURA_CORE_PROVIDERS_COMPILED_SUBGRAPH_H_
#define CAESURA_CORE_PROVIDERS_COMPILED_SUBGRAPH_H_

#include <string>

#include "core/kernels/kernel.h"
#include "core/providers/subgraph_compiler.h"

namespace caesura {

// ai.caesura::CompiledSubgraph: inputs and outputs in the order of those of the graph in the
// attribute "body".
inline constexpr char kCompiledSubgraphOp[] = "CompiledSubgraph";
inline constexpr char kCompiledBody[] = "body";

// Compiled parts are kept as long as the node's body lives, for the shapes that came
// last. Failures are kProviderFailure and name `provider` and the nodes of the body. The compiler
// outlives the kernel.
KernelDef CompiledSubgraphKernel(const SubgraphCompiler& compiler, const std::string& provider);

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_COMPILED_SUBGRAPH_H_
