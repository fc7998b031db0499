// SPDX-License-Identifier: Apache-2.0
// Any operator of PyTorch's dispatcher as a node: domain "org.pytorch.aten", op type "ATen".
//
//   y = org.pytorch.aten.ATen <operator = "aten::gelu"> (x)
//   y = org.pytorch.aten.ATen <operator = "aten::sum", overload_name = "dim_IntList", dim = [0, 1]>
//       (x)
//   y = org.pytorch.aten.ATen <operator = "aten::index", overload_name = "Tensor",
//                              arguments = ["self", "indices", "indices"]> (x, , i)          # x[:,
//                                  i]
//
// Attributes:
//   operator        "namespace::name", as in PyTorch's schemas; operators of the user's own
//       libraries too
//   overload_name   "" is the default overload
//   arguments       the schema's argument that each input is, or is an element of (a list takes
//                   several; an absent input is None in a list of optional tensors); input i is
//                   argument i where this is left out
//   none            names of arguments that are None although their default is something else
//   random_stream   the name that the numbers of an operator with a Generator argument go by; else
//       the node's own
//   any other       an argument by its name: ints, floats and bools (an ONNX float has 32 bits: a
//                   tensor attribute of one element, or of rank 1 for a list, carries float64, bool
//                   and complex numbers exactly), strings; dtypes by their name ("float32",
//                   "bfloat16"), layouts ("strided"), devices ("cpu"; that of
//                   the node's provider where none is given), memory formats
//                   ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d");
//                   for a tensor argument a number, which is then as weak in type promotion as a
//                   number in Python
// An argument that is given neither way takes its default, or None. Ints, bools, numbers and lists
// of them (symints as well) may also come as inputs, on the host: where the plan knows their values
// the outputs are planned, otherwise the node is made at run time.
//
// Outputs are the results in order, a list of tensors one output an element; numbers come as
// scalars. Operators that write to their arguments are refused: name the functional overload. Where
// sizes are known the out overload of a structured operator writes into the planned memory;
// otherwise results are copied there. An operator with a Generator argument draws from one seeded
// by the run's own random key; one without draws from PyTorch's global generator.
//
// "ATenGrad" (made by the gradient rule of ATen) has ATen's attributes and
//   gradient_outputs: ints   results whose gradients are its first inputs, in this order; the
//   operator's inputs follow gradient_inputs: ints    the operator's inputs whose gradients are its
//   outputs, in this order
// It computes the operator once more, with derivatives recorded, and calls PyTorch's derivative.
// Operators that draw random numbers are refused there, since the second draw would be another.
// Results must have stated dtypes, by value_info, for gradients to be led through them.
#ifndef CAESURA_TORCH_BRIDGE_ATEN_OP_H_
#define CAESURA_TORCH_BRIDGE_ATEN_OP_H_

#include <c10/core/Device.h>

#include "core/kernels/kernel_registry.h"

namespace caesura::torch {

// Adds ATen and ATenGrad for a provider of the device's memory.
void RegisterAtenKernels(KernelRegistry& registry, c10::Device device = c10::kCPU);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_ATEN_OP_H_
