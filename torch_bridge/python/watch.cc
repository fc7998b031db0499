// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/python/watch.h"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "torch_bridge/python/versions.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

PyObject* TypeOf(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)); }

PyObject* TensorType() {
  static PyObject* const type =
      nb::object(nb::module_::import_("torch").attr("Tensor")).release().ptr();
  return type;
}

// An attribute that a class computes in C, read past the attribute's look-up.
class Property {
 public:
  Property(PyObject* type, const char* name)
      : type_(type),
        name_(PyUnicode_InternFromString(name)),
        found_(PyObject_GetAttr(type, name_)) {
    PyErr_Clear();
    if (found_ == nullptr || Py_TYPE(found_) != &PyGetSetDescr_Type) return;
#ifdef Py_LIMITED_API
    get_ = reinterpret_cast<descrgetfunc>(PyType_GetSlot(&PyGetSetDescr_Type, Py_tp_descr_get));
#else
    get_ = reinterpret_cast<PyGetSetDescrObject*>(found_)->d_getset;
#endif
  }

  nb::object Of(nb::handle object) const {
    nb::object value =
        nb::steal(get_ != nullptr ? Get(object.ptr()) : PyObject_GetAttr(object.ptr(), name_));
    if (!value.is_valid()) throw nb::python_error();
    return value;
  }

 private:
  PyObject *type_, *name_, *found_;
  // Null where it is another kind of thing.
#ifdef Py_LIMITED_API
  PyObject* Get(PyObject* object) const { return get_(found_, object, type_); }
  descrgetfunc get_ = nullptr;
#else
  PyObject* Get(PyObject* object) const { return get_->get(object, get_->closure); }
  const PyGetSetDef* get_ = nullptr;
#endif
};

bool AsksForGradient(nb::handle tensor) {
  static const Property property(TensorType(), "requires_grad");
  return property.Of(tensor).ptr() == Py_True;
}

// PyTorch's counter of hooks; another number is another object.
// Null where none tells.
nb::object HooksMade() {
  static PyObject* const handles =
      nb::object(nb::module_::import_("torch.utils.hooks").attr("RemovableHandle")).release().ptr();
  static PyObject* const name = PyUnicode_InternFromString("next_id");
  nb::object made = nb::steal(PyObject_GetAttr(handles, name));
  if (!made.is_valid()) PyErr_Clear();
  return made;
}

// True if its gradient has none; a dict that is empty is what a removed hook leaves.
bool IsUnhooked(nb::handle tensor) {
  static const Property before(TensorType(), "_backward_hooks");
  static const Property behind(TensorType(), "_post_accumulate_grad_hooks");
  const auto none = [&](const Property& property) {
    const nb::object hooks = property.Of(tensor);
    return hooks.is_none() || (PyDict_Check(hooks.ptr()) && PyDict_Size(hooks.ptr()) == 0);
  };
  return none(before) && none(behind);
}

uint64_t TypeNumber(const DLTensor& view) {
  const auto device = static_cast<uint64_t>(view.device.device_type) << 16 |
                      static_cast<uint16_t>(view.device.device_id);
  return device << 32 | static_cast<uint64_t>(view.dtype.lanes) << 16 | view.dtype.bits << 8 |
         view.dtype.code;
}

TensorFacts FactsOf(nb::handle tensor) {
  const DLTensor view = TorchView(tensor);
  TensorFacts facts{static_cast<const char*>(view.data) + view.byte_offset,
                    {},
                    TypeNumber(view),
                    AsksForGradient(tensor)};
  facts.dims.assign(view.shape, view.shape + view.ndim);
  facts.dims.insert(facts.dims.end(), view.strides, view.strides + view.ndim);
  return facts;
}

bool SameTensor(nb::handle tensor, const TensorFacts& facts, bool bytes) {
  const DLTensor view = TorchView(tensor);
  const size_t size = view.ndim * sizeof(int64_t);
  return TypeNumber(view) == facts.type &&
         2 * static_cast<size_t>(view.ndim) == facts.dims.size() &&
         (size == 0 || (std::memcmp(view.shape, facts.dims.data(), size) == 0 &&
                        std::memcmp(view.strides, facts.dims.data() + view.ndim, size) == 0)) &&
         (!bytes || static_cast<const char*>(view.data) + view.byte_offset == facts.bytes) &&
         AsksForGradient(tensor) == facts.requires_grad;
}

