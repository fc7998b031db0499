// SPDX-License-Identifier: Apache-2.0
// Draws of PyTorch's CPU generator at several times PyTorch's speed, bit for bit: the numbers, and
// the generator's state after them. They are operators with the arguments of PyTorch's own,
//   caesura::bernoulli(Tensor self, float p, *, Generator? generator) -> Tensor
//   caesura::uniform(Tensor self, float from, float to, *, Generator? generator) -> Tensor
// which call PyTorch's where they cannot give its numbers: for other devices and dtypes, and on
// processors where PyTorch draws another way (on Intel's by MKL), which the first call finds out.
#ifndef CAESURA_TORCH_BRIDGE_DRAWS_H_
#define CAESURA_TORCH_BRIDGE_DRAWS_H_

namespace caesura::torch {

// Makes the operators known to PyTorch; again does nothing.
void RegisterDraws();

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_DRAWS_H_
