// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_FUSION_ATTENTION_FUSION_H_
#define CAESURA_GRAPH_TRANSFORMS_FUSION_ATTENTION_FUSION_H_

#include <memory>
#include <string>
#include <unordered_set>

#include "core/graph/pass.h"

namespace caesura {

// Attention that is written out becomes one Attention node, whose kernel writes no scores:
//   MatMul(Softmax(scale Q K^T + mask), V) -> Attention(Q, K, V, mask)
// with Q and K of rank 4, [batch, heads, positions, size]. The scale may stand at Q, at K, or
// after their product; the mask may be added, or put in by Where; zeros may stand for NaN in the
// output of Softmax (of queries that see nothing); keys and values that are repeated for groups of
// heads are taken as they were before, also by Attention nodes that were there. What is NaN or
// infinite stays so: the node says which of these it stands for (NanRows in attention_spec.h), and
// Attention nodes that were there keep ONNX's rule. Where types do not prove the shapes, or the
// mask depends on one of `parameters`, nothing changes. What nobody reads any more is left for
// dead_node_elimination. For forward graphs, before they are differentiated.
std::shared_ptr<Pass> MakeAttentionFusionPass(std::unordered_set<std::string> parameters);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_FUSION_ATTENTION_FUSION_H_
