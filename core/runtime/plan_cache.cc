// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/plan_cache.h"

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

bool IsFor(const ExecutionPlan& plan, const std::vector<std::optional<Device>>& devices,
           const std::vector<bool>& wanted) {
  return plan.options().fetch_devices == devices && plan.options().wanted_fetches == wanted;
}

}  // namespace

SharedPlan PlanCache::Find(const std::vector<RuntimeValue>& feeds, const Devices& devices,
                           const std::vector<bool>& wanted) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(plans_.begin(), plans_.end(), [&](const Entry& entry) {
    return IsFor(*entry.made, devices, wanted) && Matches(*entry.made, feeds);
  });
  if (found == plans_.end()) return nullptr;
  plans_.splice(plans_.begin(), plans_, found);
  return plans_.front().fitted;
}

Result<SharedPlan> PlanCache::Make(std::vector<FeedSpec> feeds, const Devices& devices,
                                   const std::vector<bool>& wanted) {
  SharedPlan like, plan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = std::find_if(plans_.begin(), plans_.end(), [&](const Entry& entry) {
      return IsFor(*entry.made, devices, wanted);
    });
    if (found != plans_.end()) like = found->made;
  }
  if (like != nullptr) {
    ASSIGN_OR_RETURN(plan, like->Resized(feeds));
  }
  if (plan == nullptr) {
    PlanOptions options = options_;
    options.fetch_devices = devices;
    options.wanted_fetches = wanted;
    ASSIGN_OR_RETURN(plan, ExecutionPlan::Create(graph_, feeds, providers_, options, captured_));
  }
  Entry entry{plan, plan};
  if (fit_) {
    ASSIGN_OR_RETURN(entry.fitted, fit_(plan));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  plans_.push_front(entry);
  if (plans_.size() > kMaxPlans) plans_.pop_back();
  ++plans_made_;
  return entry.fitted;
}

Result<SharedPlan> PlanCache::Get(const std::vector<RuntimeValue>& feeds,
                                  const PlanRequest& request) {
  const Devices& devices = request.fetch_devices ? *request.fetch_devices : options_.fetch_devices;
  if (SharedPlan found = Find(feeds, devices, request.wanted)) return found;
  std::lock_guard<std::mutex> lock(making_);
  if (SharedPlan found = Find(feeds, devices, request.wanted)) return found;  // made meanwhile
  std::vector<FeedSpec> specs;
  for (size_t i = 0; i < feeds.size(); ++i) {
    specs.push_back(FeedSpec::Of(feeds[i]));
    // Feeds that are left out (an absent value) fall back to initializers; has_value() tells them
    // from feeds that are no tensors.
    if (!feeds[i].has_value()) specs.back().is_tensor = true;
    if (i < request.known.size() && request.known[i].value.defined())
      specs.back().value = request.known[i].value;
  }
  return Make(std::move(specs), devices, request.wanted);
}

}  // namespace caesura
