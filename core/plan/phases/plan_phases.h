// SPDX-License-Identifier: Apache-2.0
// The phases of planning, in the order in which planner.cc calls them. Each is a free function over
// the draft, and leaves in it what the next ones read.
#ifndef CAESURA_CORE_PLAN_PHASES_PLAN_PHASES_H_
#define CAESURA_CORE_PLAN_PHASES_PLAN_PHASES_H_

#include <string>
#include <vector>

#include "core/plan/phases/plan_draft.h"

namespace caesura {

// --- plan_ends.cc: what comes in and what goes out ---
bool IsWanted(const PlanOptions& options, size_t output);
// Nodes that some wanted output depends on, and who reads each value.
void FindReaders(PlanDraft& plan);
// Decides on providers and devices, and gives feeds, parameters and constants their buffers.
// `captured`: outer values of a body.
Status BindInputs(PlanDraft& plan, const std::vector<const Value*>& captured);
// After all nodes are planned: which value each graph output is, and where it is handed out.
Status BindOutputs(PlanDraft& plan);

// --- plan_node.cc: one node, by the phases below; called in the order of the graph ---
Status PlanNode(PlanDraft& plan, const Node& node, int position);

// --- plan_folding.cc: nodes whose inputs are known run now ---
// True when the node's outputs became constants.
Result<bool> TryFold(PlanDraft& plan, const NodeDraft& draft, KernelInfo& info,
                     const KernelDef& def);
// True if a node with these inputs may run while planning; its results. Outputs that turn out to be
// no tensor stay undefined.
bool IsFoldable(const std::vector<InputInfo>& inputs, const KernelInfo& info, const KernelDef& def);
Result<std::vector<Tensor>> ComputeNow(const std::vector<InputInfo>& inputs, KernelInfo& info);

// --- plan_copies.cc: values that another device reads ---
int OutputDevice(const PlanDraft& plan, const NodeDraft& draft, int output);
// Gives the node its inputs where its provider needs them; adds the steps that copy them there.
Status CopyInputs(PlanDraft& plan, NodeDraft& draft);

// --- plan_views.cc: outputs that need no step ---
// True when the outputs became views of the node's input, or their producers write them in place.
bool TryViews(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info,
              const KernelDef& def);
// Notes that the step (the next one) can write outputs under any layout; it writes these now.
void RememberWriter(PlanDraft& plan, const NodeDraft& draft, const KernelDef& def,
                    const std::vector<Layout>& layouts);
// The layout of the input of a permutation whose output, of shape `permuted`, is dense.
Layout LayoutOfPermuted(const Shape& permuted, const std::vector<int64_t>& permutation);
// The layout of a value of shape `viewed`, of which another one of `shape` under `layout` is a
// view: a permutation, or a reshape where that is empty. Nothing where no strides say it.
std::optional<Layout> LayoutOfViewed(const Shape& shape, const Layout& layout,
                                     const std::vector<int64_t>& permutation, const Shape& viewed);
// True if every reader of the value, but for those up to `position`, takes any layout.
bool ReadersTakeStrides(const PlanDraft& plan, const Value* value, int position = -1);
// False if the node did not land on its placed provider; the readers' layout checks are then
// invalid.
bool RunsOnPlacedProvider(const PlanDraft& plan, const NodeDraft& draft);

// --- plan_layouts.cc: outputs with gaps between their rows ---
// The layouts that the outputs had better have; dense ones for most.
std::vector<Layout> ChooseLayouts(const PlanDraft& plan, const NodeDraft& draft,
                                  const KernelInfo& info, const KernelDef& def);
// From the first element to the last.
size_t BytesUnder(const Layout& layout, const Shape& shape, DType dtype);

// --- plan_buffers.cc: what an output shares its bytes with ---
// Gives the outputs their layouts and buffers; cached values become entries of the value cache.
// False: all of them are views, and the node needs no step.
Result<bool> AssignBuffers(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info,
                           const KernelDef& def, const std::vector<Layout>& layouts,
                           PlanStep& step);

// --- plan_steps.cc: the kinds of step ---
Status AddStep(PlanDraft& plan, NodeDraft& draft, KernelInfo& info, const KernelDef& def);
// A step whose kernel is created when it is reached.
Status AddDynamicStep(PlanDraft& plan, NodeDraft& draft);
Status AddYield(PlanDraft& plan, const Node& node, int position);
void AppendStep(PlanDraft& plan, NodeDraft& draft, PlanStep step);

// --- plan_memory.cc: over the parts of the plan, after the draft is flattened ---
void ComputeLifetimes(PlanData& plan);
// An output that no later step reads gets a buffer that the caller then owns.
void GiveOutputsOwnBuffers(PlanData& plan);
// Copies of graph outputs that are handed out on another device.
void ListHandedOutCopies(PlanData& plan);
void ListReleases(PlanData& plan);
// Offsets in the arenas.
Status AssignOffsets(PlanData& plan);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PHASES_PLAN_PHASES_H_
