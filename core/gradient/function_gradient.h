// SPDX-License-Identifier: Apache-2.0
// The gradient of an op by way of its function body: what GradientRule::expand puts in the place of
// an op that computes it in one kernel.
#ifndef CAESURA_CORE_GRADIENT_FUNCTION_GRADIENT_H_
#define CAESURA_CORE_GRADIENT_FUNCTION_GRADIENT_H_

#include <string>

#include "core/gradient/gradient_context.h"

namespace caesura::gradient {

// The gradient of output 0 of ONNX's `op_type` with the attributes of g's node by each input, where
// `dy` is the output's; null for an absent input, and one that carries none. Refuses g's node, and
// returns nothing, where the op has no body for these inputs or the body has no gradient.
Exprs FunctionGradient(GradientContext& g, const std::string& op_type, const Exprs& inputs,
                       Expr dy);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_FUNCTION_GRADIENT_H_