Py_ssize_t LengthOf(PyObject* container) {
  return PyDict_Check(container) ? PyDict_Size(container) : PyObject_Size(container);
}

// Returns the object that a closure's cell holds; null where it is empty.
nb::object CellValue(PyObject* cell) {
  static const Property contents(TypeOf(cell), "cell_contents");
  try {
    return contents.Of(cell);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    return {};
  }
}

// A function's code, defaults and defaults of keywords.
std::array<nb::object, 3> FunctionParts(PyObject* function) {
  static const Property code(TypeOf(function), "__code__");
  static const Property defaults(TypeOf(function), "__defaults__");
  static const Property keywords(TypeOf(function), "__kwdefaults__");
  return {code.Of(function), defaults.Of(function), keywords.Of(function)};
}

}  // namespace

Watch::DictRows& Watch::RowsOf(nb::handle dict) {
  const auto [found, is_new] = numbers_.try_emplace(dict.ptr(), dicts_.size());
  if (is_new) dicts_.emplace_back();
  DictRows& rows = dicts_[found->second];
  rows.dict = nb::borrow<nb::dict>(dict);
  rows.version = DictVersion(dict.ptr());
  rows.seen = 0;
  return rows;
}

void Watch::Item(nb::dict dict, nb::object key, nb::object value) {
  RowsOf(dict).items.emplace_back(std::move(key), std::move(value));
}

void Watch::Lacks(nb::dict dict, nb::object key) {
  RowsOf(dict).items.emplace_back(std::move(key), nb::object());
}

void Watch::Whole(nb::dict dict) {
  DictRows rows;
  for (auto [key, value] : dict) rows.items.emplace_back(nb::borrow(key), nb::borrow(value));
  rows.length = PyDict_Size(dict.ptr());
  rows.whole = true;
  rows.version = DictVersion(dict.ptr());
  rows.dict = std::move(dict);
  dicts_.push_back(std::move(rows));
}

void Watch::Length(nb::object container) {
  const Py_ssize_t length = LengthOf(container.ptr());
  if (length < 0) throw nb::python_error();
  if (PyDict_Check(container.ptr())) {
    RowsOf(container).length = length;
    return;
  }
  rows_.push_back({Kind::kLength, std::move(container), {}, length});
}

void Watch::Elements(nb::list list) {
  Length(list);
  for (size_t i = 0; i < list.size(); ++i) {
    rows_.push_back({Kind::kElement, list, nb::borrow(list[i]), static_cast<Py_ssize_t>(i)});
  }
}

void Watch::Cell(nb::object cell) {
  nb::object value = CellValue(cell.ptr());
  rows_.push_back({Kind::kCell, std::move(cell), std::move(value)});
}

void Watch::ClassOf(nb::object object) {
  nb::object type = nb::borrow(TypeOf(object.ptr()));
  rows_.push_back({Kind::kClassOf, std::move(object), std::move(type)});
}

void Watch::Class(nb::object type) {
  const uint64_t version = FirstClassVersion(type.ptr());
  rows_.push_back({Kind::kClass, std::move(type), {}, static_cast<Py_ssize_t>(version)});
}

void Watch::Function(nb::object function) {
  const auto [code, defaults, keywords] = FunctionParts(function.ptr());
  nb::object parts = nb::make_tuple(code, defaults, keywords);
  rows_.push_back({Kind::kFunction, std::move(function), std::move(parts)});
}

void Watch::Returns(nb::object call, nb::object result) {
  rows_.push_back({Kind::kReturns, std::move(call), std::move(result)});
}

void Watch::Version(nb::object tensor) { versioned_.push_back(std::move(tensor)); }

uint64_t Watch::Writes() const {
  static const Property version(TensorType(), "_version");
  uint64_t sum = 0;
  for (const nb::object& tensor : versioned_)
    sum += PyLong_AsUnsignedLongLong(version.Of(tensor).ptr());
  return sum;
}

void Watch::Unhooked(nb::object tensor) {
  hooks_made_.reset();
  unhooked_.push_back(std::move(tensor));
}

