// SPDX-License-Identifier: Apache-2.0
// Plans of one graph by the signature of the feeds. Bounded: the plan that was used longest ago
// goes first.
//
// Thread safety: all methods from any thread.
#ifndef CAESURA_CORE_RUNTIME_PLAN_CACHE_H_
#define CAESURA_CORE_RUNTIME_PLAN_CACHE_H_

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/plan/execution_plan.h"

namespace caesura {

// A plan that caches and runs share.
using SharedPlan = std::shared_ptr<const ExecutionPlan>;

// Gives the plan that runs in the place of another one of the same graph: within a memory budget,
// for example (graph_transforms/recompute.h).
using PlanFitter = std::function<Result<SharedPlan>(const SharedPlan&)>;

// Asks for a plan beside the feeds' signature.
struct PlanRequest {
  std::vector<FeedSpec> known = {};  // known[i].value, where defined, is feed i in every run
  // In place of those of the options (PlanOptions::fetch_devices, wanted_fetches).
  std::optional<std::vector<std::optional<Device>>> fetch_devices = std::nullopt;
  std::vector<bool> wanted = {};
};

// Holds at most kMaxPlans plans of one graph, and makes the missing ones.
class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 128;

  // `fit`: of each plan that is made; null: plans run as they are.
  PlanCache(std::shared_ptr<const Graph> graph, ProviderList providers, PlanOptions options,
            std::vector<const Value*> captured = {}, PlanFitter fit = nullptr)
      : graph_(std::move(graph)),
        providers_(std::move(providers)),
        options_(std::move(options)),
        captured_(std::move(captured)),
        fit_(std::move(fit)) {}

  const std::shared_ptr<const Graph>& graph() const { return graph_; }
  const PlanOptions& options() const { return options_; }
  const ProviderList& providers() const { return providers_; }

  // The plan for feeds like these, made if need be. A known shape never waits for a plan that
  // another thread makes.
  Result<SharedPlan> Get(const std::vector<RuntimeValue>& feeds, const PlanRequest& request = {});
  // Plans made so far (for tests and reports).
  int plans_made() const { return plans_made_; }

 private:
  struct Entry {
    SharedPlan made, fitted;
  };
  using Devices = std::vector<std::optional<Device>>;

  // The plan to run, moved to the front; null where there is none.
  SharedPlan Find(const std::vector<RuntimeValue>& feeds, const Devices& devices,
                  const std::vector<bool>& wanted);
  Result<SharedPlan> Make(std::vector<FeedSpec> feeds, const Devices& devices,
                          const std::vector<bool>& wanted);

  const std::shared_ptr<const Graph> graph_;
  const ProviderList providers_;
  const PlanOptions options_;
  const std::vector<const Value*> captured_;
  const PlanFitter fit_;
  std::mutex making_;       // held while a plan is made
  std::mutex mutex_;        // of plans_; never held while a plan is made
  std::list<Entry> plans_;  // most recently used first
  std::atomic<int> plans_made_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_RUNTIME_PLAN_CACHE_H_
