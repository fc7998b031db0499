// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/captured_call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>
#include <optional>

namespace caesura::torch {
namespace {

using ::torch::autograd::SavedVariable;
using ::torch::autograd::variable_list;

// No derivatives are recorded in it, and nothing is cast: the graphs hold the casts.
struct PlainScope {
  at::AutoGradMode gradients{false};
  c10::impl::ExcludeDispatchKeyGuard casts{c10::autocast_dispatch_keyset};
};

// True if it stands for a batch of gradients that torch.vmap takes at once (is_grads_batched).
bool IsBatched(const at::Tensor& gradient) {
  static constexpr c10::DispatchKeySet kBatched{c10::DispatchKey::Batched,
                                                c10::DispatchKey::FuncTorchBatched};
  return gradient.defined() && gradient.key_set().has_any(kBatched);
}

// Throws where a number is out of its range, or lists that belong together differ in length:
// layouts come from files, too.
void CheckLayout(const CallLayout& l, int64_t values, const CapturedGraph* backward) {
  const auto below = [](const std::vector<int64_t>& numbers, int64_t end, int64_t begin = 0) {
    return std::all_of(numbers.begin(), numbers.end(),
                       [&](int64_t i) { return begin <= i && i < end; });
  };
  const int64_t backward_values = backward != nullptr ? backward->value_count() : 0;
  bool fits = l.mutated.size() == l.new_values.size() && below(l.mutated, l.tensors.size()) &&
              below(l.differentiable, l.outputs.size());
  for (const auto* n : {&l.tensors, &l.sizes, &l.outputs, &l.new_values, &l.saved, &l.saved_sizes})
    fits = fits && below(*n, values);
  for (const auto* n : {&l.backward_saved, &l.backward_saved_sizes, &l.backward_gradients})
    fits = fits && below(*n, backward_values);
  if (backward != nullptr) {
    fits = fits && l.backward_saved.size() == l.saved.size() &&
           l.backward_saved_sizes.size() == l.saved_sizes.size() &&
           l.backward_gradients.size() == l.differentiable.size() &&
           l.backward_results.size() == l.tensors.size() &&
           below(l.backward_results, backward_values, -1) && below(l.reached, 2) &&
           l.reached.size() == l.tensors.size() * l.differentiable.size() &&
           l.parts.size() == l.tensors.size() && below(l.parts, backward->cut_count() + 1);
  }
  TORCH_CHECK(fits, "a call's layout does not fit its graphs");
}

}  // namespace

// A backward that has begun, with what is still to be handed out.
struct CapturedCall::BackwardRun {
  CapturedGraph::Progress progress;
  std::vector<at::Tensor> again;  // the gradients, where they have derivatives of their own
  std::vector<bool> reached;      // of each input, whether it has a gradient in this pass

  static void Delete(void* run) { delete static_cast<BackwardRun*>(run); }

  // The run goes from node to node as the memory of a tensor: it ends with the pass, however that
  // ends, and passes over one graph at the same time have a run each.
  static at::Tensor Pack(std::unique_ptr<BackwardRun> run) {
    void* const data = run.get();
    c10::Storage storage(c10::Storage::use_byte_size_t(), 0,
                         c10::DataPtr(data, run.release(), &Delete, at::kCPU), nullptr, false);
    return at::detail::make_tensor<at::TensorImpl>(std::move(storage),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   caffe2::TypeMeta::Make<float>());
  }
  // Null where the tensor holds no run, or another node has taken it.
  static std::unique_ptr<BackwardRun> Unpack(const at::Tensor& token) {
    if (!token.defined() || !token.has_storage()) return nullptr;
    const c10::Storage& storage = token.storage();
    if (storage.data_ptr().get_deleter() != &Delete) return nullptr;
    c10::DataPtr none(nullptr, at::kCPU);
    c10::DataPtr held = storage.unsafeGetStorageImpl()->set_data_ptr(std::move(none));
    return std::unique_ptr<BackwardRun>(static_cast<BackwardRun*>(held.release_context()));
  }
};

// The node for a later part of a backward.
class CapturedCall::BackwardPart : public ::torch::autograd::Node {
 public:
  BackwardPart(c10::intrusive_ptr<CapturedCall> call, size_t part)
      : call_(std::move(call)), part_(part) {}

