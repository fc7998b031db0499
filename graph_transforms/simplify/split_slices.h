// SPDX-License-Identifier: Apache-2.0
// split_slices: Slices that cut a floating tensor along one axis of known size into all of its
// parts become one Split, whose gradient is one Concat, and which fused rows read where the tensor
// lies: the halves of rotary embeddings, as transformers writes them. The other way round,
// SliceGrads of all of a tensor's parts that are added up become one Concat; those of empty parts
// go.
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_SPLIT_SLICES_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_SPLIT_SLICES_H_

#include "core/graph/pass.h"

namespace caesura {

std::shared_ptr<Pass> MakeSplitSlicesPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_SPLIT_SLICES_H_
