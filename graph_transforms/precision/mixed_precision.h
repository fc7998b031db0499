// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_PRECISION_MIXED_PRECISION_H_
#define CAESURA_GRAPH_TRANSFORMS_PRECISION_MIXED_PRECISION_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Gives the float32 part of a forward graph torch.autocast's policy, with `half` as the narrow
// type:
//   products, convolutions and attention compute in `half`;
//   arithmetic that is safe in it (sums, activations, movement) does so where all activations that
//   it reads are in `half` already;
//   all else (norms, softmax, losses, reductions, powers, bodies of control flow) reads and makes
//       float32.
// Weights stay float32 and are cast once, ahead of transposes and reshapes, which stay views.
// Values keep their names and types: what reads a float32 value by name, or outside of the graph,
// still finds one. Casts that nobody reads are left for dead_node_elimination. REQUIRES: types are
// inferred; `half` is float16 or bfloat16. To be run before the graph is differentiated: the
// gradient of a cast is the cast back, so that gradients of weights are float32.
std::shared_ptr<Pass> MakeMixedPrecisionPass(DType half);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_PRECISION_MIXED_PRECISION_H_