  variable_list apply(variable_list&& inputs) override {
    if (!inputs.at(0).defined()) return variable_list(num_outputs());
    std::unique_ptr<BackwardRun> run = BackwardRun::Unpack(inputs[0]);
    TORCH_CHECK(run, "part ", part_, " of a backward got another gradient than part ", part_ - 1,
                " has returned; a hook may have changed it");
    if (run->again.empty()) {
      PlainScope scope;
      call_->backward_->RunToCut(run->progress);
    }
    return call_->HandOut(*this, part_, std::move(run));
  }

  std::string name() const override { return "CaesuraBackward" + std::to_string(part_); }

 private:
  const c10::intrusive_ptr<CapturedCall> call_;
  const size_t part_;
};

void CapturedCall::Connect(::torch::autograd::Node& node, at::TensorList tensors) {
  static const at::Tensor* const kToken = new at::Tensor(BackwardRun::Pack(nullptr));
  c10::intrusive_ptr<BackwardPart> next;
  for (size_t part = members_.size(); part-- > 0;) {
    ::torch::autograd::edge_list edges;
    for (int64_t i : members_[part]) {
      const bool differs = tensors[i].requires_grad();
      edges.push_back(differs ? ::torch::autograd::impl::gradient_edge(tensors[i])
                              : ::torch::autograd::Edge());
    }
    if (next) edges.emplace_back(std::move(next), 0);
    if (part == 0) return node.set_next_edges(std::move(edges));
    next = c10::make_intrusive<BackwardPart>(c10::intrusive_ptr<CapturedCall>::reclaim_copy(this),
                                             part);
    next->set_next_edges(std::move(edges));
    next->add_input_metadata(*kToken);
  }
}

std::vector<at::Tensor> CapturedCall::HandOut(const ::torch::autograd::Node& node, size_t part,
                                              std::unique_ptr<BackwardRun> run) const {
  const std::vector<int64_t>& members = members_[part];
  variable_list dxs(node.num_outputs());
  for (size_t k = 0; k < members.size(); ++k) {
    const int64_t i = members[k];
    if (!run->reached[i] || !node.task_should_compute_output(k)) continue;
    if (!run->again.empty()) {
      dxs[k] = run->again[i];
      continue;
    }
    const c10::IValue& value = run->progress.values[layout_.backward_results[i]];
    if (!value.isNone()) dxs[k] = value.toTensor();
  }
  if (part + 1 == members_.size() || !node.task_should_compute_output(members.size())) return dxs;
  if (run->again.empty()) {
    for (int64_t i : members) run->progress.values[layout_.backward_results[i]] = {};
    backward_->Watch(run->progress);
  }
  dxs.back() = BackwardRun::Pack(std::move(run));
  return dxs;
}

class CapturedCall::Backward : public ::torch::autograd::Node {
 public:
  explicit Backward(c10::intrusive_ptr<CapturedCall> call) : call_(std::move(call)) {}

  // Keeps the values that the backward reads, and for derivatives of derivatives the inputs.
  // `outputs` have this node as their origin.
  void Save(at::TensorList tensors, c10::IntArrayRef sizes, const CapturedGraph::Values& values,
            const std::vector<at::Tensor>& outputs, std::optional<at::Tensor> random) {
    const CallLayout& layout = call_->layout_;
    std::vector<bool> written(tensors.size());
    for (int64_t i : layout.mutated) written[i] = true;
    inputs_.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& x = tensors[i];  // no derivative reads a written one: later writes are fine
      const bool cut = layout.backward_results[i] < 0 && x.requires_grad();
      inputs_.emplace_back(written[i] ? x.variable_data() : cut ? x.detach() : x, false);
    }
    sizes_ = sizes.vec();
    random_ = std::move(random);
    for (size_t i = 0; i < layout.saved.size(); ++i) {
      if (call_->saved_inputs_[i] >= 0) continue;
      size_t k = 0;
      while (k < layout.outputs.size() && layout.outputs[k] != layout.saved[i]) ++k;
      const bool is_output = k < outputs.size();
      const at::Tensor tensor = is_output ? outputs[k] : values[layout.saved[i]].toTensor();
      saved_.emplace_back(tensor, is_output && tensor.grad_fn().get() == this);
    }
    for (int64_t i : layout.saved_sizes) saved_sizes_.push_back(values[i].toInt());
  }

