// SPDX-License-Identifier: Apache-2.0
// Until Python 3.11 classes and dicts have numbers of their versions. From 3.12 on Python tells
// watchers of changes.
#include "torch_bridge/python/versions.h"

#include <dlfcn.h>

#include <unordered_map>

namespace nb = nanobind;

namespace caesura::python {

#if PY_VERSION_HEX < 0x030C0000

uint64_t ClassVersion(PyObject* object) {
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

uint64_t FirstClassVersion(PyObject* type) {
  static PyObject* const any_name = PyUnicode_InternFromString("__call__");
  _PyType_Lookup(reinterpret_cast<PyTypeObject*>(type), any_name);  // gives it one
  return ClassVersion(type);
}

const uint64_t* DictVersion(PyObject* dict) {
  return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
}

#else

namespace {

// Counts the changes of objects of which Python tells a watcher. Its functions for that are public,
// but not in the stable ABI: they are looked for by name.
class Changes {
 public:
  // add, watch: the functions' names. Thread safety: only with the GIL.
  template <typename Callback>
  Changes(const char* add, const char* watch, Callback callback)
      : watch_(Find<int (*)(int, PyObject*)>(watch)) {
    const auto add_watcher = Find<int (*)(Callback)>(add);
    if (add_watcher == nullptr || watch_ == nullptr) return;
    watcher_ = add_watcher(callback);
    if (watcher_ < 0) PyErr_Clear();  // others have taken all places
  }

  // Returns null where there is no such function.
  template <typename Function>
  static Function Find(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }

  // The object's count from here on, which is not 0; null where Python does not tell of changes. An
  // object that is gone leaves its count to the next one at its address.
  const uint64_t* Begin(PyObject* object) {
    if (watcher_ < 0) return nullptr;
    if (watch_(watcher_, object) != 0) {
      PyErr_Clear();
      return nullptr;
    }
    return &counts_.try_emplace(object, 1).first->second;
  }

  void Count(PyObject* object) { ++counts_[object]; }

  // The count of an object that Begin has seen; 0 of any other.
  uint64_t Of(PyObject* object) const {
    const auto found = counts_.find(object);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  int (*watch_)(int, PyObject*);
  int watcher_ = -1;
  std::unordered_map<PyObject*, uint64_t> counts_;
};

// Counts changes of a class and its bases.
Changes& ClassChanges() {
  static auto* changes = new Changes(
      "PyType_AddWatcher", "PyType_Watch", +[](PyObject* type) {
        ClassChanges().Count(type);
        return 0;
      });
  return *changes;
}

// Counts changes of a dict: keys, values and order.
Changes& DictChanges() {
  static auto* changes = new Changes(
      "PyDict_AddWatcher", "PyDict_Watch",
      +[](int /*event*/, PyObject* dict, PyObject* /*key*/, PyObject* /*value*/) {
        DictChanges().Count(dict);
        return 0;
      });
  return *changes;
}

// True if writes to the attributes of an object are told of, too. Python 3.13.0 lacks that.
bool DictChangesAreTold() {
  const nb::object object =
      nb::borrow(reinterpret_cast<PyObject*>(&PyType_Type))("Probe", nb::tuple(), nb::dict())();
  object.attr("attribute") = 1;
  const nb::dict dict = object.attr("__dict__");
  const uint64_t* count = DictChanges().Begin(dict.ptr());
  if (count == nullptr) return false;
  const uint64_t before = *count;
  object.attr("attribute") = 2;
  return *count != before;
}

}  // namespace

uint64_t ClassVersion(PyObject* type) { return ClassChanges().Of(type); }

// A class that has used up Python's numbers of its versions has none: its changes are told to
// nobody.
uint64_t FirstClassVersion(PyObject* type) {
  static const auto assign = Changes::Find<int (*)(PyObject*)>("PyUnstable_Type_AssignVersionTag");
  if (assign == nullptr || assign(type) == 0 || ClassChanges().Begin(type) == nullptr) {
    PyErr_Clear();
    return 0;
  }
  return ClassVersion(type);
}

const uint64_t* DictVersion(PyObject* dict) {
  static const bool told = DictChangesAreTold();
  return told ? DictChanges().Begin(dict) : nullptr;
}

#endif

}  // namespace caesura::python
