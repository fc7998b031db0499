// SPDX-License-Identifier: Apache-2.0
// A piece of work in a process of its own, so that a crash in it is a result like any other.
#ifndef CAESURA_TRAINING_COMMAND_ISOLATED_H_
#define CAESURA_TRAINING_COMMAND_ISOLATED_H_

#include <functional>
#include <string>

namespace caesura::command {

inline constexpr char kCrashed[] = "crashed";
inline constexpr char kTimedOut[] = "timed out";

// Returns the result of `work`, or kCrashed, or kTimedOut after `seconds`. The child is a
// process with a copy of this thread only: work that waits for another thread of the caller's
// (OpenMP's, too) ends as kTimedOut.
std::string RunIsolated(const std::function<std::string()>& work, int seconds);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_ISOLATED_H_
