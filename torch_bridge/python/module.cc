// SPDX-License-Identifier: Apache-2.0
#include "core/load/model_reader.h"
#include "torch_bridge/python/bindings.h"

namespace caesura::python {

void Raise(const Status& status) {
  const char* text = status.message().c_str();
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kInvalidModel: type = PyExc_ValueError; break;
    case StatusCode::kNotFound: type = PyExc_KeyError; break;
    case StatusCode::kOutOfMemory: type = PyExc_MemoryError; break;
    case StatusCode::kIoError: type = PyExc_OSError; break;
    case StatusCode::kUnsupported: type = PyExc_NotImplementedError; break;
    default: break;
  }
  PyErr_SetString(type, text);
  throw nanobind::python_error();
}

Model ReadSource(nanobind::object source) {
  if (!nanobind::isinstance<nanobind::bytes>(source)) return Unwrap(ReadModel(nanobind::cast<std::string>(source)));
  const auto bytes = nanobind::cast<nanobind::bytes>(source);
  return Unwrap(ReadModelBytes(std::string_view(bytes.c_str(), bytes.size())));
}

}  // namespace caesura::python

NB_MODULE(_core, m) {
  m.doc() = "The native half of caesura; use the package's own names.";
  nanobind::set_leak_warnings(false);  // PyTorch's caches of compiled graphs live to the very end
  caesura::python::BindValues(m);
  caesura::python::BindSession(m);
  caesura::python::BindTraining(m);
  caesura::python::BindSplit(m);
  caesura::python::BindProgram(m);
}
