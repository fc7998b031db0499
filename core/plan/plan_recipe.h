// SPDX-License-Identifier: Apache-2.0
// A plan remembers how each node was planned, so that a plan for other sizes (replan.cc) need not
// decide everything again.
#ifndef CAESURA_CORE_PLAN_PLAN_RECIPE_H_
#define CAESURA_CORE_PLAN_PLAN_RECIPE_H_

#include <cstdint>
#include <vector>

#include "core/plan/plan_data.h"

namespace caesura {

// The record of how a node was planned.
struct NodeRecord {
  enum class Kind : uint8_t {
    kFixed,    // in a way that holds only for these sizes: a plan with others is made anew
    kStep,     // a step of its own, under no layout that a later node asked for
    kDynamic,  // a step whose kernel is made at run time
    kViews,    // its outputs are layouts of input 0's buffer (KernelInfo::SetViews and the like)
    kAlias,    // its outputs are its inputs' bytes (Alias::Kind::kView)
    kFolded,   // its outputs are constants
  };
  Kind kind = Kind::kFixed;
  bool first_candidate = false;  // its kernel was the first to be asked
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
  // By value id: true for a constant whose contents the nodes that read it were planned with.
  std::vector<bool> known_contents;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_RECIPE_H_
