// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/attention_fusion.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/graph/op_schema.h"
#include "core/ops/attention/attention_spec.h"
#include "graph_transforms/matching.h"
#include "graph_transforms/same_dims.h"
#include "graph_transforms/scalar_value.h"

namespace caesura {
namespace {

using Dims = std::vector<Dim>;

constexpr double kLowScore = -1e9;  // a score that low has no weight

const Dims* DimsOf(const Value* value) {
  return value->type().is_tensor() && value->type().shape ? &*value->type().shape : nullptr;
}

// The others' kernel writes the scores, as the nodes do.
bool HasTiledKernel(DType dtype) { return kFloatTypes.Contains(dtype) && dtype != DType::kFloat64; }

// The last two dims in each other's place.
template <typename T>
std::vector<T> Swapped(std::vector<T> items) {
  std::swap(items[items.size() - 2], items.back());
  return items;
}

class AttentionFuser {
 public:
  AttentionFuser(Graph& graph, const std::unordered_set<std::string>& parameters)
      : graph_(graph), parameters_(parameters) {}

  bool Run() {
    std::vector<Node*> products;
    for (const auto& node : graph_.nodes()) {
      whole_ = node.get();
      if (node->Is("MatMul") && SoftmaxBehind(node->input(0)) != nullptr)
        products.push_back(node.get());
    }
    const size_t before = graph_.nodes().size();
    const bool fused =
        std::count_if(products.begin(), products.end(), [&](Node* node) { return Fuse(node); }) > 0;
    bool grouped = false;
    for (const auto& node : graph_.nodes()) {
      whole_ = node.get();
      grouped |= node->Is("Attention") && TakeUnrepeated(*node);
    }
    return fused || grouped ||
           graph_.nodes().size() !=
               before;  // what was begun for a match that failed is left unread
  }

 private:
  struct Scores {
    Value *q = nullptr, *k = nullptr, *mask = nullptr;
    double scale = 1;
    std::optional<float> hidden;  // the score of keys that a bool mask hides
  };

  // The node of ONNX's `op_type` that makes the value and may be a part of the node that is looked
  // at, or null.
  const Node* Part(const Value* value, const char* op_type) const {
    const Node* node = MadeBy(value, op_type);
    return node != nullptr && MayBecomeOne(*whole_, *node) ? node : nullptr;
  }

  bool ReadBy(const Value* value, size_t readers) const {
    return value->uses().size() == readers && !graph_.IsGraphOutput(value);
  }

  // The Softmax that makes the probabilities `value`, which nothing else reads. Exporters put zeros
  // in the place of NaN, for queries that see nothing.
  const Node* SoftmaxBehind(const Value* value) const {
    if (!ReadBy(value, 1)) return nullptr;
    const Node* where = Part(value, "Where");
    if (where == nullptr) return Part(value, "Softmax");
    const Node* test = Part(where->input(0), "IsNaN");
    const Value* softmax = where->input(2);
    const bool guard = test != nullptr && test->input(0) == softmax &&
                       ScalarValue(where->input(1), parameters_) == 0.0;
    return guard && ReadBy(softmax, 2) ? Part(softmax, "Softmax") : nullptr;
  }

  // `value` without multiplications by numbers, which go into `scale`.
  Value* Unscaled(Value* value, double* scale) const {
    for (;;) {
      const Node* node = Part(value, "Mul");
      if (node == nullptr) node = Part(value, "Div");
      if (node == nullptr) return value;
      Value* next = nullptr;
      for (int side : {0, 1}) {
        if (side == 1 && node->Is("Div")) break;
        const auto factor = ScalarValue(node->input(1 - side), parameters_);
        if (!factor || *factor == 0 || !std::isfinite(*factor)) continue;
        next = node->input(side);
        *scale = node->Is("Div") ? *scale / *factor : *scale * *factor;
        break;
      }
      if (next == nullptr || DimsOf(next) == nullptr || DimsOf(value) == nullptr) return value;
      if (!SameDims(*DimsOf(next), *DimsOf(value))) return value;
      value = next;
    }
  }

  Value* Add(const char* op_type, std::vector<Value*> inputs, ValueType type,
             AttributeMap attributes = {}) {
    Value* output =
        graph_.AddValue(graph_.UniqueName(op_type + std::string("_out")), std::move(type));
    graph_.InsertBefore(*whole_, {op_type, std::move(inputs), {output}, std::move(attributes)});
    return output;
  }

