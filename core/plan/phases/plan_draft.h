// SPDX-License-Identifier: Apache-2.0
// The draft of a plan: plain data that the phases of planning (plan_phases.h) fill in. Its values,
// buffers and steps are those of the plan, each with what only planning knows about it.
#ifndef CAESURA_CORE_PLAN_PHASES_PLAN_DRAFT_H_
#define CAESURA_CORE_PLAN_PHASES_PLAN_DRAFT_H_

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/plan/placement.h"
#include "core/plan/plan_data.h"
#include "core/plan/plan_recipe.h"

namespace caesura {

struct ValueDraft : PlannedValue {
  const Tensor* contents = nullptr;  // where they are the same in every run
  std::vector<int> parameters;       // that it is computed from
  bool from_parameters = false;      // depends only on parameters and constants
  int last_reader = -1;              // position of the last node that reads it
  int record = -1;                   // in the recipe: how its node was planned; -1: made by no node
  // The value that a permutation or a reshape made it from; 0: it is no such view.
  uint32_t view_of = 0;
  std::vector<int64_t> permutation;  // of `view_of`; empty: a reshape
  // The step that can write it under any layout, and as which output; -1: none can.
  int writer = -1, writer_output = 0;
};

struct BufferDraft : PlannedBuffer {
  int last_reader = -1;  // position of the last node that reads it
};

// Everything to create a step's kernel anew, with outputs under other layouts.
struct StridedWriter {
  const KernelDef* def;
  std::vector<InputInfo> infos;
  std::vector<Layout> layouts;  // of outputs
};

// A node, and what its step would be, while it is decided.
struct NodeDraft {
  const Node* node;
  int position;                                      // of the node in the graph
  std::vector<const ExecutionProvider*> candidates;  // who may run it, best first
  const ExecutionProvider* provider;                 // the one that is asked now
  int explicit_inputs;
  std::vector<uint32_t> inputs = {};  // value ids; explicit, then implicit
  std::vector<uint32_t> outputs = {};
  std::vector<InputInfo> infos = {};
  std::vector<std::pair<std::string, std::shared_ptr<SubgraphRunner>>> bodies = {};
  const KernelDef* first_candidate = nullptr;  // the kernel that the provider asks first
};

// A node that reads a value, with its position and the number of the input. A graph output is a
// null node; a value that a body captures is input -1.
struct Reader {
  const Node* node;
  int position;
  int input;
};

struct PlanDraft {
  PlanDraft(std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds,
            const ProviderList& providers, const PlanOptions& options);
  PlanDraft(const PlanDraft&) = delete;  // refers to parts of itself
  PlanDraft& operator=(const PlanDraft&) = delete;

  const Graph& graph() const { return *data.graph; }

  PlanData data;  // without values, buffers and arguments, which follow from those below
  std::vector<ValueDraft> values;
  std::vector<BufferDraft> buffers;
  std::unordered_map<int, StridedWriter> writers;  // by step
  PlanRecipe recipe;

  std::optional<Placement> placement;
  std::vector<bool> needed;  // by position of the node: some wanted output depends on it
  std::unordered_map<const Value*, std::vector<Reader>> readers;  // in the order of positions
  std::unordered_map<const Value*, uint32_t> value_ids;
  std::unordered_map<uint64_t, uint32_t> copies;  // value id and device: the copy's value id
  std::vector<std::shared_ptr<Tensor>> kept;      // owners of contents
  std::vector<std::string> missing;               // nodes without a kernel
};

// The value's id, new for a value that was not asked for before; 0 for null.
uint32_t ValueId(PlanDraft& plan, const Value* value);
// A buffer whose first value is `id`.
uint32_t NewBuffer(PlanDraft& plan, PlannedBuffer::Kind kind, size_t bytes, int index, uint32_t id,
                   int device = 0);
// A buffer for a value whose dtype and shape are known from here on.
void PlaceValue(PlanDraft& plan, uint32_t id, PlannedBuffer::Kind kind, DType dtype,
                const Shape& shape, int index, int device = 0);
inline int DeviceOf(const PlanDraft& plan, uint32_t id) {
  return plan.buffers[plan.values[id].buffer].device;
}
// Dtype, shape and layout; leaves InputInfo::value empty. An absent value (0) is not present.
InputInfo Describe(const PlannedValue& value);
inline size_t BytesOf(const Shape& shape, DType dtype) {
  return static_cast<size_t>(shape.elements()) * DTypeSize(dtype);
}

// Notes how the node was planned. `step`: its index, where it is a step of its own.
void RecordDecision(PlanDraft& plan, const NodeDraft& draft, NodeRecord::Kind kind,
                    const KernelDef* def = nullptr, int step = -1);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PHASES_PLAN_DRAFT_H_
