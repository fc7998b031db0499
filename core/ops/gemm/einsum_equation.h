// SPDX-License-Identifier: Apache-2.0
// Einsum's equation against concrete shapes: which label walks which axis with which stride.
#ifndef CAESURA_CORE_OPS_GEMM_EINSUM_EQUATION_H_
#define CAESURA_CORE_OPS_GEMM_EINSUM_EQUATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/tensor.h"

namespace caesura {

struct EinsumDim {
  int label;  // a letter, or a number above all letters for a dim after "..."
  int64_t size;
  int64_t stride;  // of the operand, in elements
};

// Each label occurs once in an operand: a repeated one has become a diagonal (the sum of its
// strides). A dim of one that meets a larger one under its label keeps size 1.
struct EinsumEquation {
  std::vector<std::vector<EinsumDim>> operands;
  std::vector<EinsumDim> output;  // strides unset
};

// "ij,jk->ik", "...ij->...ji", "ii", with spaces anywhere. Fails with what is wrong.
Result<EinsumEquation> ParseEinsumEquation(const std::string& equation,
                                           const std::vector<Shape>& shapes);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_GEMM_EINSUM_EQUATION_H_