  // K, of which `value` is the transpose; null where that does not show.
  Value* Untransposed(Value* value) {
    if (const Node* node = Part(value, "Transpose")) {
      Value* x = node->input(0);
      std::vector<int64_t> perm = node->Attr<std::vector<int64_t>>("perm", {});
      if (perm.size() != 4) return nullptr;
      perm = Swapped(std::move(perm));
      if (std::is_sorted(perm.begin(), perm.end())) return x;
      ValueType type = value->type();
      type.shape = Swapped(*type.shape);
      return Add("Transpose", {x}, std::move(type), {{"perm", perm}});
    }
    // Through three dims, as exporters write it.
    const Node* outer = Part(value, "Reshape");
    const Node* swap = outer == nullptr ? nullptr : Part(outer->input(0), "Transpose");
    const Node* inner = swap == nullptr ? nullptr : Part(swap->input(0), "Reshape");
    if (inner == nullptr ||
        swap->Attr<std::vector<int64_t>>("perm", {}) != std::vector<int64_t>{0, 2, 1})
      return nullptr;
    Value* x = inner->input(0);
    const Dims *whole = DimsOf(x), *flat = DimsOf(swap->input(0)), *dims = DimsOf(value);
    if (whole == nullptr || flat == nullptr || dims == nullptr) return nullptr;
    if (whole->size() < 4 || flat->size() != 3 || dims->size() != 4) return nullptr;
    if (!SameDim((*dims)[3], (*flat)[1]) || !SameDim((*dims)[2], (*flat)[2])) return nullptr;
    if (SameDims(Swapped(*whole), *dims)) return x;
    // Keys that were repeated for groups of heads, in five dims.
    std::vector<int64_t> sizes;
    for (const Dim& dim : Swapped(*dims)) sizes.push_back(dim.value);
    if (*std::min_element(sizes.begin(), sizes.end()) <= 0) return nullptr;
    Value* shape = graph_.AddInitializer(graph_.UniqueName("attention_keys"),
                                         Tensor::Of<int64_t>(Shape{4}, sizes));
    ValueType type = ValueType::Tensor(value->dtype());
    type.shape = Swapped(*dims);
    return Add("Reshape", {x, shape}, std::move(type));
  }

  // Keys or values before each head was repeated for its group; `value` itself where none was.
  Value* Unrepeated(Value* value) const {
    const Node* joined = Part(value, "Reshape");
    const Node* repeated = joined == nullptr ? nullptr : Part(joined->input(0), "Expand");
    const Node* opened = repeated == nullptr ? nullptr : Part(repeated->input(0), "Unsqueeze");
    if (repeated != nullptr && opened == nullptr) opened = Part(repeated->input(0), "Reshape");
    if (opened == nullptr) return value;
    Value* x = opened->input(0);
    const Dims *from = DimsOf(x), *one = DimsOf(opened->output(0)),
               *all = DimsOf(repeated->output(0));
    if (from == nullptr || one == nullptr || all == nullptr || from->size() != 4 ||
        one->size() != 5)
      return value;
    Dims rest = *all, before = *one;
    if (all->size() != 5 || (*one)[2].value != 1 || !(*all)[2].known() || !(*from)[1].known())
      return value;
    rest.erase(rest.begin() + 2);
    before.erase(before.begin() + 2);
    Dims grouped = *from;
    grouped[1].value *= (*all)[2].value;
    const Dims* whole = DimsOf(value);
    const bool same = whole != nullptr && SameDims(before, *from) && SameDims(rest, *from) &&
                      SameDims(grouped, *whole);
    return same ? x : value;
  }

  // By numbers that could have a gradient: not by shapes or conditions.
  bool DependsOnParameters(const Value* value) const {
    std::vector<const Value*> open = {value};
    std::unordered_set<const Value*> seen;
    while (!open.empty()) {
      const Value* next = open.back();
      open.pop_back();
      if (next == nullptr || !IsFloating(next->dtype()) || !seen.insert(next).second) continue;
      if (parameters_.count(next->name()) > 0) return true;
      if (next->producer() == nullptr) continue;
      for (const Value* input : next->producer()->inputs()) open.push_back(input);
    }
    return false;
  }

  // The mask of keys that are seen, for Where(hidden, low, scores), or the other way round.
  Value* SeenMask(const Node& where, int scores) {
    Value* condition = where.input(0);
    return scores == 1 ? condition : Add("Not", {condition}, condition->type());
  }

  bool IsProduct(Value* value) const {
    double scale = 1;
    return Part(Unscaled(value, &scale), "MatMul") != nullptr;
  }

  // Takes the mask off the scores; what is left.
  Value* Unmasked(Value* value, Scores* scores) {
    if (const Node* sum = Part(value, "Add")) {
      for (int side : {0, 1}) {
        const Dims *whole = DimsOf(value), *part = DimsOf(sum->input(side));
        if (whole == nullptr || part == nullptr || !SameDims(*whole, *part)) continue;
        if (!IsProduct(sum->input(side))) continue;
        scores->mask = sum->input(1 - side);
        return sum->input(side);
      }
      return nullptr;
    }
    if (const Node* where = Part(value, "Where")) {
      for (int side : {1, 2}) {
        const auto low = ScalarValue(where->input(3 - side), parameters_);
        if (!low || !(*low <= kLowScore) || !IsProduct(where->input(side))) continue;
        scores->mask = SeenMask(*where, side);
        scores->hidden = static_cast<float>(*low);
        return where->input(side);
      }
      return nullptr;
    }
    return value;
  }

