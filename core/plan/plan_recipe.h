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
    kStep,     // a step of its own; PlanRecipe::chains say which layouts later nodes asked for
    kDynamic,  // a step whose kernel is made at run time
    kViews,    // its outputs are layouts of input 0's buffer (KernelInfo::SetViews and the like)
    kAlias,    // its outputs are its inputs' bytes (Alias::Kind::kView)
    kFolded,   // its outputs are constants
    kWritten,  // its output lies where the producers of its inputs write to
  };
  Kind kind = Kind::kFixed;
  bool first_candidate = false;  // its kernel was the first to be asked
  const Node* node = nullptr;
  const ExecutionProvider* provider = nullptr;
  const KernelDef* def = nullptr;
  int step = -1;     // kStep
  uint32_t ids = 0;  // into PlanRecipe::ids: value ids of inputs, then of outputs
  uint32_t input_count = 0, output_count = 0;
  uint32_t first_chain = 0;  // kWritten: into PlanRecipe::chains
};

// Has a step write its output where a later node wants it.
struct WrittenChain {
  struct Link {
    uint32_t id;                       // of a value
    std::vector<int64_t> permutation;  // of the next link; empty: a reshape of it
  };
  std::vector<Link> links;  // an input of the later node, what it is a view of, the step's output
  int producer = -1;        // the step's record
};

struct PlanRecipe {
  std::vector<NodeRecord> nodes;  // in the order of the graph
  std::vector<uint32_t> ids;
  // By value id: true for a constant whose contents the nodes that read it were planned with.
  std::vector<bool> known_contents;
  std::vector<WrittenChain> chains;  // those of a node one after the other, by its inputs
  std::vector<bool> in_chain;        // by value id
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_RECIPE_H_
