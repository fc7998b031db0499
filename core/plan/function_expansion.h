// SPDX-License-Identifier: Apache-2.0
// Ops without a kernel are replaced by their schema's function body, until kernels serve all or no
// body is left.
#ifndef CAESURA_CORE_PLAN_FUNCTION_EXPANSION_H_
#define CAESURA_CORE_PLAN_FUNCTION_EXPANSION_H_

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// Bodies of control flow included. Returns whether anything changed. What remains without a kernel
// CheckKernels reports.
Result<bool> ExpandMissingKernels(Graph& graph, const ProviderList& providers);

// A line for each node in `body`, and in the bodies that run within it, that no provider has a
// kernel for, by what is known of it.
std::vector<std::string> MissingInBody(const Graph& body, const ProviderList& providers);
// kUnsupported, with all `lines`; ok where there are none.
Status NoKernels(const std::vector<std::string>& lines);
// Fails with NoKernels for the nodes without a kernel that the outputs of a graph need: for when a
// session is made. What only
// sizes decide (a kernel that refuses a shape) shows when a plan is made.
Status CheckKernels(const Graph& graph, const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_FUNCTION_EXPANSION_H_
