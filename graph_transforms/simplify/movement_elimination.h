// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_MOVEMENT_ELIMINATION_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_MOVEMENT_ELIMINATION_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Two nodes that only move or relabel elements become one, or none; results keep every bit:
//   Transpose (Transpose (x))           one Transpose, or x where they undo each other
//   Reshape (Reshape (x, a), b)         Reshape (x, b), also after Squeeze, Unsqueeze and Flatten;
//   b constant, no
// zeros
//   Cast (Cast (x, a), b)               Cast (x, b) where `a` holds every value of x's type; x
//   where b is that type
// Nodes that nobody reads then are left for dead_node_elimination.
std::shared_ptr<Pass> MakeMovementEliminationPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_MOVEMENT_ELIMINATION_H_
