// SPDX-License-Identifier: Apache-2.0
#include "core/ops/gemm/matmul_shape.h"

#include <utility>
#include <vector>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

// An operand of MatMul as a stack of matrices.
class Operand {
 public:
  int64_t rows, columns;
  MatrixStrides strides;

  Operand(const Shape& shape, const Layout& layout, bool transpose)
      : rows(shape[shape.rank() - 2]),
        columns(shape[shape.rank() - 1]),
        shape_(shape),
        layout_(layout) {
    strides = {Stride(shape.rank() - 2), Stride(shape.rank() - 1)};
    if (transpose) {
      std::swap(rows, columns);
      std::swap(strides.row, strides.col);
    }
  }

  // Strides over a batch of `rank` dims that this broadcasts to; 0 along those that repeat.
  std::vector<int64_t> BatchStrides(int rank) const {
    const int own = shape_.rank() - 2;
    std::vector<int64_t> out(rank, 0);
    for (int d = 0; d < own; ++d) {
      if (shape_[d] != 1) out[rank - own + d] = Stride(d);
    }
    return out;
  }

 private:
  int64_t Stride(int d) const {
    return layout_.strides.empty() ? shape_.Elements(d + 1, shape_.rank()) : layout_.strides[d];
  }

  const Shape& shape_;
  const Layout& layout_;
};

// A stack of matrices of one element each.
Shape BatchOf(Shape shape) {
  shape[shape.rank() - 2] = shape[shape.rank() - 1] = 1;
  return shape;
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

Result<MatMulShape> Make(const KernelInfo& info, DType dtype, const Shape& given_a,
                         const Shape& given_b, MatMulTransposes swap, const Layout& given_a_layout,
                         const Layout& given_b_layout, const Layout& c_layout) {
  if (given_a.rank() == 0 || given_b.rank() == 0) {
    return info.Invalid("operands of rank 1 or more expected, got a scalar");
  }
  const auto shapes = [&] { return given_a.ToString() + " and " + given_b.ToString(); };
  // A vector is a row on the left and a column on the right.
  const bool vector_a = given_a.rank() == 1, vector_b = given_b.rank() == 1;
  const Shape a = vector_a ? Shape{1, given_a[0]} : given_a,
              b = vector_b ? Shape{given_b[0], 1} : given_b;
  Layout row = vector_a ? given_a_layout : Layout(), column = vector_b ? given_b_layout : Layout();
  if (!row.strides.empty()) row.strides.insert(row.strides.begin(), 0);
  if (!column.strides.empty()) column.strides.push_back(0);
  const Layout &a_layout = vector_a ? row : given_a_layout,
               &b_layout = vector_b ? column : given_b_layout;
  const Operand left(a, a_layout, swap.a && !vector_a), right(b, b_layout, swap.b && !vector_b);
  if (left.columns != right.rows) return info.Invalid("inner dims must agree, got " + shapes());
  Result<Shape> full = BroadcastShape(BatchOf(a), BatchOf(b));
  if (!full.ok()) return info.Invalid("batch dims must broadcast, got " + shapes());
  const int rank = full->rank() - 2;
  (*full)[rank] = left.rows;
  (*full)[rank + 1] = right.columns;
  std::vector<int64_t> dims = full->dims();
  if (vector_a) dims.erase(dims.end() - 2);
  if (vector_b) dims.pop_back();
  const bool laid_out = !c_layout.strides.empty();
  if (laid_out && (vector_a || vector_b)) return info.Refuse("a vector's product is written dense");
  const Operand out(*full, c_layout, false);
  GemmSpec spec{.dtype = dtype,
                .m = left.rows,
                .n = right.columns,
                .k = left.columns,
                .a = left.strides,
                .b = right.strides,
                .c = out.strides,
                .a_offset = a_layout.offset,
                .b_offset = b_layout.offset,
                .c_offset = c_layout.offset};
  spec.a_batch = left.BatchStrides(rank);
  spec.b_batch = right.BatchStrides(rank);
  spec.c_batch = out.BatchStrides(rank);
  spec.batch.assign(full->begin(), full->end() - 2);
  const bool swapped = laid_out && spec.c.col != 1;
  if (swapped) SwapOperands(spec);
  if (laid_out && spec.c.col != 1) return info.Refuse("an output without a contiguous axis");
  return MatMulShape{std::move(spec), Shape(dims), swapped};
}

// Strides of Gemm's C against Y [m, n], or a failure when it does not broadcast to it.
Result<MatrixStrides> StridesOfC(const KernelInfo& info, int64_t m, int64_t n) {
  const Shape& c = info.InputShape(2);
  const int64_t rows = c.rank() < 2 ? 1 : c[0], columns = c.rank() < 1 ? 1 : c[c.rank() - 1];
  if (c.rank() > 2 || (rows != 1 && rows != m) || (columns != 1 && columns != n)) {
    return info.Invalid("C must broadcast to " + Shape{m, n}.ToString() + ", got " + c.ToString());
  }
  return MatrixStrides{rows == 1 ? 0 : columns, columns == 1 ? 0 : 1};
}

}  // namespace

