// SPDX-License-Identifier: Apache-2.0
// TfIdfVectorizer (ONNX): counts the n-grams of a pool in each row, with up to max_skip_count items
// left out between neighbours, and weighs the counts.
#include <map>

#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

// The pool as a tree: one level an item. Node 0 is the root.
template <typename Item>
class NgramTree {
 public:
  static constexpr int kNone = -1;

  void Add(const Item* items, int64_t length, int ngram) {
    int node = 0;
    for (int64_t i = 0; i < length; ++i) {
      auto [child, fresh] =
          children_.try_emplace({node, items[i]}, static_cast<int>(ngram_.size()));
      if (fresh) ngram_.push_back(kNone);
      node = child->second;
    }
    ngram_[node] = ngram;
  }
  // The child of `node` for `item`, or kNone.
  int Child(int node, const Item& item) const {
    auto it = children_.find({node, item});
    return it == children_.end() ? kNone : it->second;
  }
  // Which n-gram of the pool ends at `node`, or kNone.
  int NgramAt(int node) const { return ngram_[node]; }

 private:
  std::map<std::pair<int, Item>, int> children_;
  std::vector<int> ngram_ = {kNone};
};

struct NgramSpec {
  int64_t rows = 1, row_size = 1, columns = 0;
  int64_t min_length = 1, max_length = 1, max_skip = 0;
  bool count_once = false;      // IDF: present or not
  std::vector<int64_t> column;  // of each n-gram
  std::vector<float> weight;    // of each n-gram; empty: 1
};

// Adds the n-grams that begin at `first` and take every `stride`-th item.
template <typename Item, typename Source>
void CountFrom(const NgramSpec& plan, const NgramTree<Item>& tree, const Source* row, int64_t first,
               int64_t stride, int64_t min_length, std::vector<int64_t>* counts) {
  int node = 0;
  int64_t length = 1;
  for (int64_t at = first; length <= plan.max_length && at < plan.row_size;
       at += stride, ++length) {
    node = tree.Child(node, static_cast<Item>(row[at]));
    if (node == NgramTree<Item>::kNone) return;
    const int ngram = tree.NgramAt(node);
    if (length >= min_length && ngram != NgramTree<Item>::kNone) ++(*counts)[ngram];
  }
}

template <typename Item, typename Source>
void CountRow(const NgramSpec& plan, const NgramTree<Item>& tree, const Source* row,
              std::vector<int64_t>* counts) {
  int64_t min_length = plan.min_length;
  for (int64_t skip = 0; skip <= plan.max_skip && min_length <= plan.max_length; ++skip) {
    const int64_t stride = skip + 1;
    if (min_length > 1 && stride >= plan.row_size) return;  // not even two items fit
    for (int64_t first = 0; first < plan.row_size; ++first) {
      CountFrom(plan, tree, row, first, stride, min_length, counts);
    }
    if (min_length == 1) min_length = 2;  // single items do not change with the stride
  }
}

template <typename Item, typename Source>
void Vectorize(const NgramSpec& plan, const NgramTree<Item>& tree, KernelContext& context) {
  const Source* x = context.Input<Source>(0);
  float* y = context.Output<float>(0);
  std::fill_n(y, plan.rows * plan.columns, 0.0f);
  std::vector<int64_t> counts(plan.column.size());
  for (int64_t r = 0; r < plan.rows; ++r) {
    std::fill(counts.begin(), counts.end(), 0);
    CountRow(plan, tree, x + r * plan.row_size, &counts);
    for (size_t n = 0; n < counts.size(); ++n) {
      const float amount =
          plan.count_once ? static_cast<float>(counts[n] > 0) : static_cast<float>(counts[n]);
      y[r * plan.columns + plan.column[n]] +=
          amount * (plan.weight.empty() ? 1.0f : plan.weight[n]);
    }
  }
}

