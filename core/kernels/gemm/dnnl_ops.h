// SPDX-License-Identifier: Apache-2.0
// The oneDNN primitives that kernels may make (see dnnl_primitive.h). Each function fails with
// kDeclined where oneDNN has nothing better than a reference implementation for the dtypes, the
// sizes or this chip. Call from a kernel's factory; no tensor may have zero elements.
#ifndef CAESURA_CORE_KERNELS_GEMM_DNNL_OPS_H_
#define CAESURA_CORE_KERNELS_GEMM_DNNL_OPS_H_

#include <vector>

#include "core/kernels/gemm/dnnl_primitive.h"
#include "core/kernels/kernel.h"

namespace caesura {

// dst = alpha * (src weights) [+ dst] [+ addend]. One rank for all: batch dims, of which 1
// broadcasts, then the matrix; any strides. `bias`, of the same rank, is added before alpha; the
// addend lies as dst does.
struct DnnlMatMulSpec {
  DnnlTensor src, weights, bias, dst;
  float alpha = 1.0f;
  bool accumulate = false;
  bool addend = false;
};
// Run({src, weights, dst[, bias][, addend]}). Packed weights are a plain matrix: no batch dims but
// ones.
Result<DnnlCall> MakeDnnlMatMul(KernelInfo& info, int threads, const DnnlMatMulSpec& spec);

// float32 weights [k, n], with these strides, in the order in which oneDNN reads them for products
// of any number of rows: as many bytes as before, which are packed weights' (DnnlTensor::packed)
// and nobody else's. Undefined where it would rather have them as they are, or padded.
Result<Tensor> PackDnnlWeights(const Tensor& weights, int64_t k, int64_t n,
                               std::vector<int64_t> strides);

// src [N, C, spatial...], weights [O, C, kernel...] or [group, O / group, C / group, kernel...],
// bias [O], dst [N, O, spatial...]. Dilation 1 is a dense kernel, as in ONNX.
struct DnnlConvSpec {
  DnnlTensor src, weights, bias, dst;
  std::vector<int64_t> strides, dilations, pads_begin, pads_end;
};
// Run({src, weights, dst}), or Run({src, weights, dst, bias}).
Result<DnnlCall> MakeDnnlConv(KernelInfo& info, int threads, const DnnlConvSpec& spec);
// The gradient by src, which is also the transposed convolution. Run({diff_dst, weights,
// diff_src}).
Result<DnnlCall> MakeDnnlConvBackwardData(KernelInfo& info, int threads, const DnnlConvSpec& spec);
// The gradient by weights and bias. Run({src, diff_dst, diff_weights}), or Run({..., diff_bias}).
Result<DnnlCall> MakeDnnlConvBackwardWeights(KernelInfo& info, int threads,
                                             const DnnlConvSpec& spec);

// Softmax, or its logarithm, along `axis`. Run({src, dst}); may run in place.
Result<DnnlCall> MakeDnnlSoftmax(KernelInfo& info, int threads, const DnnlTensor& tensor, int axis,
                                 bool log);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_GEMM_DNNL_OPS_H_
