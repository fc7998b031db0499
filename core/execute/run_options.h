// SPDX-License-Identifier: Apache-2.0
// RunOptions: the choices of a caller for one run.
#ifndef CAESURA_CORE_EXECUTE_RUN_OPTIONS_H_
#define CAESURA_CORE_EXECUTE_RUN_OPTIONS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace caesura {

class ExecutionObserver;  // execution_observer.h
class ParameterSet;       // parameter_set.h
class RunCollectives;     // core/distributed/run_collectives.h
class UndoLog;            // undo_log.h
class ValueCache;         // value_cache.h

// The surroundings of a run besides its feeds. The pointed-to objects outlive the run.
struct RunOptions {
  ParameterSet* parameters = nullptr;  // needed when the plan has parameters
  ValueCache* cache =
      nullptr;  // of this plan; without it, cacheable values are computed in each run
  // The seed of all random numbers, and a count of runs: equal seeds and steps give equal numbers.
  // A session puts in its own seed and its next step where none is given; without a session they
  // are 0.
  std::optional<uint64_t> seed = std::nullopt, step = std::nullopt;
  std::string tag = {};  // what observers call the run ("batch 17"); empty: its step
  std::vector<ExecutionObserver*> observers = {};
  UndoLog* undo =
      nullptr;  // keeps what the run overwrites of its parameters; null: nothing is kept
  // Entry i allocates the memory of fetch i. The provider's allocator does where the entry is null
  // or the list is too short to have one.
  std::vector<Allocator*> fetch_allocators = {};
  // A caller's buffer for fetch i: an undefined tensor means a fresh one. Clones do not write to
  // it. Without `buffers_on_feeds` it may share no byte with a feed, and in no case with another
  // buffer.
  std::vector<Tensor> fetch_buffers = {};
  // Some buffer is also a feed: it is written when all else of the run has succeeded, by a copy.
  bool buffers_on_feeds = false;
  // The run ends with kCancelled before its next step, in bodies too, once this is true; but not
  // once it has written to a parameter, as half of an update is of no use. Null: never.
  std::shared_ptr<const std::atomic<bool>> cancel = nullptr;
  // The run stops before its next step once this is true, and can go on from there. Null: never.
  std::shared_ptr<const std::atomic<bool>> suspend = nullptr;
  // The run stops likewise before its first step after this time.
  std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt;
  // The collectives with the other ranks; null where the run has none. A run with it is not
  // suspended: the others would wait for it.
  std::shared_ptr<RunCollectives> collectives = nullptr;
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_RUN_OPTIONS_H_
