// SPDX-License-Identifier: Apache-2.0
// Builds an ExecutionPlan: one walk over the nodes in order, then lifetimes and memory
// (plan_lifetimes.cc).
#ifndef CAESURA_CORE_PLAN_PLAN_BUILDER_H_
#define CAESURA_CORE_PLAN_PLAN_BUILDER_H_

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/plan/execution_plan.h"
#include "core/plan/placement.h"
#include "core/plan/plan_resize.h"

namespace caesura {

class PlanBuilder {
 public:
  PlanBuilder(std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds,
              const ProviderList& providers, const PlanOptions& options);
  Result<std::shared_ptr<const ExecutionPlan>> Build(const std::vector<const Value*>& captured);

  // --- also for PlanResizer ---
  // What `plan` says of a value, but for the value itself.
  static InputInfo Describe(const ExecutionPlan& plan, uint32_t value_id);
  // plan_folding.cc: whether a node with these inputs may run while planning, and what it gives.
  // Outputs that turn out to be no tensor stay undefined.
  static bool IsFoldable(const std::vector<InputInfo>& inputs, const KernelInfo& info,
                         const KernelDef& def);
  static Result<std::vector<Tensor>> ComputeNow(const std::vector<InputInfo>& inputs,
                                                KernelInfo& info);
  // plan_lifetimes.cc: offsets in the arenas.
  static Status PlaceBuffers(ExecutionPlan& plan);

 private:
  using Kind = PlannedBuffer::Kind;
  // What a node's step would be, while it is decided.
  struct Draft {
    const Node* node;
    int position;                                      // of the node in the graph
    std::vector<const ExecutionProvider*> candidates;  // who may run it, best first
    const ExecutionProvider* provider;                 // the one that is asked now
    int explicit_inputs;
    std::vector<uint32_t> inputs = {};  // value ids; explicit, then implicit
    std::vector<uint32_t> outputs = {};
    std::vector<InputInfo> infos = {};
    std::vector<std::pair<std::string, std::shared_ptr<SubgraphRunner>>> bodies = {};
    const KernelDef* first = nullptr;  // the kernel that the provider asks first
  };

  // plan_builder.cc: the walk
  Status AddEnds(const std::vector<const Value*>& captured);
  Status PlaceNodes(const std::vector<const Value*>& ends);
  void AddFeed(const Value* value, int index);
  void AddParameter(const Value* value, const Tensor& initial, int index);
  void AddConstant(const Value* value, const Tensor& tensor);
  Status AddNode(const Node& node, int position);
  void Record(const Draft& draft, NodeRecord::Kind kind, const KernelDef* def = nullptr,
              int step = -1);
  // What makes the value was planned in a way that other sizes may not allow.
  void Fix(uint32_t id);
  void FinishRecipe();
  Result<bool> TryProvider(Draft& draft, std::string* why);
  Draft MakeDraft(const Node& node, int position);
  void AddBodies(Draft& draft);
  bool NeedsRuntimeShapes(Draft& draft) const;
  Status AddFetches();

  // plan_folding.cc
  // True when the node's outputs became constants.
  Result<bool> TryFold(Draft& draft, KernelInfo& info, const KernelDef& def);
  void BecomeConstant(uint32_t id, const Tensor& tensor);

  // plan_copies.cc
  int DeviceOf(uint32_t id) const { return plan_->buffers_[plan_->values_[id].buffer].device; }
  int OutputDevice(const Draft& draft, int output) const;
  // The inputs where the draft's provider needs them; adds the steps that copy them there.
  Status PlaceInputs(Draft& draft);
  // The value that is `id` on another device.
  Result<uint32_t> OnDevice(uint32_t id, int device, const Draft& reader);
  Result<uint32_t> ConstantOnDevice(uint32_t id, int device, const Draft& reader);
  uint32_t NewCopy(uint32_t id, int device);

  // plan_steps.cc
  Status AddDynamic(Draft& draft);
  Status AddPlanned(Draft& draft, KernelInfo& info, const KernelDef& def);
  Status AddYield(const Node& node, int position);
  void AddResumeValue(Yield& yield, uint32_t id, int of);
  // Gives the outputs their buffers. The node becomes a step unless all of them are views.
  Result<bool> PlaceOutputs(const Draft& draft, const KernelInfo& info, const KernelDef& def,
                            Step& step);
  Result<uint32_t> OutputBuffer(const Draft& draft, const KernelInfo& info, const KernelDef& def,
                                int output);
  Status CheckInPlace(const Draft& draft, uint32_t input) const;
  bool MayOverwrite(const Draft& draft, const Alias& alias, size_t bytes) const;
  bool IsCacheable(const Draft& draft, const KernelInfo& info, const KernelDef& def) const;
  void Cache(const Draft& draft, uint32_t id, Step& step);
  void FinishStep(Draft& draft, Step step, size_t scratch_bytes);

