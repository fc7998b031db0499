// SPDX-License-Identifier: Apache-2.0
#include "training/session/training_options.h"

namespace caesura {

Status FailurePolicy::Check() const {
  if (retries < 1)
    return InvalidArgument("retries: expected 1 or more, got " + std::to_string(retries));
  if (parts < 2) return InvalidArgument("parts: expected 2 or more, got " + std::to_string(parts));
  return {};
}

}  // namespace caesura
