// SPDX-License-Identifier: Apache-2.0
// TreeEnsemble (ai.onnx.ml 5) and the forms that it replaces: TreeEnsembleRegressor and
// TreeEnsembleClassifier.
#include <cmath>
#include <map>
#include <set>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/ml/scores.h"
#include "core/ops/ml/tree_ensemble.h"

namespace caesura {
namespace {

using Ints = std::vector<int64_t>;

Ints IntsOf(const KernelInfo& info, const char* name) { return info.Attr<Ints>(name, {}); }

// The attribute `name` (floats) or `tensor_name` (any float tensor) as doubles; empty when absent.
std::vector<double> NumbersOf(const KernelInfo& info, const char* name, const char* tensor_name) {
  const Tensor* tensor = info.node().FindAttr<Tensor>(tensor_name);
  if (tensor != nullptr && IsDifferentiable(tensor->dtype())) return tensor->ToVector<double>();
  const auto floats = info.Attr<std::vector<float>>(name, {});
  return std::vector<double>(floats.begin(), floats.end());
}

Status CheckSize(const KernelInfo& info, const char* name, size_t size, size_t expected) {
  if (size == expected) return {};
  return info.Invalid(std::string(name) + " must have " + std::to_string(expected) +
                      " entries, has " + std::to_string(size));
}

// Checks and hands over what a factory has collected.
Result<TreeEnsemble> Finish(const KernelInfo& info, TreeEnsemble trees, int64_t features) {
  Status status = trees.Check(features);
  if (!status.ok()) return info.Invalid(status.message());
  return trees;
}

// --- the forms before version 5: nodes named by (tree, node), votes in a list of their own ---

using NodeId = std::pair<int64_t, int64_t>;

struct OldNodes {
  Ints trees, ids, features, on_true, on_false, missing;
  std::vector<std::string> modes;
  std::vector<double> thresholds;
};

Result<OldNodes> ReadOldNodes(const KernelInfo& info) {
  OldNodes nodes{IntsOf(info, "nodes_treeids"),
                 IntsOf(info, "nodes_nodeids"),
                 IntsOf(info, "nodes_featureids"),
                 IntsOf(info, "nodes_truenodeids"),
                 IntsOf(info, "nodes_falsenodeids"),
                 IntsOf(info, "nodes_missing_value_tracks_true"),
                 info.Attr<std::vector<std::string>>("nodes_modes", {}),
                 NumbersOf(info, "nodes_values", "nodes_values_as_tensor")};
  const size_t count = nodes.trees.size();
  if (nodes.missing.empty()) nodes.missing.assign(count, 0);
  const struct {
    const char* name;
    size_t size;
  } lists[] = {{"nodes_nodeids", nodes.ids.size()},
               {"nodes_featureids", nodes.features.size()},
               {"nodes_truenodeids", nodes.on_true.size()},
               {"nodes_falsenodeids", nodes.on_false.size()},
               {"nodes_modes", nodes.modes.size()},
               {"nodes_values", nodes.thresholds.size()},
               {"nodes_missing_value_tracks_true", nodes.missing.size()}};
  for (const auto& list : lists) RETURN_IF_ERROR(CheckSize(info, list.name, list.size, count));
  return nodes;
}

Result<TreeNode::Mode> ModeOf(const KernelInfo& info, const std::string& name) {
  static constexpr const char* kNames[] = {"BRANCH_LEQ", "BRANCH_LT",  "BRANCH_GTE",    "BRANCH_GT",
                                           "BRANCH_EQ",  "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF"};
  for (int i = 0; i < 8; ++i) {
    const bool member = i == static_cast<int>(TreeNode::Mode::kMember);
    if (!member && name == kNames[i]) return static_cast<TreeNode::Mode>(i);
  }
  return info.Invalid("unknown node mode " + name);
}

// Nodes in the order of the file; the first one of each tree is its root.
Status BuildOldNodes(const KernelInfo& info, const OldNodes& old, TreeEnsemble* trees,
                     std::map<NodeId, int64_t>* places) {
  std::set<int64_t> known_trees;
  for (size_t i = 0; i < old.trees.size(); ++i) {
    const int64_t place = static_cast<int64_t>(i);
    if (known_trees.insert(old.trees[i]).second) trees->roots.push_back(place);
    if (!places->try_emplace({old.trees[i], old.ids[i]}, place).second) {
      return info.Invalid("has node " + std::to_string(old.ids[i]) + " of tree " +
                          std::to_string(old.trees[i]) + " twice");
    }
  }
  for (size_t i = 0; i < old.trees.size(); ++i) {
    TreeNode node;
    ASSIGN_OR_RETURN(node.mode, ModeOf(info, old.modes[i]));
    node.missing_is_true = old.missing[i] != 0;
    node.feature = old.features[i];
    node.threshold = old.thresholds[i];
    auto child = [&](int64_t id) {
      auto it = places->find({old.trees[i], id});
      return it == places->end() ? -1 : it->second;
    };
    if (node.mode != TreeNode::Mode::kLeaf) {
      node.on_true = child(old.on_true[i]);
      node.on_false = child(old.on_false[i]);
    }
    trees->nodes.push_back(node);
  }
  return {};
}

// `stem` is "class" or "target": lists <stem>_treeids, _nodeids, _ids, _weights.
Status BuildOldVotes(const KernelInfo& info, const std::string& stem,
                     const std::map<NodeId, int64_t>& places, TreeEnsemble* trees) {
  const Ints tree_ids = IntsOf(info, (stem + "_treeids").c_str());
  const Ints node_ids = IntsOf(info, (stem + "_nodeids").c_str());
  const Ints targets = IntsOf(info, (stem + "_ids").c_str());
  const auto weights =
      NumbersOf(info, (stem + "_weights").c_str(), (stem + "_weights_as_tensor").c_str());
  RETURN_IF_ERROR(CheckSize(info, (stem + "_nodeids").c_str(), node_ids.size(), tree_ids.size()));
  RETURN_IF_ERROR(CheckSize(info, (stem + "_ids").c_str(), targets.size(), tree_ids.size()));
  RETURN_IF_ERROR(CheckSize(info, (stem + "_weights").c_str(), weights.size(), tree_ids.size()));
  std::vector<std::vector<TreeVote>> by_node(trees->nodes.size());
  for (size_t i = 0; i < tree_ids.size(); ++i) {
    auto place = places.find({tree_ids[i], node_ids[i]});
    if (place == places.end()) return info.Invalid("has a weight for a node that is not there");
    by_node[place->second].push_back({targets[i], weights[i]});
  }
  for (size_t i = 0; i < by_node.size(); ++i) {
    trees->nodes[i].first_vote = static_cast<int64_t>(trees->votes.size());
    trees->votes.insert(trees->votes.end(), by_node[i].begin(), by_node[i].end());
    trees->nodes[i].last_vote = static_cast<int64_t>(trees->votes.size());
  }
  return {};
}

Result<TreeEnsemble> BuildOld(const KernelInfo& info, const std::string& stem, int64_t targets,
                              int64_t features) {
  TreeEnsemble trees;
  trees.targets = targets;
  ASSIGN_OR_RETURN(const OldNodes nodes, ReadOldNodes(info));
  std::map<NodeId, int64_t> places;
  RETURN_IF_ERROR(BuildOldNodes(info, nodes, &trees, &places));
  RETURN_IF_ERROR(BuildOldVotes(info, stem, places, &trees));
  trees.base = NumbersOf(info, "base_values", "base_values_as_tensor");
  // Binary classifiers of xgboost have one: that of the only class which is voted for. The other's
  // is not used.
  const auto is_first = [&](const TreeVote& vote) { return vote.target == trees.votes[0].target; };
  if (stem == "class" && targets == 2 && trees.base.size() == 1 &&
      std::all_of(trees.votes.begin(), trees.votes.end(), is_first)) {
    trees.base.push_back(trees.base[0]);
  }
  return Finish(info, std::move(trees), features);
}

// --- version 5: leaves in lists of their own ---

// The sets of the kMember nodes, in their order: runs of numbers that NaN ends.
Status ReadMemberSets(const KernelInfo& info, TreeEnsemble* trees) {
  const auto numbers = NumbersOf(info, "", "membership_values");
  size_t next = 0;
  for (TreeNode& node : trees->nodes) {
    if (node.mode != TreeNode::Mode::kMember) continue;
    if (next >= numbers.size())
      return info.Invalid("membership_values has fewer sets than there are members");
    node.members = static_cast<int64_t>(trees->member_sets.size());
    trees->member_sets.emplace_back();
    while (next < numbers.size() && !std::isnan(numbers[next]))
      trees->member_sets.back().insert(numbers[next++]);
    ++next;
  }
  return {};
}

// Inner nodes first, leaf i after them.
Status BuildNodes(const KernelInfo& info, TreeEnsemble* trees) {
  const Ints features = IntsOf(info, "nodes_featureids");
  const Ints children[] = {IntsOf(info, "nodes_truenodeids"), IntsOf(info, "nodes_falsenodeids")};
  const Ints leafs[] = {IntsOf(info, "nodes_trueleafs"), IntsOf(info, "nodes_falseleafs")};
  const auto splits = NumbersOf(info, "", "nodes_splits");
  const Tensor* modes = info.node().FindAttr<Tensor>("nodes_modes");
  Ints missing = IntsOf(info, "nodes_missing_value_tracks_true");
  const size_t count = features.size();
  if (missing.empty()) missing.assign(count, 0);
  if (modes == nullptr || modes->dtype() != DType::kUInt8)
    return info.Invalid("nodes_modes must be uint8");
  for (size_t size : {children[0].size(), children[1].size(), leafs[0].size(), leafs[1].size(),
                      splits.size(), missing.size(), static_cast<size_t>(modes->elements())}) {
    RETURN_IF_ERROR(CheckSize(info, "nodes_*", size, count));
  }
  const int64_t leaf_count = static_cast<int64_t>(trees->nodes.size());
  auto place = [&](int side, size_t i) {
    const int64_t child = children[side][i];
    if (leafs[side][i] == 0) return child >= 0 && child < static_cast<int64_t>(count) ? child : -1;
    return child >= 0 && child < leaf_count ? static_cast<int64_t>(count) + child : -1;
  };
  std::vector<TreeNode> inner(count);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t mode = modes->data<uint8_t>()[i];
    if (mode > static_cast<uint8_t>(TreeNode::Mode::kMember))
      return info.Invalid("nodes_modes is out of range");
    inner[i].mode = static_cast<TreeNode::Mode>(mode);
    inner[i].missing_is_true = missing[i] != 0;
    inner[i].feature = features[i];
    inner[i].threshold = splits[i];
    inner[i].on_true = place(0, i);
    inner[i].on_false = place(1, i);
  }
  trees->nodes.insert(trees->nodes.begin(), inner.begin(), inner.end());
  return {};
}

Result<TreeEnsemble> BuildEnsemble(const KernelInfo& info, int64_t features) {
  TreeEnsemble trees;
  trees.targets = info.Attr<int64_t>("n_targets", 0);
  const int64_t aggregate = info.Attr<int64_t>("aggregate_function", 1);
  if (aggregate < 0 || aggregate > 3) return info.Invalid("aggregate_function must be in 0..3");
  trees.aggregate = static_cast<TreeEnsemble::Aggregate>(aggregate);
  const Ints targets = IntsOf(info, "leaf_targetids");
  const auto weights = NumbersOf(info, "", "leaf_weights");
  RETURN_IF_ERROR(CheckSize(info, "leaf_weights", weights.size(), targets.size()));
  for (size_t i = 0; i < targets.size(); ++i) {
    TreeNode leaf;
    leaf.first_vote = static_cast<int64_t>(i);
    leaf.last_vote = leaf.first_vote + 1;
    trees.nodes.push_back(leaf);
    trees.votes.push_back({targets[i], weights[i]});
  }
  RETURN_IF_ERROR(BuildNodes(info, &trees));
  RETURN_IF_ERROR(ReadMemberSets(info, &trees));
  trees.roots = IntsOf(info, "tree_roots");
  // A tree of one leaf is written as a node whose two children are that leaf: its comparison means
  // nothing.
  for (TreeNode& node : trees.nodes) {
    if (node.mode != TreeNode::Mode::kLeaf && node.on_true == node.on_false && node.on_true >= 0)
      node.feature = 0;
  }
  return Finish(info, std::move(trees), features);
}

// --- the kernels ---

Result<PostTransform> NumberedTransform(const KernelInfo& info) {
  const int64_t number = info.Attr<int64_t>("post_transform", 0);
  if (number < 0 || number > 4) return info.Invalid("post_transform must be in 0..4");
  return static_cast<PostTransform>(number);  // the numbers are those of the enum
}

// One score a target, transformed, as T.
template <typename T>
void SetScores(KernelInfo& info, FeatureRows x, TreeEnsemble trees, PostTransform transform) {
  info.SetOutput(0, kDTypeOf<T>, Shape{x.rows, trees.targets});
  const int threads = info.threads();
  info.SetCompute([x, transform, threads, trees = std::move(trees)](KernelContext& context) {
    T* y = context.Output<T>(0);
    const int64_t work = 16 * static_cast<int64_t>(trees.roots.size());
    ForEachRow(x, context, threads, work, [&](int64_t r, const double* features) {
      std::vector<double> scores(trees.targets);
      std::vector<char> seen(trees.targets);
      trees.Evaluate(features, scores.data(), &seen);
      if (transform != PostTransform::kNone) {
        std::vector<float> transformed(scores.begin(), scores.end());
        ApplyPostTransform(transform, transformed.data(), trees.targets);
        std::copy(transformed.begin(), transformed.end(), scores.begin());
      }
      for (int64_t t = 0; t < trees.targets; ++t)
        y[r * trees.targets + t] = static_cast<T>(scores[t]);
    });
  });
}

Status CheckTargets(const KernelInfo& info, const FeatureRows& x, int64_t targets) {
  if (targets < 1) return info.Invalid("n_targets must be positive");
  auto shape = CheckedShape({x.rows, targets}, DType::kFloat64);
  return shape.ok() ? Status() : info.Invalid(shape.status().message());
}

Status CreateTreeEnsemble(KernelInfo& info) {
  ASSIGN_OR_RETURN(const FeatureRows x, FeatureRowsOf(info, 0));
  ASSIGN_OR_RETURN(TreeEnsemble trees, BuildEnsemble(info, x.columns));
  ASSIGN_OR_RETURN(const PostTransform transform, NumberedTransform(info));
  RETURN_IF_ERROR(CheckTargets(info, x, trees.targets));
  DispatchDType<float, double, Float16>(x.dtype, [&](auto tag) {
    SetScores<typename decltype(tag)::type>(info, x, std::move(trees), transform);
  });
  return {};
}

Status CreateTreeRegressor(KernelInfo& info) {
  ASSIGN_OR_RETURN(const FeatureRows x, FeatureRowsOf(info, 0));
  const int64_t targets = info.Attr<int64_t>("n_targets", 1);
  RETURN_IF_ERROR(CheckTargets(info, x, targets));
  ASSIGN_OR_RETURN(TreeEnsemble trees, BuildOld(info, "target", targets, x.columns));
  ASSIGN_OR_RETURN(const PostTransform transform, ParsePostTransform(info));
  static constexpr const char* kNames[] = {"AVERAGE", "SUM", "MIN", "MAX"};
  const std::string name = info.Attr<std::string>("aggregate_function", "SUM");
  const auto* found = std::find(kNames, kNames + 4, name);
  if (found == kNames + 4) return info.Invalid("unknown aggregate_function " + name);
  trees.aggregate = static_cast<TreeEnsemble::Aggregate>(found - kNames);
  SetScores<float>(info, x, std::move(trees), transform);
  return {};
}

struct TreeClassifier {
  FeatureRows x;
  TreeEnsemble trees;
  ClassLabels labels;
  PostTransform transform = PostTransform::kNone;
  int64_t width = 0;  // of the scores
  // All votes are for one class of at most two: its score s stands for both.
  bool binary = false;
  int64_t voted = 0;
  bool all_positive = false;  // then s is a probability and the other class has 1 - s, otherwise -s

