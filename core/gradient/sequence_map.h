// SPDX-License-Identifier: Apache-2.0
// Elementwise work on sequences, as a Loop over their positions.
#ifndef CAESURA_CORE_GRADIENT_SEQUENCE_MAP_H_
#define CAESURA_CORE_GRADIENT_SEQUENCE_MAP_H_

#include <functional>

#include "core/gradient/expression.h"

namespace caesura::gradient {

// The sequence of f(x_i, ...) over the elements of one or more sequences of equal length, of
// element type `dtype`.
Expr MapSequence(const Exprs& sequences, DType dtype,
                 const std::function<Expr(const Exprs& elements)>& f);

// Zeros in the shape of `x`, which may be a tensor, an optional or a sequence of tensors.
Expr ZerosOf(Expr x);
// a + b, of tensors or of sequences element by element.
Expr SumOf(Expr a, Expr b);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_SEQUENCE_MAP_H_
