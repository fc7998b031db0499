// SPDX-License-Identifier: Apache-2.0
// The shape rules of ONNX's MatMul, as sizes and strides of a Gemm.
#ifndef CAESURA_CORE_OPS_GEMM_MATMUL_SHAPE_H_
#define CAESURA_CORE_OPS_GEMM_MATMUL_SHAPE_H_

#include "core/kernels/kernel.h"
#include "core/kernels/gemm/gemm_spec.h"

namespace caesura {

// Swaps of the last two dims of an operand; vectors are not swapped.
struct MatMulTransposes {
  bool a = false, b = false;
};

// By the attributes transA and transB.
MatMulTransposes TransposesOf(const KernelInfo& info);

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

// MatMul and FusedMatMul (ai.caesura): the same with the bias and addend of inputs 2 and 3 and the
// attribute `dtype`, all checked. The spec's c_dtype is the output's dtype.
Result<MatMulShape> MakeProductShape(const KernelInfo& info, MatMulTransposes swap, float alpha);

// Gemm: Y = alpha A B + beta C.
struct GemmShape {
  MatMulShape product;  // of A B, dense; spec.bias or spec.accumulate says how C joins it
  MatrixStrides c;      // of C against Y; 0 along axes that it repeats over
  float beta = 1;
};
Result<GemmShape> MakeGemmShape(const KernelInfo& info);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_GEMM_MATMUL_SHAPE_H_
