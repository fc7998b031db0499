// SPDX-License-Identifier: Apache-2.0
// Watch: objects of Python's that something was derived from, and whether they still are as they
// were. Signature: the arguments of a call, and whether another call's are the same but for the
// elements of tensors.
#ifndef CAESURA_TORCH_BRIDGE_PYTHON_WATCH_H_
#define CAESURA_TORCH_BRIDGE_PYTHON_WATCH_H_

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_bridge/python/bindings.h"

namespace caesura::python {

// Dtype, device, shape, strides and place of a torch.Tensor with memory.
struct TensorFacts {
  const void* bytes = nullptr;
  std::vector<int64_t> dims;  // sizes, then strides
  uint64_t type = 0;          // the fields of its DLDataType and DLDevice
  bool requires_grad = false;

  bool operator==(const TensorFacts&) const = default;
};

// All objects are held. Not for use without the GIL.
class Watch {
 public:
  // The state that must stay: dict[key], that a dict lacks a key, all that a dict holds and its
  // order, the length of a dict, list or set, list[i] for all i, what a closure's cell holds, an
  // object's class, a class with its bases, a function's code and defaults, what a call returns.
  void Item(nanobind::dict dict, nanobind::object key, nanobind::object value);
  void Lacks(nanobind::dict dict, nanobind::object key);
  void Whole(nanobind::dict dict);
  void Length(nanobind::object container);
  void Elements(nanobind::list list);
  void Cell(nanobind::object cell);
  void ClassOf(nanobind::object object);
  void Class(nanobind::object type);
  void Function(nanobind::object function);
  void Returns(nanobind::object call, nanobind::object result);
  // A torch.Tensor's dtype, device, shape, strides and whether it requires a gradient; with `bytes`
  // where its elements are, too.
  void TorchTensor(nanobind::object tensor, bool bytes);
  // Counts PyTorch's writes to a torch.Tensor, its version, among those of Writes.
  void Version(nanobind::object tensor);
  // A torch.Tensor is to have no hooks of its gradient. Looked at where a hook of anything was
  // registered meanwhile.
  void Unhooked(nanobind::object tensor);

  bool Unchanged() const;
  uint64_t Writes() const;

  int Traverse(visitproc visit, void* arg) const;
  void Clear();

 private:
  enum class Kind { kLength, kElement, kCell, kClassOf, kClass, kFunction, kReturns };
  struct Row {
    Kind kind;
    nanobind::object object, value;
    Py_ssize_t number = 0;
  };
  // The expected contents of one dict.
  struct DictRows {
    nanobind::object dict;
    std::vector<std::pair<nanobind::object, nanobind::object>>
        items;                          // key and value; no value where it lacks the key
    Py_ssize_t length = -1;             // -1: any
    bool whole = false;                 // the items are all, in the dict's order: no key is hashed
    const uint64_t* version = nullptr;  // moves with the dict while it lives; null: none does
    mutable uint64_t seen = 0;          // the version at which all was last seen to be as it was
  };
  struct TensorRow {
    nanobind::object tensor;
    TensorFacts facts;
    bool bytes;
  };
  DictRows& RowsOf(nanobind::handle dict);
  static bool Holds(const DictRows& rows);
  static bool Holds(const Row& row);
  bool HasNoHooks() const;
  std::vector<DictRows> dicts_;
  std::unordered_map<PyObject*, size_t> numbers_;  // of dicts_, by dict
  std::vector<Row> rows_;
  std::vector<TensorRow> tensors_;
  std::vector<nanobind::object> unhooked_, versioned_;
  mutable nanobind::object
      hooks_made_;  // PyTorch's count of hooks, when the unhooked were last seen to have none
};

// Tensors, and None, bools, ints, floats and strings, in tuples, lists and dicts. Two tensors are
// the same one in both calls or in none.
class Signature {
 public:
  // Raises TypeError where something else is in them.
  Signature(nanobind::tuple args, nanobind::dict kwargs);
  bool Matches(nanobind::handle args, nanobind::handle kwargs) const;

 private:
  class Part {
   public:
    // Appends the tensors in it to `tensors`.
    Part(nanobind::handle value, std::vector<PyObject*>& tensors);
    bool Matches(nanobind::handle value, std::vector<PyObject*>& tensors) const;

   private:
    nanobind::object type_, value_;  // value_: of what is no tensor and no container
    std::vector<std::pair<nanobind::object, Part>> parts_;  // key and what is there
    TensorFacts facts_;
    bool is_tensor_ = false;
  };
  std::optional<Part> args_, kwargs_;
  std::vector<size_t> firsts_;  // of each tensor, which is the first that is the same
};

}  // namespace caesura::python

#endif  // CAESURA_TORCH_BRIDGE_PYTHON_WATCH_H_
