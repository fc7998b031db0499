// SPDX-License-Identifier: Apache-2.0
// The answer of a training session to a step that fails.
#ifndef CAESURA_TRAINING_SESSION_FAILURE_POLICY_H_
#define CAESURA_TRAINING_SESSION_FAILURE_POLICY_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace caesura {

// The answer to one failed step.
enum class OnFailure : uint8_t {
  kStop,   // Step returns the error
  kSkip,   // the batch is left out: Step returns NaN
  kRetry,  // the step is done again, with the same random numbers
  // Likewise, on the session's default providers, where it stays (provider_fallback.h). A failure
  // of a provider has this answer without a policy.
  kRetryOnDefaults,
  // Likewise, as micro-steps on parts of the batch, whose mean gradient makes the update: with a
  // loss that is a mean over the batch the same gradient up to the rounding of its sum. Batch
  // statistics and random numbers are those of the parts.
  kRetryInParts,
};

// Whatever the answer, a step that has failed leaves everything as it was, and a step that has left
// parameters inconsistent stops. Steps that were cancelled or suspended, and feeds that do not fit
// the model, have not failed.
struct FailurePolicy {
  OnFailure action = OnFailure::kStop;
  int retries = 1;  // of one step; after the last one it stops
  // kRetryInParts: how many; inputs whose first dimension is no constant are split along it into
  // equal parts. The session holds a sum of gradients for each parameter from its creation on.
  int parts = 2;

  Status Check() const;
};

// The failures of a session's steps since it was made.
struct FailureCounts {
  int64_t failed = 0;   // runs that failed, retries among them
  int64_t skipped = 0;  // batches left out
  int64_t retried = 0;  // retries
  int64_t saved = 0;    // steps that a retry has done
  std::string last;     // the last failure as text
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_FAILURE_POLICY_H_
