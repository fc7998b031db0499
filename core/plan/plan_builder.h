// SPDX-License-Identifier: Apache-2.0
// Builds an ExecutionPlan: one walk over the nodes in order, then lifetimes and memory (plan_lifetimes.cc).
#ifndef CAESURA_CORE_PLAN_PLAN_BUILDER_H_
#define CAESURA_CORE_PLAN_PLAN_BUILDER_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/plan/execution_plan.h"

namespace caesura {

class PlanBuilder {
 public:
  PlanBuilder(std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds, const ProviderList& providers,
              const PlanOptions& options);
  Result<std::shared_ptr<const ExecutionPlan>> Build(const std::vector<const Value*>& captured);

 private:
  using Kind = PlannedBuffer::Kind;
  // What a node's step would be, while it is decided.
  struct Draft;

  // plan_builder.cc
  Status AddEnds(const std::vector<const Value*>& captured);
  void AddFeed(const Value* value, int index);
  Status AddNode(const Node& node, int position);
  Draft MakeDraft(const Node& node);
  void AddBodies(Draft& draft);
  bool MustBeLate(const Draft& draft) const;
  Status AddLate(Draft& draft);
  Status AddPlanned(Draft& draft, KernelInfo& info, const KernelDef& def, int position);
  Status AddYield(const Node& node);
  Status AddFetches();
  // True when the node's outputs became constants.
  Result<bool> TryFold(Draft& draft, KernelInfo& info, const KernelDef& def);
  bool IsCacheable(const Draft& draft, const KernelInfo& info, const KernelDef& def) const;
  uint32_t OutputBuffer(const Draft& draft, const KernelInfo& info, const KernelDef& def, int output, int position);
  void FinishStep(Draft& draft, Step step);

  // plan_lifetimes.cc
  void FindLastUses();
  void ComputeLifetimes();
  void MoveFetches();
  void AddReleases();
  Status PlaceBuffers();
  void Fingerprint();

  uint32_t ValueId(const Value* value);
  uint32_t NewBuffer(Kind kind, size_t bytes, int index);
  InputInfo Describe(uint32_t value_id) const;

  std::shared_ptr<ExecutionPlan> plan_;
  const Graph& graph_;
  std::unordered_map<const Value*, uint32_t> value_ids_;
  std::vector<int> last_use_;                              // by value id: position of the last node that reads it
  std::unordered_map<const Value*, int> last_use_of_;
  std::vector<const Tensor*> known_values_;                // by value id
  std::vector<std::vector<int>> parameters_of_;            // by value id: the parameters that it is computed from
  std::vector<bool> from_parameters_;                      // by value id: depends on parameters and constants alone
  std::vector<std::shared_ptr<Tensor>> kept_;              // owners of known_values_
  struct Contiguous {
    int step;
    std::vector<uint32_t> buffers;
  };
  std::vector<Contiguous> contiguous_;
  std::vector<size_t> scratch_bytes_;                      // by step
  std::vector<std::string> missing_;                       // nodes without a kernel
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_BUILDER_H_
