// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/subgraph.h"

#include "core/base/status_macros.h"
#include "core/execute/run_cancel.h"
#include "core/plan/placement.h"
#include "core/runtime/prepared_graph.h"

namespace caesura {
namespace {

// The graph as a model; `body` is only read.
Model ModelOf(const std::shared_ptr<const Graph>& body) {
  Model model;
  model.graph = std::const_pointer_cast<Graph>(body);
  return model;
}

class PlannedSubgraph : public SubgraphRunner {
 public:
  PlannedSubgraph(SubgraphRequest request, const ProviderList& providers,
                  const PlanOptions& options)
      : request_(std::move(request)),
        prepared_(ModelOf(request_.body), providers, WithFetches(options, request_.fetch_devices),
                  request_.captured) {}

  const Graph& graph() const override { return *request_.body; }

  Result<std::vector<RuntimeValue>> Run(std::vector<RuntimeValue> inputs, KernelContext& outer,
                                        uint64_t iteration) override {
    PlanRequest request;
    request.known.resize(inputs.size());
    for (size_t i = 0; i < request_.captured.size(); ++i) {
      inputs.push_back(outer.InputValue(request_.first_captured + static_cast<int>(i)));
      request.known.push_back(request_.captured_specs[i]);
    }
    ASSIGN_OR_RETURN(const SharedPlan plan, prepared_.Plan(inputs, request));
    if (!plan->yields().empty()) return Unsupported("a yield inside of a body of If, Loop or Scan");
    RunOptions options;
    const RandomKey key = outer.random_key();
    options.seed = key.seed + 0x9e3779b97f4a7c15ull * (key.subsequence + 1);
    options.step = (key.step << 24) + iteration;
    options.cancel = RunCancel::Current();
    ASSIGN_OR_RETURN(StartedRun run, prepared_.Start(plan, std::move(inputs), std::move(options)));
    return prepared_.RunToEnd(std::move(run));
  }

 private:
  static PlanOptions WithFetches(PlanOptions options, std::vector<std::optional<Device>> devices) {
    options.fetch_devices = std::move(devices);
    return options;
  }

  const SubgraphRequest request_;
  PreparedGraph prepared_;
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
