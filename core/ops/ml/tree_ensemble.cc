// SPDX-License-Identifier: Apache-2.0
#include "core/ops/ml/tree_ensemble.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "core/base/status_macros.h"

namespace caesura {

Status TreeEnsemble::Check(int64_t features) const {
  const int64_t count = static_cast<int64_t>(nodes.size());
  auto exists = [count](int64_t node) { return node >= 0 && node < count; };
  for (int64_t i = 0; i < count; ++i) {
    const TreeNode& node = nodes[i];
    const std::string at = "tree node " + std::to_string(i);
    if (node.mode == TreeNode::Mode::kLeaf) continue;
    if (!exists(node.on_true) || !exists(node.on_false)) {
      return InvalidArgument(at + " has a child that is not there");
    }
    if (node.feature < 0 || node.feature >= features) {
      return InvalidArgument(at + " reads feature " + std::to_string(node.feature) + " of " +
                             std::to_string(features));
    }
  }
  for (const TreeVote& vote : votes) {
    if (vote.target < 0 || vote.target >= targets) {
      return InvalidArgument("a leaf votes for target " + std::to_string(vote.target) + " of " +
                             std::to_string(targets));
    }
  }
  if (!std::all_of(roots.begin(), roots.end(), exists))
    return InvalidArgument("a tree's root is not there");
  if (!base.empty() && static_cast<int64_t>(base.size()) != targets) {
    return InvalidArgument("base values must be " + std::to_string(targets) + ", are " +
                           std::to_string(base.size()));
  }
  return CheckNoCycle();
}

// Depth first with a stack of our own: the depth is the file's.
Status TreeEnsemble::CheckNoCycle() const {
  enum : char { kNew, kOpen, kDone };
  std::vector<char> state(nodes.size(), kNew);
  std::vector<int64_t> stack;
  for (int64_t root : roots) {
    stack.push_back(root);
    while (!stack.empty()) {
      const int64_t id = stack.back();
      const TreeNode& node = nodes[id];
      if (state[id] != kNew || node.mode == TreeNode::Mode::kLeaf) {
        state[id] = kDone;
        stack.pop_back();
        continue;
      }
      state[id] = kOpen;
      for (int64_t child : {node.on_true, node.on_false}) {
        if (state[child] == kOpen)
          return InvalidArgument("tree node " + std::to_string(id) + " closes a cycle");
        if (state[child] == kNew) stack.push_back(child);
      }
    }
  }
  return {};
}

const TreeNode& TreeEnsemble::Leaf(int64_t root, const double* row) const {
  using Mode = TreeNode::Mode;
  const TreeNode* node = &nodes[root];
  while (node->mode != Mode::kLeaf) {
    const double x = row[node->feature];
    bool holds = false;
    switch (node->mode) {
      case Mode::kLeq: holds = x <= node->threshold; break;
      case Mode::kLt: holds = x < node->threshold; break;
      case Mode::kGte: holds = x >= node->threshold; break;
      case Mode::kGt: holds = x > node->threshold; break;
      case Mode::kEq: holds = x == node->threshold; break;
      case Mode::kNeq: holds = x != node->threshold; break;
      case Mode::kMember: holds = member_sets[node->members].count(x) > 0; break;
      case Mode::kLeaf: break;
    }
    if (std::isnan(x)) holds = node->missing_is_true;
    node = &nodes[holds ? node->on_true : node->on_false];
  }
  return *node;
}

void TreeEnsemble::Evaluate(const double* row, double* scores, std::vector<char>* seen) const {
  assert(static_cast<int64_t>(seen->size()) == targets);
  std::fill_n(scores, targets, 0.0);
  std::fill(seen->begin(), seen->end(), 0);
  for (int64_t root : roots) {
    const TreeNode& leaf = Leaf(root, row);
    for (int64_t v = leaf.first_vote; v < leaf.last_vote; ++v) {
      double& score = scores[votes[v].target];
      const double weight = votes[v].weight;
      const bool first = !(*seen)[votes[v].target];
      (*seen)[votes[v].target] = 1;
      if (aggregate == Aggregate::kMin) score = first ? weight : std::min(score, weight);
      else if (aggregate == Aggregate::kMax) score = first ? weight : std::max(score, weight);
      else score += weight;
    }
  }
  for (int64_t t = 0; t < targets; ++t) {
    if (aggregate == Aggregate::kAverage) scores[t] /= static_cast<double>(roots.size());
    if (!base.empty()) scores[t] += base[t];
  }
}

}  // namespace caesura
