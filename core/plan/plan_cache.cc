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

Result<std::shared_ptr<const ExecutionPlan>> PlanCache::Get(
    const std::vector<RuntimeValue>& feeds, const std::vector<FeedSpec>& known,
    const std::vector<std::optional<Device>>* fetch_devices, const std::vector<bool>& wanted) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto& devices = fetch_devices != nullptr ? *fetch_devices : options_.fetch_devices;
  const auto is_for = [&](const auto& plan) {
    return plan->options().fetch_devices == devices && plan->options().wanted_fetches == wanted;
  };
  auto found = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) {
    return is_for(plan) && Matches(*plan, feeds);
  });
  if (found != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, found);
    return plans_.front();
  }
  std::vector<FeedSpec> specs;
  for (size_t i = 0; i < feeds.size(); ++i) {
    specs.push_back(FeedSpec::Of(feeds[i]));
    // Left-out feeds (an absent value) fall back to initializers; non-tensors are told apart by
    // has_value().
    if (!feeds[i].has_value()) specs.back().is_tensor = true;
    if (i < known.size() && known[i].value.defined()) specs.back().value = known[i].value;
  }
  auto like = std::find_if(plans_.begin(), plans_.end(), is_for);
  std::shared_ptr<const ExecutionPlan> plan;
  if (like != plans_.end()) {
    ASSIGN_OR_RETURN(plan, (*like)->Resized(specs));
  }
  if (plan == nullptr) {
    PlanOptions options = options_;
    options.fetch_devices = devices;
    options.wanted_fetches = wanted;
    ASSIGN_OR_RETURN(plan, ExecutionPlan::Create(graph_, specs, providers_, options, captured_));
  }
  plans_.push_front(plan);
  if (plans_.size() > kMaxPlans) plans_.pop_back();
  ++plans_made_;
  return plan;
}

}  // namespace caesura
