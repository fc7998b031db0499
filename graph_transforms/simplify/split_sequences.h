// SPDX-License-Identifier: Apache-2.0
// split_sequences: SplitToSequence whose elements are only taken out again at constant positions
// becomes Split. The form in which torch.onnx exports tensor.split and tensor.chunk.
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_SPLIT_SEQUENCES_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_SPLIT_SEQUENCES_H_

#include "core/graph/pass.h"

namespace caesura {

std::shared_ptr<Pass> MakeSplitSequencesPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_SPLIT_SEQUENCES_H_
