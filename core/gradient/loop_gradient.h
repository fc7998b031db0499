// SPDX-License-Identifier: Apache-2.0
// The gradient rules of Loop and Scan: a loop from the last iteration to the first. What the body's
// gradient needs of an iteration becomes an entry of a stack, a further scan output of the forward
// loop.
#ifndef CAESURA_CORE_GRADIENT_LOOP_GRADIENT_H_
#define CAESURA_CORE_GRADIENT_LOOP_GRADIENT_H_

#include "core/gradient/gradient_context.h"

namespace caesura::gradient {

void LoopRule(GradientContext& g);
void ScanRule(GradientContext& g);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_LOOP_GRADIENT_H_