  variable_list apply(variable_list&& dys) override {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!released_, ::torch::autograd::ERR_BACKWARD_TWICE);
    const CallLayout& layout = call_->layout_;
    const size_t own = layout.differentiable.size();
    auto run = std::make_unique<BackwardRun>();
    run->reached = Reached(dys);
    if (!IsWanted(run->reached)) return variable_list(num_outputs());
    if (at::GradMode::is_enabled() || std::any_of(dys.begin(), dys.end(), IsBatched) ||
        std::any_of(dys.begin() + own, dys.end(), [](const auto& dy) { return dy.defined(); })) {
      run->again = Again(dys, run->reached);
      if (!::torch::autograd::get_current_graph_task_keep_graph()) Release();
      return call_->HandOut(*this, 0, std::move(run));
    }
    CapturedGraph::Values& values = run->progress.values;
    values = call_->backward_->Begin();
    auto saved = saved_.begin();
    for (size_t i = 0; i < layout.saved.size(); ++i) {
      const int64_t input = call_->saved_inputs_[i];
      values[layout.backward_saved[i]] = (input >= 0 ? inputs_[input] : *saved++).unpack(getptr());
    }
    for (size_t i = 0; i < saved_sizes_.size(); ++i)
      values[layout.backward_saved_sizes[i]] = saved_sizes_[i];
    for (size_t i = 0; i < own; ++i) {
      values[layout.backward_gradients[i]] =
          dys[i].defined() ? std::move(dys[i]) : input_metadata(i).zeros_like();
    }
    if (!::torch::autograd::get_current_graph_task_keep_graph())
      Release();  // the graph frees what it has read
    PlainScope scope;
    call_->backward_->RunToCut(run->progress);
    return call_->HandOut(*this, 0, std::move(run));
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    Release();
  }

  std::string name() const override { return "CaesuraBackward"; }

 private:
  // For each input, true if it has a gradient. None where nothing comes, as in PyTorch: an
  // optimizer would take zeros for a gradient.
  std::vector<bool> Reached(const variable_list& dys) const {
    const CallLayout& layout = call_->layout_;
    const size_t own = layout.differentiable.size();
    std::vector<bool> reached(layout.backward_results.size());
    for (size_t i = 0; i < reached.size(); ++i) {
      if (layout.backward_results[i] < 0) continue;
      for (size_t k = 0; k < own && !reached[i]; ++k) {
        reached[i] = dys[k].defined() && layout.reached[i * own + k] != 0;
      }
      for (const Joined& joined : joined_) {
        for (size_t k = 0; k < joined.slots.size() && !reached[i]; ++k) {
          reached[i] =
              IsGiven(dys, joined.slots[k]) && joined.reached[i * joined.slots.size() + k] != 0;
        }
      }
    }
    return reached;
  }

  // True if somebody waits for one of these gradients, perhaps of a later part.
  bool IsWanted(const std::vector<bool>& reached) const {
    if (std::find(reached.begin(), reached.end(), true) == reached.end()) return false;
    const std::vector<int64_t>& members = call_->members_[0];
    for (size_t k = 0; k < num_outputs(); ++k) {
      if ((k == members.size() || reached[members[k]]) && task_should_compute_output(k))
        return true;
    }
    return false;
  }

  void Release() {
    released_ = true;
    saved_.clear();
    inputs_.clear();
    for (Joined& joined : joined_) joined.given.clear();
  }

  // Gradients that were made differentiable: further results of the forward, so to speak, whose
  // gradients come in here, too. One pass over the forward then serves all of them.
  struct Joined {
    int64_t number;                    // that caesura::differentiate knows it by
    std::vector<SavedVariable> given;  // the gradients that it was made from, and what it has kept
    std::vector<size_t> reads;     // the earlier ones, by place, whose gradients may be among those
    std::vector<int64_t> slots;    // of each gradient: the node's input; -1: it is constant
    std::vector<int64_t> reached;  // a row for each input: of each gradient, 1 if it depends on it
  };

  static bool IsGiven(const variable_list& dys, int64_t slot) {
    return slot >= 0 && slot < static_cast<int64_t>(dys.size()) && dys[slot].defined();
  }

  // For each of joined_, true if it has a gradient, or another one is made from it that has.
  std::vector<bool> Needed(const variable_list& dys) const {
    std::vector<bool> needed(joined_.size());
    for (size_t j = joined_.size(); j-- > 0;) {
      for (int64_t slot : joined_[j].slots) needed[j] = needed[j] || IsGiven(dys, slot);
      for (size_t i : joined_[j].reads) needed[i] = needed[i] || needed[j];
    }
    return needed;
  }

  // The gradients of the inputs that have one and for which somebody waits, perhaps at a later
  // part. With autograd on they have derivatives of their own.
  variable_list Again(const variable_list& dys, const std::vector<bool>& reached) {
    DerivativeRequest request;
    request.sizes = sizes_;
    request.random = random_;
    for (const SavedVariable& input : inputs_) request.tensors.push_back(input.unpack());
    for (const SavedVariable& value : saved_) request.saved.push_back(value.unpack(getptr()));
    std::vector<int64_t>&wanted = request.wanted, &before = request.before;
    const ::torch::autograd::Node* node = this;
    for (const std::vector<int64_t>& members : call_->members_) {
      for (size_t k = 0; k < members.size(); ++k) {
        if (reached[members[k]] && node->task_should_compute_output(k))
          wanted.push_back(members[k]);
      }
      if (node->num_outputs() > members.size())
        node = node->next_edge(members.size()).function.get();
    }
    std::sort(wanted.begin(), wanted.end());
    const size_t own = call_->layout_.differentiable.size();
    variable_list& given = request.gradients;
    given.assign(dys.begin(), dys.begin() + own);
    const std::vector<bool> needed = Needed(dys);
    std::vector<size_t> reads;
    for (size_t j = 0; j < joined_.size(); ++j) {
      if (!needed[j]) continue;
      before.push_back(joined_[j].number);
      before.push_back(static_cast<int64_t>(joined_[j].reads.size()));
      for (size_t i : joined_[j].reads)
        before.push_back(std::find(reads.begin(), reads.end(), i) - reads.begin());
      reads.push_back(j);
      for (const SavedVariable& tensor : joined_[j].given)
        request.before_given.push_back(tensor.unpack());
      for (int64_t slot : joined_[j].slots)
        given.push_back(IsGiven(dys, slot) ? dys[slot] : at::Tensor());
    }
    request.joins = at::GradMode::is_enabled() && joined_.size() < kMostJoined &&
                    input_metadata_.size() + wanted.size() <= own + kMostSlots;
    Derivative found = call_->derivatives_.Compute(call_->key_, request);
    if (!found.facts.empty()) Join(found, given, std::move(reads));
    variable_list dxs(inputs_.size());
    for (size_t k = 0; k < wanted.size(); ++k) dxs[wanted[k]] = found.gradients.at(k);
    return dxs;
  }

  // Makes the gradients results of this node. facts: a number; of each gradient whether it is
  // differentiable; the rows of Joined::reached.
  void Join(const Derivative& found, const variable_list& dys, std::vector<size_t> reads) {
    const size_t count = found.gradients.size();
    TORCH_CHECK(found.facts.size() == 1 + count + count * inputs_.size(), "facts of a derivative");
    Joined joined{found.facts[0], {}, std::move(reads), {}, {}};
    for (const at::Tensor& dy : dys)
      if (dy.defined()) joined.given.emplace_back(dy, /*is_output=*/false);
    for (const at::Tensor& kept : found.kept)  // without its origin, which would be this node
      joined.given.emplace_back(kept.detach(), /*is_output=*/false);
    for (size_t k = 0; k < count; ++k) {
      joined.slots.push_back(found.facts[1 + k] != 0 ? static_cast<int64_t>(num_inputs()) : -1);
      if (joined.slots.back() < 0) continue;
      at::Tensor gradient = found.gradients[k];
      ::torch::autograd::impl::set_gradient_edge(
          gradient, {getptr(), static_cast<uint32_t>(add_input_metadata(gradient))});
    }
    joined.reached.assign(found.facts.begin() + 1 + count, found.facts.end());
    joined_.push_back(std::move(joined));
  }

  static constexpr size_t kMostJoined = 16, kMostSlots = 256;
  const c10::intrusive_ptr<CapturedCall> call_;
  std::mutex mutex_;
  bool released_ = false;
  std::vector<SavedVariable> inputs_, saved_;  // saved_: that are no inputs
  std::vector<Joined> joined_;
  std::vector<int64_t> sizes_, saved_sizes_;
  std::optional<at::Tensor> random_;
};

