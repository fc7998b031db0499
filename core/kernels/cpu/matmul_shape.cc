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
  std::vector<int64_t> batch_strides;  // one a dim of `batch`
};

Operand MakeOperand(const Shape& shape, const Layout& layout, bool transpose) {
  const int rank = shape.rank();
  std::vector<int64_t> strides = StridesOf(shape, layout);
  Operand out{Shape(std::vector<int64_t>(shape.begin(), shape.end() - 2)), shape[rank - 2], shape[rank - 1],
              {strides[rank - 2], strides[rank - 1]}, std::move(strides)};
  out.batch_strides.resize(rank - 2);
  if (transpose) {
    std::swap(out.rows, out.columns);
    std::swap(out.strides.row, out.strides.col);
  }
  return out;
}

// Strides over the dims of `batch` of an operand; 0 where it broadcasts.
std::vector<int64_t> BatchStrides(const Shape& batch, const Operand& own) {
  std::vector<int64_t> out(batch.rank(), 0);
  for (int d = 0; d < own.batch.rank(); ++d) {
    if (own.batch[d] != 1) out[batch.rank() - own.batch.rank() + d] = own.batch_strides[d];
  }
  return out;
}

// The transposed product, where columns of the output lie contiguous and rows do not.
void SwapOperands(GemmSpec& spec) {
  auto transposed = [](MatrixStrides s) { return MatrixStrides{s.col, s.row}; };
  std::swap(spec.m, spec.n);
  std::swap(spec.a, spec.b);
  std::swap(spec.a_batch, spec.b_batch);
  std::swap(spec.a_offset, spec.b_offset);
  spec.a = transposed(spec.a);
  spec.b = transposed(spec.b);
  spec.c = transposed(spec.c);
}

Result<MatMulShape> Make(const KernelInfo& info, DType dtype, const Shape& given_a, const Shape& given_b,
                         MatMulTransposes swap, Layout a_layout, Layout b_layout, const Layout& c_layout) {
  Shape a = given_a, b = given_b;
  if (a.rank() == 0 || b.rank() == 0) return info.Invalid("operands of rank 1 or more expected, got a scalar");
  const auto shapes = [&] { return given_a.ToString() + " and " + given_b.ToString(); };
  // A vector is a row on the left and a column on the right.
  const bool vector_a = a.rank() == 1, vector_b = b.rank() == 1;
  if (vector_a) a = Shape{1, a[0]};
  if (vector_b) b = Shape{b[0], 1};
  if (vector_a && !a_layout.strides.empty()) a_layout.strides.insert(a_layout.strides.begin(), 0);
  if (vector_b && !b_layout.strides.empty()) b_layout.strides.push_back(0);
  const Operand left = MakeOperand(a, a_layout, swap.a && !vector_a);
  const Operand right = MakeOperand(b, b_layout, swap.b && !vector_b);
  if (left.columns != right.rows) return info.Invalid("inner dims must agree, got " + shapes());
  Result<Shape> batch = BroadcastShape(left.batch, right.batch);
  if (!batch.ok()) return info.Invalid("batch dims must broadcast, got " + shapes());
  std::vector<int64_t> dims = batch->dims(), full = dims;
  full.insert(full.end(), {left.rows, right.columns});
  if (!vector_a) dims.push_back(left.rows);
  if (!vector_b) dims.push_back(right.columns);
  const bool laid_out = !c_layout.strides.empty();
  if (laid_out && (vector_a || vector_b)) return info.Refuse("a vector's product is written dense");
  const Operand out = MakeOperand(Shape(std::move(full)), c_layout, false);
  GemmSpec spec{.dtype = dtype, .m = left.rows, .n = right.columns, .k = left.columns,
                .a = left.strides, .b = right.strides, .c = out.strides,
                .a_offset = a_layout.offset, .b_offset = b_layout.offset, .c_offset = c_layout.offset,
                .batch = batch->dims()};
  spec.a_batch = BatchStrides(*batch, left);
  spec.b_batch = BatchStrides(*batch, right);
  spec.c_batch = BatchStrides(*batch, out);
  const bool swapped = laid_out && spec.c.col != 1;
  if (swapped) SwapOperands(spec);
  if (laid_out && spec.c.col != 1) return info.Refuse("an output without a contiguous axis");
  return MatMulShape{std::move(spec), Shape(std::move(dims)), swapped};
}

}  // namespace

Result<MatMulShape> MakeMatMulShape(const KernelInfo& info, DType dtype, Shape a, Shape b, MatMulTransposes swap) {
  return Make(info, dtype, a, b, swap, {}, {}, {});
}

Result<MatMulShape> MakeStridedMatMulShape(const KernelInfo& info, MatMulTransposes swap) {
  return Make(info, info.InputDType(0), info.InputShape(0), info.InputShape(1), swap, info.input(0).layout,
              info.input(1).layout, info.OutputLayout(0));
}

}  // namespace caesura
