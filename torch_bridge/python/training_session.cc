// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/python/bindings.h"

namespace caesura::python {

void BindTraining(nanobind::module_&) {}

}  // namespace caesura::python
