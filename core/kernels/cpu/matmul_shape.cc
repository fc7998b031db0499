// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cpu/matmul_shape.h"

#include <utility>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

// An operand of MatMul as a stack of matrices.
struct Operand {
  Shape batch;
  int64_t rows, columns;
  MatrixStrides strides;
};

Operand MakeOperand(const Shape& shape, bool transpose) {
  const int rank = shape.rank();
  Operand out{Shape(std::vector<int64_t>(shape.begin(), shape.end() - 2)), shape[rank - 2], shape[rank - 1],
              RowMajor(shape[rank - 1])};
  if (transpose) {
    std::swap(out.rows, out.columns);
    std::swap(out.strides.row, out.strides.col);
  }
  return out;
}

// Strides over the dims of `batch` of an operand whose own batch dims are `own`; 0 where it broadcasts.
std::vector<int64_t> BatchStrides(const Shape& batch, const Shape& own, int64_t matrix) {
  std::vector<int64_t> out(batch.rank(), 0);
  int64_t stride = matrix;
  for (int d = own.rank() - 1; d >= 0; --d) {
    if (own[d] != 1) out[batch.rank() - own.rank() + d] = stride;
    stride *= own[d];
  }
  return out;
}

}  // namespace

Result<MatMulShape> MakeMatMulShape(const KernelInfo& info, DType dtype, Shape a, Shape b, MatMulTransposes swap) {
  if (a.rank() == 0 || b.rank() == 0) return info.Invalid("operands of rank 1 or more expected, got a scalar");
  const std::string shapes = a.ToString() + " and " + b.ToString();
  // A vector is a row on the left and a column on the right.
  const bool vector_a = a.rank() == 1, vector_b = b.rank() == 1;
  if (vector_a) a = Shape{1, a[0]};
  if (vector_b) b = Shape{b[0], 1};
  const Operand left = MakeOperand(a, swap.a && !vector_a), right = MakeOperand(b, swap.b && !vector_b);
  if (left.columns != right.rows) return info.Invalid("inner dims must agree, got " + shapes);
  Result<Shape> batch = BroadcastShape(left.batch, right.batch);
  if (!batch.ok()) return info.Invalid("batch dims must broadcast, got " + shapes);
  std::vector<int64_t> dims = batch->dims();
  if (!vector_a) dims.push_back(left.rows);
  if (!vector_b) dims.push_back(right.columns);
  GemmSpec spec{.dtype = dtype, .m = left.rows, .n = right.columns, .k = left.columns,
                .a = left.strides, .b = right.strides, .c = RowMajor(right.columns), .batch = batch->dims()};
  spec.a_batch = BatchStrides(*batch, left.batch, spec.m * spec.k);
  spec.b_batch = BatchStrides(*batch, right.batch, spec.k * spec.n);
  spec.c_batch = BatchStrides(*batch, *batch, spec.m * spec.n);
  return MatMulShape{std::move(spec), Shape(std::move(dims))};
}

}  // namespace caesura
