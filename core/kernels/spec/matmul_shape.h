// SPDX-License-Identifier: Apache-2.0
// The shape rules of ONNX's MatMul, as sizes and strides of a Gemm.
#ifndef CAESURA_CORE_KERNELS_SPEC_MATMUL_SHAPE_H_
#define CAESURA_CORE_KERNELS_SPEC_MATMUL_SHAPE_H_

#include "core/kernels/kernel.h"
#include "core/kernels/spec/gemm_spec.h"

namespace caesura {

// Swaps of the last two dims of an operand; vectors are not swapped.
struct MatMulTransposes {
  bool a = false, b = false;
};

struct MatMulShape {
  GemmSpec spec;
  Shape output;          // without the dims of one that a vector operand took in the product
  bool swapped = false;  // the product is written transposed: it multiplies input 1 by input 0
};

// `a` and `b` are dense.
Result<MatMulShape> MakeMatMulShape(const KernelInfo& info, DType dtype, Shape a, Shape b,
                                    MatMulTransposes swap = {});
// The product of inputs 0 and 1 into output 0 as they lie. kDeclined where a matrix of the output
// has no contiguous axis.
Result<MatMulShape> MakeStridedMatMulShape(const KernelInfo& info, MatMulTransposes swap);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SPEC_MATMUL_SHAPE_H_
