// SPDX-License-Identifier: Apache-2.0
#include "core/execute/subgraph.h"

#include <map>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/execute/run_cancel.h"
#include "core/execute/state_pool.h"
#include "core/plan/placement.h"
#include "core/plan/plan_cache.h"

namespace caesura {
namespace {

class PlannedSubgraph : public SubgraphRunner {
 public:
  PlannedSubgraph(SubgraphRequest request, const ProviderList& providers,
                  const PlanOptions& options)
      : request_(std::move(request)),
        cache_(request_.body, providers, WithFetches(options, request_.fetch_devices),
               request_.captured) {}

  const Graph& graph() const override { return *request_.body; }

  Result<std::vector<RuntimeValue>> Run(std::vector<RuntimeValue> inputs, KernelContext& outer,
                                        uint64_t iteration) override {
    std::vector<FeedSpec> known(inputs.size());
    for (size_t i = 0; i < request_.captured.size(); ++i) {
      inputs.push_back(outer.InputValue(request_.first_captured + static_cast<int>(i)));
      known.push_back(request_.captured_specs[i]);
    }
    ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> plan, cache_.Get(inputs, known));
    std::unique_ptr<ExecutionState> state = states_.Borrow(plan);
    RunOptions options;
    const RandomKey key = outer.random_key();
    options.seed = key.seed + 0x9e3779b97f4a7c15ull * (key.stream + 1);
    options.step = (key.step << 24) + iteration;
    options.cancel = RunCancel::Current();
    RETURN_IF_ERROR(state->Start(std::move(inputs), std::move(options)));
    ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*state));
    if (outcome != RunOutcome::kFinished)
      return Unsupported("a yield inside of a body of If, Loop or Scan");
    std::vector<RuntimeValue> results = state->TakeFetches();
    states_.Return(std::move(state));
    return results;
  }

 private:
  static PlanOptions WithFetches(PlanOptions options, std::vector<std::optional<Device>> devices) {
    options.fetch_devices = std::move(devices);
    return options;
  }

  SubgraphRequest request_;
  PlanCache cache_;
  StatePool states_{/*capacity=*/8};
};

}  // namespace

PlanOptions WithSubgraphs(PlanOptions options, const ProviderList& providers) {
  if (options.device_constants == nullptr && DevicesOf(providers).size() > 1) {
    options.device_constants = std::make_shared<DeviceConstants>();
  }
  PlanOptions inner = options;
  inner.fetch_devices.clear();
  inner.parameters.clear();
  inner.cache_values = false;
  options.make_subgraph = [inner,
                           providers](SubgraphRequest request) -> std::shared_ptr<SubgraphRunner> {
    return std::make_shared<PlannedSubgraph>(std::move(request), providers,
                                             WithSubgraphs(inner, providers));
  };
  return options;
}

}  // namespace caesura
