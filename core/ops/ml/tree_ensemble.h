// SPDX-License-Identifier: Apache-2.0
// Decision trees in one array, whatever ONNX op they come from. What the attributes of a file say
// is checked when the ensemble is built, so that walking needs no check.
#ifndef CAESURA_CORE_OPS_ML_TREE_ENSEMBLE_H_
#define CAESURA_CORE_OPS_ML_TREE_ENSEMBLE_H_

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"

namespace caesura {

struct TreeNode {
  // The first seven are TreeEnsemble's own numbers.
  enum class Mode : uint8_t { kLeq, kLt, kGte, kGt, kEq, kNeq, kMember, kLeaf };
  Mode mode = Mode::kLeaf;
  bool missing_is_true = false;  // where NaN goes
  int64_t feature = 0;
  double threshold = 0;
  int64_t members = -1;  // kMember: which set
  int64_t on_true = -1, on_false = -1;
  int64_t first_vote = 0, last_vote = 0;  // kLeaf: its votes are [first_vote, last_vote)
};

// A leaf's vote for a target.
struct TreeVote {
  int64_t target = 0;
  double weight = 0;
};

struct TreeEnsemble {
  enum class Aggregate : uint8_t { kAverage, kSum, kMin, kMax };

  std::vector<TreeNode> nodes;
  std::vector<TreeVote> votes;
  std::vector<std::unordered_set<double>> member_sets;
  std::vector<int64_t> roots;
  int64_t targets = 0;
  Aggregate aggregate = Aggregate::kSum;
  std::vector<double> base;  // added at the end; empty or one a target

  // Checks that children, features, votes and targets exist, and that no path comes back to where
  // it was.
  Status Check(int64_t features) const;
  // Scores of one row, for an ensemble that Check has passed; others are read out of bounds.
  // REQUIRES: `scores` and `seen` have one entry a target.
  void Evaluate(const double* row, double* scores, std::vector<char>* seen) const;

 private:
  Status CheckNoCycle() const;
  const TreeNode& Leaf(int64_t root, const double* row) const;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ML_TREE_ENSEMBLE_H_
