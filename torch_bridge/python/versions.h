// SPDX-License-Identifier: Apache-2.0
// Numbers that move when Python's classes and dicts change.
#ifndef CAESURA_TORCH_BRIDGE_PYTHON_VERSIONS_H_
#define CAESURA_TORCH_BRIDGE_PYTHON_VERSIONS_H_

#include <cstdint>

#include "torch_bridge/python/bindings.h"

namespace caesura::python {

// Not for use without the GIL.

// Returns a number that changes with a class and its bases; 0 where Python counts them no more. To
// be called first of a class; later ClassVersion tells its number.
uint64_t FirstClassVersion(PyObject* type);
uint64_t ClassVersion(PyObject* type);

// Points to a number, not 0, that every change of a dict's keys, values and order moves; null where
// Python tells of none. Valid while the dict lives.
const uint64_t* DictVersion(PyObject* dict);

}  // namespace caesura::python

#endif  // CAESURA_TORCH_BRIDGE_PYTHON_VERSIONS_H_