MatMulTransposes TransposesOf(const KernelInfo& info) {
  return {info.Attr<int64_t>("transA", 0) != 0, info.Attr<int64_t>("transB", 0) != 0};
}

Result<MatMulShape> MakeMatMulShape(const KernelInfo& info, DType dtype, Shape a, Shape b,
                                    MatMulTransposes swap) {
  return Make(info, dtype, a, b, swap, {}, {}, {});
}

Result<MatMulShape> MakeStridedMatMulShape(const KernelInfo& info, MatMulTransposes swap) {
  return Make(info, info.InputDType(0), info.InputShape(0), info.InputShape(1), swap,
              info.input(0).layout, info.input(1).layout, info.OutputLayout(0));
}

Result<MatMulShape> MakeProductShape(const KernelInfo& info, MatMulTransposes swap, float alpha) {
  const DType dtype = info.InputDType(0);
  const auto y_dtype = static_cast<DType>(info.Attr<int64_t>("dtype", static_cast<int64_t>(dtype)));
  const bool widens =
      (dtype == DType::kFloat16 || dtype == DType::kBFloat16) && y_dtype == DType::kFloat32;
  if (info.InputDType(1) != dtype) return info.Invalid("operands of one dtype expected");
  if (y_dtype != dtype && !widens)
    return info.Invalid("dtype: expected float32 for products of halves");
  ASSIGN_OR_RETURN(MatMulShape product, MakeStridedMatMulShape(info, swap));
  GemmSpec& spec = product.spec;
  spec.alpha = alpha;
  spec.c_dtype = y_dtype;
  spec.bias = info.HasInput(2);
  spec.addend = info.HasInput(3);
  if ((spec.bias || spec.addend) && !info.OutputLayout(0).dense()) {
    return info.Refuse("with a bias or an addend the output is written dense");
  }
  if (spec.bias &&
      (info.InputShape(2) != Shape{spec.n} || info.InputDType(2) != dtype || alpha != 1.0f)) {
    return info.Invalid("bias: expected " + std::string(DTypeName(dtype)) +
                        Shape{spec.n}.ToString() + " and alpha 1");
  }
  if (spec.addend && (info.InputShape(3) != product.output || info.InputDType(3) != y_dtype)) {
    return info.Invalid("addend: expected " + product.output.ToString() + ", got " +
                        info.InputShape(3).ToString());
  }
  return product;
}

Result<GemmShape> MakeGemmShape(const KernelInfo& info) {
  const Shape &a = info.InputShape(0), &b = info.InputShape(1);
  if (a.rank() != 2 || b.rank() != 2)
    return info.Invalid("matrices expected, got " + a.ToString() + b.ToString());
  GemmShape out;
  ASSIGN_OR_RETURN(out.product, MakeStridedMatMulShape(info, TransposesOf(info)));
  GemmSpec& spec = out.product.spec;
  spec.alpha = info.Attr<float>("alpha", 1.0f);
  out.beta = info.Attr<float>("beta", 1.0f);
  if (info.HasInput(2)) {
    ASSIGN_OR_RETURN(out.c, StridesOfC(info, spec.m, spec.n));
  }
  const bool has_c = info.HasInput(2) && out.beta != 0.0f;
  spec.bias = has_c && out.c.row == 0 && (out.c.col == 1 || spec.n == 1) && spec.alpha == 1.0 &&
              out.beta == 1.0f;
  spec.accumulate = has_c && !spec.bias;
  return out;
}

}  // namespace caesura
