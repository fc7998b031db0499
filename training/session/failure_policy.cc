// SPDX-License-Identifier: Apache-2.0
#include "training/session/failure_policy.h"

#include <map>

namespace caesura {

Status FailurePolicy::Check() const {
  if (retries < 1)
    return InvalidArgument("retries: expected 1 or more, got " + std::to_string(retries));
  if (parts < 2) return InvalidArgument("parts: expected 2 or more, got " + std::to_string(parts));
  return {};
}

Result<OnFailure> OnFailureByName(const std::string& name) {
  const std::map<std::string, OnFailure> names = {
      {"stop", OnFailure::kStop},
      {"skip", OnFailure::kSkip},
      {"retry", OnFailure::kRetry},
      {"retry-on-defaults", OnFailure::kRetryOnDefaults},
      {"retry-in-parts", OnFailure::kRetryInParts}};
  const auto found = names.find(name);
  if (found != names.end()) return found->second;
  return InvalidArgument("on_failure '" + name +
                         "' is none of stop, skip, retry, retry-on-defaults, retry-in-parts");
}

}  // namespace caesura
