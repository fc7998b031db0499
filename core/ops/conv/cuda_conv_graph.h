// SPDX-License-Identifier: Apache-2.0
// A convolution, or one of its gradients, as a graph of cuDNN's.
#ifndef CAESURA_CORE_OPS_CONV_CUDA_CONV_GRAPH_H_
#define CAESURA_CORE_OPS_CONV_CUDA_CONV_GRAPH_H_

#include "core/cuda/dnn_graph.h"
#include "core/kernels/windows/conv_geometry.h"

namespace caesura {

// Tensors in memory: src, weights and dst, of which the direction says which is written. float32,
// float16, bfloat16; all dense.
DnnGraph ConvGraph(const cudnn::Functions& calls, DType dtype, ConvDirection direction,
                   const ConvGeometry& g);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_CONV_CUDA_CONV_GRAPH_H_