// The tree of the pool, whose n-grams of length L lie at [ngram_counts[L-1], ngram_counts[L]).
template <typename Item>
Result<NgramTree<Item>> BuildTree(const KernelInfo& info, const NgramSpec& plan,
                                  const std::vector<Item>& pool) {
  const auto starts = info.Attr<std::vector<int64_t>>("ngram_counts", {});
  const int64_t size = static_cast<int64_t>(pool.size());
  NgramTree<Item> tree;
  int ngram = 0;
  for (size_t level = 0; level < starts.size(); ++level) {
    const int64_t length = static_cast<int64_t>(level) + 1;
    const int64_t end = level + 1 < starts.size() ? starts[level + 1] : size;
    if (starts[level] < 0 || end < starts[level] || end > size ||
        (end - starts[level]) % length != 0) {
      return info.Invalid("ngram_counts does not divide the pool of " + std::to_string(size) +
                          " items");
    }
    for (int64_t first = starts[level]; first < end; first += length, ++ngram) {
      if (ngram >= static_cast<int64_t>(plan.column.size())) {
        return info.Invalid("ngram_indexes has fewer entries than the pool has n-grams");
      }
      tree.Add(pool.data() + first, length, ngram);
    }
  }
  return tree;
}

Status PlanShape(KernelInfo& info, NgramSpec* plan) {
  const Shape& shape = info.InputShape(0);
  if (shape.rank() > 2) return info.Invalid("takes rank 1 or 2, got " + shape.ToString());
  if (shape.rank() == 2) plan->rows = shape[0];
  if (shape.rank() >= 1) plan->row_size = shape[shape.rank() - 1];
  for (int64_t column : plan->column) {
    if (column < 0) return info.Invalid("ngram_indexes must not be negative");
    plan->columns = std::max(plan->columns, column + 1);
  }
  std::vector<int64_t> dims = {plan->columns};
  if (shape.rank() == 2) dims.insert(dims.begin(), plan->rows);
  auto out = CheckedShape(std::move(dims), DType::kFloat32);
  if (!out.ok()) return info.Invalid(out.status().message());
  info.SetOutput(0, DType::kFloat32, *out);
  return {};
}

Result<NgramSpec> PlanNgrams(KernelInfo& info) {
  NgramSpec plan;
  plan.min_length = info.Attr<int64_t>("min_gram_length", 1);
  plan.max_length = info.Attr<int64_t>("max_gram_length", 1);
  plan.max_skip = info.Attr<int64_t>("max_skip_count", 0);
  if (plan.min_length < 1 || plan.max_length < plan.min_length || plan.max_skip < 0) {
    return info.Invalid("needs 1 <= min_gram_length <= max_gram_length and max_skip_count >= 0");
  }
  plan.column = info.Attr<std::vector<int64_t>>("ngram_indexes", {});
  const std::string mode = info.Attr<std::string>("mode", "");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF")
    return info.Invalid("mode must be TF, IDF or TFIDF");
  plan.count_once = mode == "IDF";
  if (mode != "TF") plan.weight = info.Attr<std::vector<float>>("weights", {});
  if (!plan.weight.empty() && plan.weight.size() != plan.column.size()) {
    return info.Invalid("weights must have as many entries as ngram_indexes");
  }
  RETURN_IF_ERROR(PlanShape(info, &plan));
  return plan;
}

Status CreateTfIdfVectorizer(KernelInfo& info) {
  ASSIGN_OR_RETURN(NgramSpec plan, PlanNgrams(info));
  const DType dtype = info.InputDType(0);
  if (dtype == DType::kString) {
    const auto pool = info.Attr<std::vector<std::string>>("pool_strings", {});
    ASSIGN_OR_RETURN(auto tree, BuildTree(info, plan, pool));
    info.SetCompute([plan, tree = std::move(tree)](KernelContext& context) {
      Vectorize<std::string, std::string>(plan, tree, context);
    });
    return {};
  }
  const auto pool = info.Attr<std::vector<int64_t>>("pool_int64s", {});
  ASSIGN_OR_RETURN(auto tree, BuildTree(info, plan, pool));
  info.SetCompute([plan, dtype, tree = std::move(tree)](KernelContext& context) {
    if (dtype == DType::kInt32) Vectorize<int64_t, int32_t>(plan, tree, context);
    else Vectorize<int64_t, int64_t>(plan, tree, context);
  });
  return {};
}

}  // namespace

void RegisterNgram(KernelRegistry& registry) {
  registry.Add({.op_type = "TfIdfVectorizer",
                .types = {DType::kString, DType::kInt32, DType::kInt64},
                .create = CreateTfIdfVectorizer});
}

}  // namespace caesura