  // Returns the class; -1 for "not the only one".
  int64_t Classify(const double* features, float* out) const {
    std::vector<double> scores(trees.targets);
    std::vector<char> seen(trees.targets);
    trees.Evaluate(features, scores.data(), &seen);
    if (binary) {
      const double s = scores[voted];
      const bool as_is = transform == PostTransform::kNone || transform == PostTransform::kProbit;
      out[0] = static_cast<float>(all_positive && as_is ? 1 - s : -s);
      out[1] = static_cast<float>(s);
    } else {
      for (int64_t t = 0; t < width; ++t) out[t] = static_cast<float>(scores[t]);
    }
    ApplyPostTransform(transform, out, width);
    const int64_t winner = ArgMax(out, width);
    return labels.size() == 1 ? winner - 1 : winner;
  }
};

Status CreateTreeClassifier(KernelInfo& info) {
  TreeClassifier model;
  ASSIGN_OR_RETURN(model.x, FeatureRowsOf(info, 0));
  ASSIGN_OR_RETURN(model.labels,
                   ClassLabels::Of(info, "classlabels_int64s", "classlabels_strings"));
  ASSIGN_OR_RETURN(model.transform, ParsePostTransform(info));
  ASSIGN_OR_RETURN(model.trees, BuildOld(info, "class", model.labels.size(), model.x.columns));
  std::set<int64_t> voted;
  model.all_positive = true;
  for (const TreeVote& vote : model.trees.votes) {
    voted.insert(vote.target);
    if (vote.weight < 0) model.all_positive = false;
  }
  model.binary = model.labels.size() <= 2 && voted.size() <= 1;
  if (!voted.empty()) model.voted = *voted.begin();
  model.width = model.binary ? 2 : model.labels.size();
  info.SetOutput(0, model.labels.dtype(), Shape{model.x.rows});
  info.SetOutput(1, DType::kFloat32, Shape{model.x.rows, model.width});
  const bool has_labels = info.HasOutput(0), has_scores = info.HasOutput(1);
  const int threads = info.threads();
  info.SetCompute(
      [model = std::move(model), has_labels, has_scores, threads](KernelContext& context) {
        const int64_t work = 16 * static_cast<int64_t>(model.trees.roots.size());
        ForEachRow(model.x, context, threads, work, [&](int64_t r, const double* features) {
          std::vector<float> own(has_scores ? 0 : model.width);
          float* scores = has_scores ? context.Output<float>(1) + r * model.width : own.data();
          const int64_t winner = model.Classify(features, scores);
          if (has_labels) model.labels.Write(context, r, winner);
        });
      });
  return {};
}

}  // namespace

void RegisterTreeModel(KernelRegistry& registry) {
  const DTypeSet floats = {DType::kFloat32, DType::kFloat64, DType::kFloat16};
  registry.Add({.op_type = "TreeEnsemble",
                .domain = kMlDomain,
                .types = floats,
                .create = CreateTreeEnsemble});
  registry.Add({.op_type = "TreeEnsembleRegressor",
                .domain = kMlDomain,
                .types = kMlFeatureTypes,
                .create = CreateTreeRegressor});
  registry.Add({.op_type = "TreeEnsembleClassifier",
                .domain = kMlDomain,
                .types = kMlFeatureTypes,
                .create = CreateTreeClassifier});
}

}  // namespace caesura