CapturedCall::CapturedCall(c10::intrusive_ptr<CapturedGraph> forward,
                           c10::intrusive_ptr<CapturedGraph> backward,
                           std::vector<std::vector<int64_t>> layout, bool random, int64_t key,
                           std::shared_ptr<void> keep_alive)
    : forward_(std::move(forward)),
      backward_(std::move(backward)),
      random_(random),
      key_(key),
      keep_alive_(std::move(keep_alive)) {
  CallLayout& l = layout_;
  std::vector<int64_t>* const lists[] = {&l.tensors,
                                         &l.sizes,
                                         &l.outputs,
                                         &l.differentiable,
                                         &l.mutated,
                                         &l.new_values,
                                         &l.saved,
                                         &l.saved_sizes,
                                         &l.backward_saved,
                                         &l.backward_saved_sizes,
                                         &l.backward_gradients,
                                         &l.backward_results,
                                         &l.reached,
                                         &l.parts};
  TORCH_CHECK(layout.size() == std::size(lists), "a call's layout has ", std::size(lists),
              " lists");
  for (size_t i = 0; i < layout.size(); ++i) *lists[i] = std::move(layout[i]);
  CheckLayout(l, forward_->value_count(), backward_.get());
  if (backward_) members_.resize(backward_->cut_count() + 1);
  for (size_t i = 0; backward_ && i < l.backward_results.size(); ++i) {
    if (l.backward_results[i] >= 0) members_[l.parts[i]].push_back(static_cast<int64_t>(i));
  }
  for (int64_t i : l.saved) {
    const auto found = std::find(l.tensors.begin(), l.tensors.end(), i);
    saved_inputs_.push_back(found == l.tensors.end() ? -1 : found - l.tensors.begin());
  }
  operator_ = std::make_unique<::torch::Library>(::torch::Library::FRAGMENT, "caesura",
                                                 std::nullopt, __FILE__, __LINE__);
  const std::string schema =
      "call_" + std::to_string(key) + "(Tensor[] tensors, int[] sizes) -> Tensor[]";
  operator_->def(schema.c_str(), [this](at::TensorList tensors, c10::IntArrayRef sizes) {
    return Run(tensors, sizes);
  });
  const std::string keeping = "keeping_call_" + std::to_string(key) +
                              "(Tensor[] tensors, int[] sizes) -> (Tensor[], Tensor[])";
  operator_->def(keeping.c_str(), [this](at::TensorList tensors, c10::IntArrayRef sizes) {
    return RunAndKeep(tensors, sizes);
  });
}

