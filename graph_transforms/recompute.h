// SPDX-License-Identifier: Apache-2.0
// Recomputation: forward nodes run again where the backward part reads what they made, so that it
// need not be kept in between. Memory against time.
#ifndef CAESURA_GRAPH_TRANSFORMS_RECOMPUTE_H_
#define CAESURA_GRAPH_TRANSFORMS_RECOMPUTE_H_

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/graph/pass.h"
#include "core/plan/execution_plan.h"

namespace caesura {

// Values that a plan keeps of its forward part for its backward part.
struct KeptNodes {
  std::vector<std::string> nodes;  // that made it; those that cost least for a byte first
  std::unordered_set<std::string>
      views;  // nodes that took no step: they only look at what others made
};
KeptNodes FindKeptNodes(const ExecutionPlan& plan);

// The named forward nodes run again ahead of the first backward node that reads them. Random nodes
// draw the same numbers again. A node stays when one of its inputs is updated in place before that.
std::shared_ptr<Pass> MakeRecomputePass(std::unordered_set<std::string> nodes,
                                        std::unordered_set<std::string> views);

// A plan of the same step whose arena takes at most `budget` bytes, with as little recomputed as
// that takes: cheap arithmetic and norms first, then attention, then products. The results are
// those of `plan`, bit by bit, as long as the same kernels run. kOutOfMemory, naming the least that
// was found possible, where the budget is too small.
Result<std::shared_ptr<const ExecutionPlan>> PlanWithin(
    const std::shared_ptr<const ExecutionPlan>& plan, size_t budget);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_RECOMPUTE_H_
