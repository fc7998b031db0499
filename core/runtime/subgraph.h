// SPDX-License-Identifier: Apache-2.0
// Bodies of If, Loop and Scan, run through plans of their own.
#ifndef CAESURA_CORE_RUNTIME_SUBGRAPH_H_
#define CAESURA_CORE_RUNTIME_SUBGRAPH_H_

#include "core/plan/execution_plan.h"

namespace caesura {

// `options` with make_subgraph set, so that plans made with it can hold bodies (to any depth).
PlanOptions WithSubgraphs(PlanOptions options, const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_CORE_RUNTIME_SUBGRAPH_H_
