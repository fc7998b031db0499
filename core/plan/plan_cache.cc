// SPDX-License-Identifier: Apache-2.0
#include "core/plan/plan_cache.h"

#include <algorithm>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

bool Matches(const ExecutionPlan& plan, const std::vector<RuntimeValue>& feeds) {
  if (plan.feeds().size() != feeds.size()) return false;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (!plan.feeds()[i].Matches(feeds[i])) return false;
  }
  return true;
}

}  // namespace

Result<std::shared_ptr<const ExecutionPlan>> PlanCache::Get(const std::vector<RuntimeValue>& feeds,
                                                            const std::vector<FeedSpec>& known) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) { return Matches(*plan, feeds); });
  if (found != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, found);
    return plans_.front();
  }
  std::vector<FeedSpec> specs;
  for (size_t i = 0; i < feeds.size(); ++i) {
    specs.push_back(FeedSpec::Of(feeds[i]));
    // Left-out feeds (an absent value) fall back to initializers; non-tensors are told apart by has_value().
    if (!feeds[i].has_value()) specs.back().is_tensor = true;
    if (i < known.size() && known[i].value.defined()) specs.back().value = known[i].value;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> plan,
                   ExecutionPlan::Create(graph_, specs, providers_, options_, captured_));
  plans_.push_front(plan);
  if (plans_.size() > kMaxPlans) plans_.pop_back();
  ++plans_made_;
  return plan;
}

}  // namespace caesura
