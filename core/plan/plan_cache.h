// SPDX-License-Identifier: Apache-2.0
// Plans of one graph by the signature of the feeds, and states to run them with. Bounded: the plan
// that was used longest ago goes first.
//
// Thread safety: all methods from any thread.
#ifndef CAESURA_CORE_PLAN_PLAN_CACHE_H_
#define CAESURA_CORE_PLAN_PLAN_CACHE_H_

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "core/plan/execution_plan.h"

namespace caesura {

class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 32;

  PlanCache(std::shared_ptr<const Graph> graph, ProviderList providers, PlanOptions options,
            std::vector<const Value*> captured = {})
      : graph_(std::move(graph)),
        providers_(std::move(providers)),
        options_(std::move(options)),
        captured_(std::move(captured)) {}

  const std::shared_ptr<const Graph>& graph() const { return graph_; }
  const PlanOptions& options() const { return options_; }
  const ProviderList& providers() const { return providers_; }

  // The plan for feeds like these, made if need be. `known[i]`, where given and defined, is a value
  // that feed i will have in every run. `fetch_devices` and `wanted` replace those of the options
  // (PlanOptions::fetch_devices, wanted_fetches).
  Result<std::shared_ptr<const ExecutionPlan>> Get(
      const std::vector<RuntimeValue>& feeds, const std::vector<FeedSpec>& known = {},
      const std::vector<std::optional<Device>>* fetch_devices = nullptr,
      const std::vector<bool>& wanted = {});
  // Plans made so far (for tests and reports).
  int plans_made() const { return plans_made_; }

 private:
  std::shared_ptr<const Graph> graph_;
  ProviderList providers_;
  PlanOptions options_;
  std::vector<const Value*> captured_;
  std::mutex mutex_;
  std::list<std::shared_ptr<const ExecutionPlan>> plans_;  // most recently used first
  std::atomic<int> plans_made_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_CACHE_H_