std::vector<at::Tensor> CapturedCall::Compute(at::TensorList tensors, c10::IntArrayRef sizes,
                                              CapturedGraph::Values& values) {
  TORCH_CHECK(tensors.size() == layout_.tensors.size() && sizes.size() == layout_.sizes.size(),
              "the graph was captured for other arguments");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(!::torch::autograd::isFwGradDefined(tensor),
                                "caesura: a captured graph has no forward-mode derivatives");
  }
  values = forward_->Begin();
  for (size_t i = 0; i < tensors.size(); ++i) values[layout_.tensors[i]] = tensors[i];
  for (size_t i = 0; i < sizes.size(); ++i) values[layout_.sizes[i]] = sizes[i];
  std::vector<at::Tensor> outputs;
  PlainScope scope;
  forward_->Run(values);
  for (size_t i = 0; i < layout_.mutated.size(); ++i) {
    tensors[layout_.mutated[i]].copy_(values[layout_.new_values[i]].toTensor());
  }
  for (int64_t i : layout_.outputs) {
    at::Tensor out = values[i].toTensor();
    if (out.is_view()) {  // of what nobody else sees: a tensor of its own, whose changes the
                          // saved view still notices
      out = at::Tensor(out.unsafeGetTensorImpl()->shallow_copy_and_detach(
          out.unsafeGetTensorImpl()->version_counter(),
          /*allow_tensor_metadata_change=*/true));
    }
    outputs.push_back(std::move(out));
  }
  return outputs;
}

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> CapturedCall::RunAndKeep(
    at::TensorList tensors, c10::IntArrayRef sizes) {
  CapturedGraph::Values values;
  std::vector<at::Tensor> outputs = Compute(tensors, sizes, values), kept;
  for (size_t i = 0; i < layout_.saved.size(); ++i) {
    if (saved_inputs_[i] < 0) kept.push_back(values[layout_.saved[i]].toTensor());
  }
  return {std::move(outputs), std::move(kept)};
}

std::vector<at::Tensor> CapturedCall::Run(at::TensorList tensors, c10::IntArrayRef sizes) {
  c10::intrusive_ptr<Backward> node;
  if (backward_ && at::GradMode::is_enabled()) {
    node = c10::make_intrusive<Backward>(c10::intrusive_ptr<CapturedCall>::reclaim_copy(this));
  }
  std::optional<at::Tensor> random;
  if (node && random_) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    random = generator.get_state();
  }
  CapturedGraph::Values values;
  std::vector<at::Tensor> outputs = Compute(tensors, sizes, values);
  if (node) {
    Connect(*node, tensors);
    for (int64_t i : layout_.differentiable) ::torch::autograd::set_history(outputs[i], node);
    node->Save(tensors, sizes, values, outputs, std::move(random));
  }
  return outputs;
}

}  // namespace caesura::torch
