// SPDX-License-Identifier: Apache-2.0
// CapturedDerivatives: the gradients of a captured call as captured calls in turn.
//
// With derivatives of derivatives asked for (create_graph), a call's node asks the operator
//   caesura::differentiate(int key, Tensor[] tensors, int[] sizes, Tensor?[] gradients, Tensor?
//   random, Tensor[] saved, int[] wanted, int[] before, Tensor[] before_given, bool joins)
//   -> (Tensor[], Tensor[], int[], int)
// which the Python package implements: the gradients of `tensors` at the positions `wanted`, and
// the key of the captured call that has computed them, which the node then calls itself where all
// else is alike; -1: it asks again.
// `saved` are the values that the forward has saved, those left out that are inputs. The gradients
// have nodes of their own, or, where `joins` allows it, become further results of this node: then
// the operator also gives what is to be kept for that, and numbers that describe it
// (CapturedCall::Backward::Join). Later calls take what has joined before, in order: `before` has
// for each its number, how many of those before it it was made from, and their places.
#ifndef CAESURA_TORCH_BRIDGE_CAPTURED_DERIVATIVES_H_
#define CAESURA_TORCH_BRIDGE_CAPTURED_DERIVATIVES_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <deque>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

namespace caesura::torch {

// The arguments of caesura::differentiate.
struct DerivativeRequest {
  std::vector<at::Tensor> tensors;
  c10::IntArrayRef sizes;
  std::vector<at::Tensor> gradients;
  std::optional<at::Tensor> random;
  std::vector<at::Tensor> saved;
  std::vector<int64_t> wanted, before;
  std::vector<at::Tensor> before_given;
  bool joins = false;
};

// The results of caesura::differentiate.
struct Derivative {
  std::vector<at::Tensor> gradients, kept;
  std::vector<int64_t> facts;
};

// Thread safety: any thread.
class CapturedDerivatives {
 public:
  // The gradients, by a captured call that is known or by caesura::differentiate. key: the call's
  // that they are of. Throws what these throw.
  Derivative Compute(int64_t key, const DerivativeRequest& request);

 private:
  using Operator = std::vector<at::Tensor>(at::TensorList, c10::IntArrayRef);
  using KeepingOperator = std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>>(
      at::TensorList, c10::IntArrayRef);
  // A captured call of gradients, which lives as long as the call that they are of.
  struct Known {
    std::vector<int64_t> kind;  // what was asked for, and the sizes of what was given
    c10::OperatorHandle op;
    std::vector<int64_t> facts;  // of caesura::differentiate; none: nothing joins
  };
  static constexpr size_t kMost = 16;

  const Known* Find(const std::vector<int64_t>& kind);  // null: unknown
  void Remember(std::vector<int64_t> kind, int64_t key, std::vector<int64_t> facts);

  std::mutex mutex_;
  std::deque<Known> known_;  // whose elements stay where they are
};

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_CAPTURED_DERIVATIVES_H_
