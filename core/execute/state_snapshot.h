// SPDX-License-Identifier: Apache-2.0
// StateSnapshot: a run between two of its steps, as data. It holds what later steps read, by the
// names of the graph's values, so that it does not depend on addresses, offsets or thread counts.
//
//   StateSnapshot snapshot = state.Capture().value();       // in one process
//   RETURN_IF_ERROR(other.Restore(snapshot, options));      // in another one, on a plan of the
//   PartialExecutor::Run(other);                            // same graph: goes on from there
//
// core/runtime/snapshot_file.h writes and reads it.
#ifndef CAESURA_CORE_EXECUTE_STATE_SNAPSHOT_H_
#define CAESURA_CORE_EXECUTE_STATE_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/execution_plan.h"

namespace caesura {

// A captured run. It shares the tensors' bytes with the state that it was captured from.
struct StateSnapshot {
  // A feed of the run.
  struct Feed {
    std::string name;         // of the graph's input
    FeedSpec spec;            // that the plan was made for
    RuntimeValue value = {};  // absent where no later step reads it
  };
  // A value that a later step reads.
  struct Value {
    std::string name;
    RuntimeValue value = {};
    std::string parameter = {};  // the value is this parameter itself; then `value` is absent
  };
  // A parameter that the run reads or writes; its bytes are not part of the snapshot.
  struct Parameter {
    std::string name;
    DType dtype = DType::kUndefined;
    Shape shape = {};
    bool written = false;  // by a step before the program counter
  };

  // If these are the plan's own, the run ends with the same bits as without the snapshot.
  uint64_t fingerprint = 0;
  int threads = 1;
  std::vector<std::string> providers;  // their names, each with its rounding

  std::vector<Feed> feeds;
  std::vector<Parameter> parameters;   // of the plan, in its order
  std::vector<std::string> remaining;  // the steps to run, by the first value that each one makes
  int program_counter = 0;
  int yield_index = -1;         // of the yield that the run waits at; -1: it is ready to run
  uint64_t seed = 0, step = 0;  // RunOptions
  std::string tag;
  std::vector<Value> values;             // what later steps read
  std::vector<RuntimeValue> handed_out;  // at the yield, and not taken yet
  std::vector<FeedSpec> yielded;  // what the yield has handed out, where only the run knows it
};

// Differences between a run of `plan` and the captured one: "threads: 4 there, 1 here". Empty:
// the same bits.
std::vector<std::string> DescribeDifferences(const StateSnapshot& snapshot,
                                             const ExecutionPlan& plan);

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_STATE_SNAPSHOT_H_