  // plan_views.cc
  // True when the outputs became views of the node's input, or their producers write them in place:
  // no step then.
  bool TryViews(const Draft& draft, const KernelInfo& info, const KernelDef& def);
  bool IsWherePlaced(const Draft& draft) const;
  bool PlaceViews(const Draft& draft, const ViewInfo& view, const KernelInfo& info);
  bool WriteInOrder(const Draft& draft, const ViewInfo& view, const OutputInfo& info);
  // The output lies in a buffer that is there.
  void PlaceIn(uint32_t buffer, uint32_t id, const OutputInfo& output, Layout layout);
  bool WriteSideBySide(const Draft& draft, const KernelInfo& info);
  // Every reader of the value, but for those up to `position`, takes any layout.
  bool ReadersTakeStrides(const Value* value, int position = -1) const;
  // Makes the step that produces `id` write it elsewhere.
  struct Rewrite {
    std::vector<uint32_t> chain;  // `id`, then what it is a view of, up to the step's output
    std::vector<Layout> layouts;  // of each
    uint32_t buffer;
  };
  std::optional<Rewrite> MakeRewrite(uint32_t id, Layout layout, uint32_t buffer,
                                     int position) const;
  bool Apply(const std::vector<Rewrite>& rewrites);
  void RememberWriter(const Draft& draft, const KernelDef& def, int step);

  // plan_lifetimes.cc
  bool IsWanted(size_t output) const;
  void FindNeeded();
  void FindReaders();
  void AddHandedOutCopies();
  void ComputeLifetimes();
  void MoveFetches();
  void AddReleases();
  static Status PlaceBuffers(ExecutionPlan& plan, int device);
  static Result<bool> IsPlannedGroup(const ExecutionPlan& plan, const ContiguousGroup& group);

  uint32_t ValueId(const Value* value);
  // `id`: the first value in the buffer.
  uint32_t NewBuffer(Kind kind, size_t bytes, int index, uint32_t id, int device = 0);
  // A buffer for a value whose dtype and shape are known from here on.
  void Place(uint32_t id, Kind kind, DType dtype, const Shape& shape, int index, int device = 0);
  InputInfo Describe(uint32_t value_id) const;

  std::shared_ptr<ExecutionPlan> plan_;
  const Graph& graph_;
  std::optional<Placement> placement_;
  std::unordered_map<uint64_t, uint32_t> copies_;  // value id and device: the copy's value id
  std::unordered_map<const Value*, uint32_t> value_ids_;
  // Nodes (with their positions) and input numbers that read a value; a null node for a graph
  // output, -1 for a body's captured value. In the order of their positions.
  struct Reader {
    const Node* node;
    int position;
    int input;
  };
  std::unordered_map<const Value*, std::vector<Reader>> readers_;
  // What a value is a view of, where a permutation or a reshape made it.
  struct Origin {
    uint32_t of;
    std::vector<int64_t> permutation;  // empty: a reshape
  };
  std::unordered_map<uint32_t, Origin> origins_;
  // Steps whose kernel can write outputs under any layout, and what it takes to create it anew.
  struct Writer {
    const KernelDef* def;
    std::vector<InputInfo> infos;
    std::vector<Layout> layouts;  // of outputs
  };
  std::unordered_map<int, Writer> writers_;  // by step
  std::unordered_map<uint32_t, std::pair<int, int>>
      written_by_;             // value id: step and output of a Writer
  std::vector<bool> needed_;   // by position of the node: some wanted output depends on it
  std::vector<int> last_use_;  // by value id: position of the last node that reads it
  std::vector<const Tensor*> known_values_;  // by value id
  std::vector<std::vector<int>>
      parameters_of_;                  // by value id: the parameters that it is computed from
  std::vector<bool> from_parameters_;  // by value id: depends on parameters and constants alone
  std::vector<std::shared_ptr<Tensor>> kept_;  // owners of known_values_
  PlanRecipe recipe_;
  std::vector<int> record_of_;        // by value id: in recipe_; -1: made by no node
  std::vector<std::string> missing_;  // nodes without a kernel
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_BUILDER_H_
