// SPDX-License-Identifier: Apache-2.0
// Attention of halves and its gradient as graphs of cuDNN's, in the form that its fused kernels
// take. The scores are never in memory.
#ifndef CAESURA_CORE_OPS_ATTENTION_CUDA_ATTENTION_GRAPH_H_
#define CAESURA_CORE_OPS_ATTENTION_CUDA_ATTENTION_GRAPH_H_

#include <string>

#include "core/cuda/dnn_graph.h"
#include "core/ops/attention/attention_spec.h"

namespace caesura {

// Why there is no graph for this; empty where there is one. Its tensors must not be empty.
std::string WhyNoAttentionGraph(const AttentionSpec& s, DType dtype);

// REQUIRES: WhyNoAttentionGraph is empty.
// Tensors in memory: Q, K, V, Y, then, where `lse`, the logarithms of sums of e^score.
DnnGraph AttentionGraph(const cudnn::Functions& calls, const AttentionSpec& s, DType dtype,
                        bool lse);

struct AttentionGradientLayouts {
  HeadLayout dq, dk, dv;
};
// The gradient's tensors in memory: dY, Q, K, V, Y, lse, room for a float32 a query, dQ, dK, dV.
DnnGraph AttentionGradientGraph(const cudnn::Functions& calls, const AttentionSpec& s, DType dtype,
                                const AttentionGradientLayouts& layouts);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ATTENTION_CUDA_ATTENTION_GRAPH_H_
