// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_SIMPLIFICATION_H_
#define CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_SIMPLIFICATION_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Follows dims from Shape and Size through Gather, Slice, Concat, Squeeze, Unsqueeze and Identity:
//   x: float[N, 3, 8]   Gather (Shape (x), [1, 2])   the constant [3, 8]
//                       Gather (Shape (x), 0), and the same of another value whose type has the
//                       symbol: computed once
// Goes by the types that graph inputs declare: for models whose feeds are checked against them. A
// symbol that several dims of graph inputs have is trusted for none of them.
std::shared_ptr<Pass> MakeShapeSimplificationPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_SIMPLIFICATION_H_