  bool MatchScores(Value* value, Scores* scores) {
    value = Unmasked(value, scores);
    if (value == nullptr) return false;
    const Node* product = Part(Unscaled(value, &scores->scale), "MatMul");
    if (product == nullptr) return false;
    scores->q = Unscaled(product->input(0), &scores->scale);
    scores->k = Untransposed(Unscaled(product->input(1), &scores->scale));
    if (scores->k == nullptr) return false;
    if (scores->mask == nullptr) return true;
    // Attention takes a mask of fewer keys for one that hides the others.
    const Dims *mask = DimsOf(scores->mask), *k = DimsOf(scores->k);
    const bool fits = mask != nullptr && k != nullptr && k->size() == 4 && mask->size() >= 2 &&
                      mask->size() <= 4 && SameDim(mask->back(), (*k)[2]);
    return fits && !DependsOnParameters(scores->mask);
  }

  // True if Attention takes them so.
  static bool Fit(const Value* q, const Value* k, const Value* v) {
    const Dims *a = DimsOf(q), *b = DimsOf(k), *c = DimsOf(v);
    if (a == nullptr || b == nullptr || c == nullptr || a->size() != 4 || b->size() != 4 ||
        c->size() != 4)
      return false;
    const bool heads = (*a)[1].known() && (*b)[1].known() && (*b)[1].value > 0 &&
                       (*a)[1].value % (*b)[1].value == 0;
    return heads && SameDim((*a)[0], (*b)[0]) && SameDim((*a)[3], (*b)[3]) &&
           SameDims(Dims(b->begin(), b->end() - 1), Dims(c->begin(), c->end() - 1));
  }

  // An Attention node whose keys and values are both repeated for groups of heads takes them as
  // they were before.
  bool TakeUnrepeated(Node& attention) {
    Value *k = Unrepeated(attention.input(1)), *v = Unrepeated(attention.input(2));
    if (k == attention.input(1) || v == attention.input(2) || !Fit(attention.input(0), k, v))
      return false;
    const auto& inputs = attention.inputs();
    const auto& outputs = attention.outputs();
    const auto is_there = [](const Value* value) { return value != nullptr; };
    // A cache holds keys and values as they were repeated.
    if (inputs.size() > 4 && std::any_of(inputs.begin() + 4, inputs.end(), is_there)) return false;
    if (outputs.size() > 1 && std::any_of(outputs.begin() + 1, outputs.end(), is_there))
      return false;
    attention.SetInput(1, k);
    attention.SetInput(2, v);
    return true;
  }

  bool Fuse(Node* product) {
    whole_ = product;
    const Node* softmax = SoftmaxBehind(product->input(0));
    const int64_t axis = softmax->Attr<int64_t>("axis", -1);
    if ((axis != -1 && axis != 3) || !HasTiledKernel(product->output(0)->dtype())) return false;
    Scores scores;
    bool matches = MatchScores(softmax->input(0), &scores);
    Value *k = scores.k, *v = product->input(1);
    if (matches && Unrepeated(k) != k && Unrepeated(v) != v) {
      k = Unrepeated(k);
      v = Unrepeated(v);
    }
    matches = matches && Fit(scores.q, k, v);
    if (!matches) return false;
    std::vector<Value*> inputs = {scores.q, k, v};
    if (scores.mask != nullptr) inputs.push_back(scores.mask);
    const bool zeros = Part(product->input(0), "Where") != nullptr;
    AttributeMap attributes = {
        {"scale", static_cast<float>(scores.scale)},
        {kNanRows, static_cast<int64_t>(zeros ? NanRows::kZero : NanRows::kKept)}};
    if (scores.hidden) attributes[kHiddenScore] = *scores.hidden;
    graph_.InsertBefore(
        *product, {"Attention", std::move(inputs), graph_.ReleaseOutputs(product),
                   std::move(attributes), "", graph_.UniqueName(product->name() + ".attention")});
    graph_.RemoveNode(product);
    return true;
  }

  Graph& graph_;
  const std::unordered_set<std::string>& parameters_;
  const Node* whole_ = nullptr;  // that the parts are looked for of
};

class AttentionFusion : public Pass {
 public:
  explicit AttentionFusion(std::unordered_set<std::string> parameters)
      : parameters_(std::move(parameters)) {}
  const char* name() const override { return "attention_fusion"; }
  Result<bool> Run(Model& model) override {
    return AttentionFuser(*model.graph, parameters_).Run();
  }

 private:
  const std::unordered_set<std::string> parameters_;
};

}  // namespace

std::shared_ptr<Pass> MakeAttentionFusionPass(std::unordered_set<std::string> parameters) {
  return std::make_shared<AttentionFusion>(std::move(parameters));
}

}  // namespace caesura
