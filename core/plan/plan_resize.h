// SPDX-License-Identifier: Apache-2.0
// What planning remembers of each node, so that a plan for other sizes need not decide everything
// again.
#ifndef CAESURA_CORE_PLAN_PLAN_RESIZE_H_
#define CAESURA_CORE_PLAN_PLAN_RESIZE_H_

#include <cstdint>
#include <vector>

#include "core/plan/execution_plan.h"

namespace caesura {

// How a node was planned.
struct NodeRecord {
  enum class Kind : uint8_t {
    kFixed,    // in a way that holds for these sizes alone: a plan with others is made anew
    kStep,     // a step of its own, under no layout that a later node asked for
    kDynamic,  // a step whose kernel is made at run time
    kViews,    // its outputs are layouts of input 0's buffer (KernelInfo::SetViews and the like)
    kAlias,    // its outputs are its inputs' bytes (Alias::Kind::kView)
    kFolded,   // its outputs are constants
  };
  Kind kind = Kind::kFixed;
  bool first = false;  // its kernel was the first to be asked
  const Node* node = nullptr;
  const ExecutionProvider* provider = nullptr;
  const KernelDef* def = nullptr;
  int step = -1;     // kStep
  uint32_t ids = 0;  // into PlanRecipe::ids: value ids of inputs, then of outputs
  uint32_t input_count = 0, output_count = 0;
};

struct PlanRecipe {
  std::vector<NodeRecord> nodes;  // in the order of the graph
  std::vector<uint32_t> ids;
  std::vector<bool>
      known_values;  // by value id: the constant's value was known to the nodes that read it
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_RESIZE_H_