void Watch::TorchTensor(nb::object tensor, bool bytes) {
  for (TensorRow& row : tensors_) {
    if (!row.tensor.is(tensor)) continue;
    row = {std::move(tensor), FactsOf(row.tensor), bytes || row.bytes};
    return;
  }
  TensorFacts facts = FactsOf(tensor);
  tensors_.push_back({std::move(tensor), std::move(facts), bytes});
}

bool Watch::Holds(const DictRows& rows) {
  const uint64_t version = rows.version == nullptr ? 0 : *rows.version;
  if (version != 0 && version == rows.seen) return true;
  if (rows.length >= 0 && rows.length != PyDict_Size(rows.dict.ptr())) return false;
  Py_ssize_t at = 0;
  for (const auto& [key, value] : rows.items) {
    PyObject *found_key = key.ptr(), *found = nullptr;
    if (!rows.whole) {
      found = PyDict_GetItemWithError(rows.dict.ptr(), key.ptr());
    } else if (!PyDict_Next(rows.dict.ptr(), &at, &found_key, &found)) {
      return false;
    }
    if (found != value.ptr() || found_key != key.ptr()) return false;
  }
  rows.seen = version;
  return true;
}

bool Watch::Holds(const Row& row) {
  PyObject* object = row.object.ptr();
  switch (row.kind) {
    case Kind::kLength: return LengthOf(object) == row.number;
    case Kind::kElement:
      return row.number < PyList_Size(object) &&
             PyList_GetItem(object, row.number) == row.value.ptr();
    case Kind::kCell: return CellValue(object).is(row.value);
    case Kind::kClassOf: return TypeOf(object) == row.value.ptr();
    case Kind::kClass:
      return row.number != 0 && ClassVersion(object) == static_cast<uint64_t>(row.number);
    case Kind::kFunction: {
      const auto parts = FunctionParts(object);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].ptr() != PyTuple_GetItem(row.value.ptr(), i)) return false;
      }
      return true;
    }
    case Kind::kReturns: {
      const nb::object result = nb::steal(PyObject_CallNoArgs(object));
      if (!result.is_valid()) throw nb::python_error();
      return result.is(row.value) || result.equal(row.value);
    }
  }
  return false;
}

bool Watch::HasNoHooks() const {
  if (unhooked_.empty()) return true;
  nb::object made = HooksMade();
  if (made.is_valid() && made.is(hooks_made_)) return true;
  if (!std::all_of(unhooked_.begin(), unhooked_.end(),
                   [](nb::handle tensor) { return IsUnhooked(tensor); }))
    return false;
  hooks_made_ = std::move(made);
  return true;
}

bool Watch::Unchanged() const {
  const auto hold = [](const auto& rows) {
    return std::all_of(rows.begin(), rows.end(), [](auto& r) { return Holds(r); });
  };
  if (!hold(dicts_) || !hold(rows_)) {
    if (PyErr_Occurred()) throw nb::python_error();
    return false;
  }
  if (!HasNoHooks()) return false;
  for (const TensorRow& row : tensors_) {
    if (!SameTensor(row.tensor, row.facts, row.bytes)) return false;
  }
  return true;
}

int Watch::Traverse(visitproc visit, void* arg) const {
  for (const DictRows& rows : dicts_) {
    Py_VISIT(rows.dict.ptr());
    for (const auto& [key, value] : rows.items) {
      Py_VISIT(key.ptr());
      Py_VISIT(value.ptr());
    }
  }
  for (const Row& row : rows_) {
    Py_VISIT(row.object.ptr());
    Py_VISIT(row.value.ptr());
  }
  for (const TensorRow& row : tensors_) Py_VISIT(row.tensor.ptr());
  for (const nb::object& tensor : unhooked_) Py_VISIT(tensor.ptr());
  for (const nb::object& tensor : versioned_) Py_VISIT(tensor.ptr());
  return 0;
}

void Watch::Clear() {
  dicts_.clear();
  numbers_.clear();
  rows_.clear();
  tensors_.clear();
  unhooked_.clear();
  versioned_.clear();
}

