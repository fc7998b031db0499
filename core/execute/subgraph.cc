// SPDX-License-Identifier: Apache-2.0
#include "core/execute/subgraph.h"

#include <map>
#include <mutex>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/plan/plan_cache.h"

namespace caesura {
namespace {

class PlannedSubgraph : public SubgraphRunner {
 public:
  PlannedSubgraph(SubgraphRequest request, const ProviderList& providers, const PlanOptions& options)
      : request_(std::move(request)), cache_(request_.body, providers, options, request_.captured) {}

  const Graph& graph() const override { return *request_.body; }

  Result<std::vector<RuntimeValue>> Run(std::vector<RuntimeValue> inputs, KernelContext& outer,
                                        uint64_t iteration) override {
    std::vector<FeedSpec> known(inputs.size());
    for (size_t i = 0; i < request_.captured.size(); ++i) {
      inputs.push_back(outer.InputValue(request_.first_captured + static_cast<int>(i)));
      known.push_back(request_.captured_specs[i]);
    }
    ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> plan, cache_.Get(inputs, known));
    std::unique_ptr<ExecutionState> state = Borrow(plan);
    RunOptions options;
    const RandomKey key = outer.random_key();
    options.seed = key.seed + 0x9e3779b97f4a7c15ull * (key.stream + 1);
    options.step = (key.step << 24) + iteration;
    RETURN_IF_ERROR(state->Start(std::move(inputs), std::move(options)));
    ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*state));
    if (outcome != RunOutcome::kFinished) return Unsupported("a yield inside of a body of If, Loop or Scan");
    std::vector<RuntimeValue> results = state->TakeFetches();
    state->Cancel();
    Return(std::move(state));
    return results;
  }

 private:
  std::unique_ptr<ExecutionState> Borrow(const std::shared_ptr<const ExecutionPlan>& plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (&(*it)->plan() != plan.get()) continue;
      std::unique_ptr<ExecutionState> state = std::move(*it);
      idle_.erase(it);
      return state;
    }
    return std::make_unique<ExecutionState>(plan);
  }
  void Return(std::unique_ptr<ExecutionState> state) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(state));
  }

  static constexpr size_t kMaxIdle = 8;
  SubgraphRequest request_;
  PlanCache cache_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ExecutionState>> idle_;
};

}  // namespace

PlanOptions WithSubgraphs(PlanOptions options, const ProviderList& providers) {
  PlanOptions inner = options;
  inner.parameters.clear();
  inner.cache_values = false;
  options.make_subgraph = [inner, providers](SubgraphRequest request) -> std::shared_ptr<SubgraphRunner> {
    return std::make_shared<PlannedSubgraph>(std::move(request), providers, WithSubgraphs(inner, providers));
  };
  return options;
}

}  // namespace caesura
