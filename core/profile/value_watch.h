// SPDX-License-Identifier: Apache-2.0
// Observers that find out where the numbers of a run go wrong: they name the first node that
// makes a NaN, and the first one at which two runs part.
//
//   NonfiniteFinder finder;
//   session->Step(feeds, {&finder});
//   if (finder.first_nan()) Print(finder.first_nan()->ToString());
//
//   ValueLog first, second;
//   here->ResumeStep({&first}), there->ResumeStep({&second});
//   if (auto difference = FirstDifference(first, second)) Print(difference->ToString());
#ifndef CAESURA_CORE_PROFILE_VALUE_WATCH_H_
#define CAESURA_CORE_PROFILE_VALUE_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/execute/execution_observer.h"
#include "core/tensor/tensor.h"

namespace caesura {

struct ValueRange {
  std::string name, type;      // "float32[4, 3]"
  double least = 0, most = 0;  // of the finite elements
  int64_t finite = 0, nans = 0, infinite = 0;

  // "h float32[4, 3] from -1 to 2.5, 1 NaN".
  std::string ToString() const;
};

// A node as a run has seen it.
struct WatchedNode {
  std::string label, provider;     // "MatMul 'm'"
  std::string source;              // the user's module and line, where known
  std::vector<std::string> parts;  // of a fused node, likewise: "Add 'a' (net.py:12)"
  std::vector<ValueRange> inputs;  // before it ran; floating ones

  // Some lines: the node, its source, its parts, its inputs.
  std::string ToString() const;
};

// The first nodes that make what is not finite out of what is. Reads all values of a run: for
// finding faults, not for timing. Thread safety: one run at a time.
class NonfiniteFinder : public ExecutionObserver {
 public:
  // NaN out of inputs without NaN.
  const std::optional<WatchedNode>& first_nan() const { return first_nan_; }
  // Infinities out of finite inputs; a mask of -inf is one, too.
  const std::optional<WatchedNode>& first_infinite() const { return first_infinite_; }

  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status& status) override;

 private:
  WatchedNode current_;
  std::optional<WatchedNode> first_nan_, first_infinite_;
};

// All that the nodes of a run make, copied to the host, in the order of the run. Thread safety: one
// run at a time.
class ValueLog : public ExecutionObserver {
 public:
  struct Entry {
    std::string name;
    Tensor value;
    size_t node;  // index into nodes()
  };
  ValueLog() = default;
  // The log of a run elsewhere, whose nodes are not known: for FirstDifference's first argument.
  explicit ValueLog(std::vector<Entry> entries) : entries_(std::move(entries)) {}
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<WatchedNode>& nodes() const { return nodes_; }

  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status& status) override;

 private:
  std::vector<Entry> entries_;
  std::vector<WatchedNode> nodes_;
};

struct ValueDifference {
  WatchedNode node;  // of the second run
  std::string value;
  int64_t element = 0;  // the one that is off by most
  double expected = 0, got = 0;
  double largest = 0;       // of the first run's value
  size_t equal_before = 0;  // values that agree, in the order of the first run
  std::string shapes = {};  // where dtypes or shapes differ: both; then no element is compared

  std::string ToString() const;
};

// The first value of `expected` that `got` has too and that is off by more than `tolerance` times
// its largest finite magnitude, or is NaN in only one of them. Values that only one run has (fused
// nodes keep some to themselves) are not compared.
std::optional<ValueDifference> FirstDifference(const ValueLog& expected, const ValueLog& got,
                                               double tolerance);

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_VALUE_WATCH_H_
