// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/captured_derivatives.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace caesura::torch {
namespace {

// True if it holds numbers of its own, which our calls read: it is no wrapper and no subclass.
bool IsPlain(const at::Tensor& tensor) {
  static constexpr c10::DispatchKeySet kWrapped{
      c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize,
      c10::DispatchKey::Python};
  return !tensor.key_set().has_any(kWrapped);
}

// The tensor arguments of a captured call of gradients, in its order.
std::vector<at::Tensor> ArgumentsOf(const DerivativeRequest& request) {
  std::vector<at::Tensor> all = request.tensors;
  all.insert(all.end(), request.before_given.begin(), request.before_given.end());
  std::copy_if(request.gradients.begin(), request.gradients.end(), std::back_inserter(all),
               [](const at::Tensor& g) { return g.defined(); });
  all.insert(all.end(), request.saved.begin(), request.saved.end());
  return all;
}

// Requests of one kind have the same captured call.
std::vector<int64_t> KindOf(const DerivativeRequest& request,
                            const std::vector<at::Tensor>& arguments) {
  std::vector<int64_t> kind = {at::GradMode::is_enabled(), request.joins};
  const auto add = [&kind](c10::IntArrayRef numbers) {
    kind.push_back(static_cast<int64_t>(numbers.size()));
    kind.insert(kind.end(), numbers.begin(), numbers.end());
  };
  add(request.wanted);
  add(request.before);
  add(request.sizes);
  for (const at::Tensor& g : request.gradients)
    kind.push_back(g.defined() ? int64_t{g.requires_grad()} : -1);
  for (const at::Tensor& argument : arguments) add(argument.sizes());
  return kind;
}

}  // namespace

Derivative CapturedDerivatives::Compute(int64_t key, const DerivativeRequest& request) {
  const std::vector<at::Tensor> arguments = ArgumentsOf(request);
  std::vector<int64_t> kind;
  if (std::all_of(arguments.begin(), arguments.end(), IsPlain)) {
    kind = KindOf(request, arguments);
    if (const Known* known = Find(kind)) {
      if (known->facts.empty())
        return {known->op.typed<Operator>().call(arguments, request.sizes), {}, {}};
      auto [gradients, kept] = known->op.typed<KeepingOperator>().call(arguments, request.sizes);
      return {std::move(gradients), std::move(kept), known->facts};
    }
  }
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("caesura::differentiate", "");
  c10::List<std::optional<at::Tensor>> given;
  for (const at::Tensor& g : request.gradients)
    given.push_back(g.defined() ? std::optional(g) : std::nullopt);
  std::vector<c10::IValue> stack = {key,
                                    request.tensors,
                                    request.sizes,
                                    given,
                                    request.random,
                                    request.saved,
                                    request.wanted,
                                    request.before,
                                    request.before_given,
                                    request.joins};
  op.callBoxed(&stack);
  Derivative found{stack.at(0).toTensorVector(), stack.at(1).toTensorVector(),
                   stack.at(2).toIntVector()};
  const int64_t found_key = stack.at(3).toInt();
  if (found_key >= 0 && !kind.empty()) Remember(std::move(kind), found_key, found.facts);
  return found;
}

const CapturedDerivatives::Known* CapturedDerivatives::Find(const std::vector<int64_t>& kind) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(known_.begin(), known_.end(), [&](const Known& d) { return d.kind == kind; });
  return found == known_.end() ? nullptr : &*found;
}

void CapturedDerivatives::Remember(std::vector<int64_t> kind, int64_t key,
                                   std::vector<int64_t> facts) {
  const std::string name =
      (facts.empty() ? "caesura::call_" : "caesura::keeping_call_") + std::to_string(key);
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  std::lock_guard<std::mutex> lock(mutex_);
  if (known_.size() == kMost) return;  // others ask again
  known_.push_back({std::move(kind), std::move(op), std::move(facts)});
}

}  // namespace caesura::torch
