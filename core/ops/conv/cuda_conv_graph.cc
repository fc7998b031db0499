// SPDX-License-Identifier: Apache-2.0
#include "core/ops/conv/cuda_conv_graph.h"

namespace caesura {
namespace {

cudnn::DataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return cudnn::kBFloat16;
    case DType::kFloat16: return cudnn::kHalf;
    default: return cudnn::kFloat;
  }
}

cudnn::DescriptorType KindOf(ConvDirection direction) {
  switch (direction) {
    case ConvDirection::kForward: return cudnn::kConvolutionForward;
    case ConvDirection::kBackwardData: return cudnn::kConvolutionBackwardData;
    default: return cudnn::kConvolutionBackwardFilter;
  }
}

// cuDNN has no convolution over one axis: a second one of a single position is added.
std::vector<int64_t> Padded(std::vector<int64_t> per_axis, size_t size, int64_t fill) {
  if (per_axis.size() < size) per_axis.push_back(fill);
  return per_axis;
}

}  // namespace

DnnGraph ConvGraph(const cudnn::Functions& calls, DType dtype, ConvDirection direction,
                   const ConvGeometry& g) {
  DnnGraph graph(calls);
  auto dense = [&](const Shape& shape) {
    const std::vector<int64_t> dims = Padded(shape.dims(), 4, 1);
    std::vector<int64_t> strides(dims.size(), 1);
    for (size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
    return graph.Tensor(TypeOf(dtype), dims, strides);
  };
  const DnnGraph::Id src = dense(g.Src()), weights = dense(g.Weights()), dst = dense(g.Dst());
  graph.Convolution(KindOf(direction),
                    {.strides = Padded(g.window.strides, 2, 1),
                     .dilations = Padded(g.window.dilations, 2, 1),
                     .before = Padded(g.window.pads_begin, 2, 0),
                     .after = Padded(g.window.pads_end, 2, 0)},
                    src, weights, dst);
  return graph;
}

}  // namespace caesura
