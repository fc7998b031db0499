// SPDX-License-Identifier: Apache-2.0
// AtenCall: what an ATen node (aten_op.h) asks of PyTorch's dispatcher, with everything looked up
// and converted that is known before the run. Its functions throw what PyTorch throws; the kernels
// of aten_op.cc turn that into a Status.
#ifndef CAESURA_TORCH_BRIDGE_ATEN_CALL_H_
#define CAESURA_TORCH_BRIDGE_ATEN_CALL_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace caesura::torch {

// PyTorch's thread-local state as a fresh thread has it, whatever the caller's modes are (no_grad,
// inference_mode, autocast, a dispatch mode, a kernel further up that has excluded keys): plain
// kernels, or with derivatives recorded.
class DispatchScope {
 public:
  explicit DispatchScope(bool with_gradients);
  ~DispatchScope();

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

// `item`, a value or a number as Python has them, as an argument of this type; throws where it is
// none.
c10::IValue ItemArgument(const c10::TypePtr& type, const c10::IValue& item);
// A list of such items as an argument of this type.
c10::IValue ListArgument(const c10::TypePtr& type, const std::vector<c10::IValue>& items);

class AtenCall {
 public:
  // The operator and its arguments, from the node's attributes and inputs. `first_input`: the
  // node's input that is the first one of the call. `known[i]`: the value of the call's input i
  // where the plan knows it, else undefined. `device`: what an argument that names a device is
  // where the node names none, and where random numbers are drawn.
  static Result<AtenCall> Create(const Node& node, int first_input,
                                 const std::vector<at::Tensor>& known, c10::Device device);

  const c10::OperatorHandle& op() const { return op_; }
  // True if every argument that is no tensor is known: then the results' sizes follow from those of
  // the tensors.
  bool numbers_known() const;
  // True if input `i` of the node goes to an argument that is no tensor, a size or a flag: to be
  // read on the host. False where the node is wrong.
  static bool TakesNumber(const Node& node, int first_input, int i);
  // One entry an argument of the schema. `inputs` are the call's, undefined where absent; `seed` is
  // for a generator.
  std::vector<c10::IValue> Arguments(const std::vector<at::Tensor>& inputs, uint64_t seed) const;
  // The results of a call on tensors without bytes; throws where the operator needs values, or
  // knows no sizes.
  std::vector<at::Tensor> MetaResults(const std::vector<at::Tensor>& meta_inputs) const;
  // The overload that writes `count` results into tensors of the caller's, after the same
  // arguments, where it can be relied on.
  std::optional<c10::OperatorHandle> OutVariant(size_t count) const;

  // Calls `op` on the stack and spreads what it leaves there: lists into their elements, numbers
  // into scalars, None into undefined tensors.
  static std::vector<at::Tensor> Call(const c10::OperatorHandle& op,
                                      std::vector<c10::IValue> stack);

 private:
  struct Argument {
    c10::TypePtr type;
    std::vector<int>
        inputs;  // of the call: one, or the elements of a list; -1: None in a list of optionals
    c10::IValue value;  // where there are no inputs
  };
  AtenCall(c10::OperatorHandle op, c10::Device device) : op_(std::move(op)), device_(device) {}
  at::Generator Generator(uint64_t seed) const;
  void AddInputs(const Node& node, int first_input, const std::vector<at::Tensor>& known);
  void AddAttributes(const Node& node);

  c10::OperatorHandle op_;
  c10::Device device_;
  std::vector<Argument> arguments_;
};

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_ATEN_CALL_H_