Signature::Part::Part(nb::handle value, std::vector<PyObject*>& tensors)
    : type_(nb::borrow(TypeOf(value.ptr()))) {
  PyObject* object = value.ptr();
  if (type_.ptr() == TensorType()) {
    is_tensor_ = true;
    facts_ = FactsOf(value);
    tensors.push_back(object);
  } else if (PyDict_CheckExact(object)) {
    for (auto [key, part] : nb::borrow<nb::dict>(value))
      parts_.emplace_back(nb::borrow(key), Part(part, tensors));
  } else if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
    for (nb::handle part : nb::borrow<nb::sequence>(value))
      parts_.emplace_back(nb::object(), Part(part, tensors));
  } else if (object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
             PyFloat_CheckExact(object) || PyUnicode_CheckExact(object)) {
    value_ = nb::borrow(value);
  } else {
    throw nb::type_error("arguments of a type that no signature holds");
  }
}

bool Signature::Part::Matches(nb::handle value, std::vector<PyObject*>& tensors) const {
  PyObject* object = value.ptr();
  if (TypeOf(object) != type_.ptr()) return false;
  if (is_tensor_) {
    tensors.push_back(object);
    return SameTensor(value, facts_, /*bytes=*/false);
  }
  if (value_.is_valid()) {
    if (PyFloat_CheckExact(object)) {  // bits: 0.0 is not -0.0
      const double a = PyFloat_AsDouble(object), b = PyFloat_AsDouble(value_.ptr());
      return std::memcmp(&a, &b, sizeof a) == 0;
    }
    return object == value_.ptr() || value.equal(value_);
  }
  if (LengthOf(object) != static_cast<Py_ssize_t>(parts_.size())) return false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& [key, part] = parts_[i];
    PyObject* found = key.is_valid()          ? PyDict_GetItemWithError(object, key.ptr())
                      : PyTuple_Check(object) ? PyTuple_GetItem(object, i)
                                              : PyList_GetItem(object, i);
    if (found == nullptr || !part.Matches(found, tensors)) return false;
  }
  return true;
}

Signature::Signature(nb::tuple args, nb::dict kwargs) {
  std::vector<PyObject*> tensors;
  args_.emplace(args, tensors);
  kwargs_.emplace(kwargs, tensors);
  for (PyObject* tensor : tensors) {
    firsts_.push_back(std::find(tensors.begin(), tensors.end(), tensor) - tensors.begin());
  }
}

bool Signature::Matches(nb::handle args, nb::handle kwargs) const {
  static thread_local std::vector<PyObject*> tensors;  // keeps its memory
  tensors.clear();
  if (!args_->Matches(args, tensors) || !kwargs_->Matches(kwargs, tensors)) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t first = std::find(tensors.begin(), tensors.end(), tensors[i]) - tensors.begin();
    if (first != firsts_[i]) return false;
  }
  return true;
}

void BindWatch(nb::module_& m) {
  static const PyType_Slot slots[] = {
      {Py_tp_traverse,
       reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) -> int {
         Py_VISIT(Py_TYPE(self));
         return nb::inst_ready(self) ? nb::inst_ptr<Watch>(self)->Traverse(visit, arg) : 0;
       })},
      {Py_tp_clear, reinterpret_cast<void*>(+[](PyObject* self) -> int {
         nb::inst_ptr<Watch>(self)->Clear();
         return 0;
       })},
      {0, nullptr}};
  nb::class_<Watch>(m, "Watch", nb::type_slots(slots))
      .def(nb::init<>())
      .def("item", &Watch::Item, nb::arg("dict"), nb::arg("key"), nb::arg("value").none())
      .def("lacks", &Watch::Lacks)
      .def("whole", &Watch::Whole)
      .def("length", &Watch::Length)
      .def("elements", &Watch::Elements)
      .def("cell", &Watch::Cell)
      .def("class_of", &Watch::ClassOf)
      .def("class_", &Watch::Class)
      .def("function", &Watch::Function)
      .def("returns", &Watch::Returns, nb::arg("call"), nb::arg("result").none())
      .def("tensor", &Watch::TorchTensor, nb::arg("tensor"), nb::arg("bytes"))
      .def("version", &Watch::Version, nb::arg("tensor"))
      .def("writes", &Watch::Writes)
      .def("unhooked", &Watch::Unhooked)
      .def("unchanged", &Watch::Unchanged);
  nb::class_<Signature>(m, "Signature")
      .def(nb::init<nb::tuple, nb::dict>())
      .def("matches", &Signature::Matches);
}

}  // namespace caesura::python
