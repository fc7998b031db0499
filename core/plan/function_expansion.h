// SPDX-License-Identifier: Apache-2.0
// Ops without a kernel are replaced by their schema's function body, until kernels serve all or no body is left.
#ifndef CAESURA_CORE_PLAN_FUNCTION_EXPANSION_H_
#define CAESURA_CORE_PLAN_FUNCTION_EXPANSION_H_

#include "core/graph/graph.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// Bodies of control flow included. Returns whether anything changed. What remains without a kernel is reported when
// the plan is made.
Result<bool> ExpandMissingKernels(Graph& graph, const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_FUNCTION_EXPANSION_H_
