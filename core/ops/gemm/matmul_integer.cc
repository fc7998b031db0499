// SPDX-License-Identifier: Apache-2.0
// MatMulInteger and QLinearMatMul: operands are shifted by their zero points into int32,
// multiplied, and for the latter scaled and rounded back to 8 bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/range_quantizer.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/ops/gemm/matmul_shape.h"

namespace caesura {
namespace {

constexpr DTypeSet kByteTypes = {DType::kInt8, DType::kUInt8};

// Spreads a scale or a zero point over matrices [count, rows, columns]: strides are 0 along
// axes it lacks.
struct Spread {
  int64_t matrix = 0, row = 0, column = 0;
};

// One for all, one a row (or column), or one a row (or column) of each matrix.
Result<Spread> MakeSpread(const KernelInfo& info, int input, int64_t matrices, int64_t lines,
                          bool along_rows) {
  Spread out;
  if (!info.HasInput(input)) return out;
  const int64_t count = info.InputShape(input).elements();
  if (count == 1) return out;
  if (count != lines && count != matrices * lines) {
    return info.Invalid("input " + std::to_string(input) + " must have 1, " +
                        std::to_string(lines) + " or " + std::to_string(matrices * lines) +
                        " elements, got " + std::to_string(count));
  }
  (along_rows ? out.row : out.column) = 1;
  if (count != lines) out.matrix = lines;
  return out;
}

// An 8-bit operand: where it is, its matrices, and how to read it less its zero point as int32.
struct IntegerOperand {
  int input, zero_input;  // the latter is -1 where there is none
  int64_t matrices, rows, columns;
  Spread zero;
  size_t wide;  // scratch
  DType dtype;
};

Result<IntegerOperand> MakeOperand(KernelInfo& info, int input, int zero_input, bool along_rows) {
  const Shape& shape = info.InputShape(input);
  IntegerOperand out{
      input, info.HasInput(zero_input) ? zero_input : -1, 1, 1, 1, {}, 0, info.InputDType(input)};
  if (!kByteTypes.Contains(out.dtype))
    return info.Refuse(std::string("no integer product of ") + DTypeName(out.dtype));
  if (info.HasInput(zero_input) && info.InputDType(zero_input) != out.dtype) {
    return info.Invalid("a zero point must have its operand's dtype");
  }
  const int rank = shape.rank();
  if (rank >= 2) {
    out.matrices = shape.Elements(0, rank - 2);
    out.rows = shape[rank - 2];
    out.columns = shape[rank - 1];
  } else {
    (along_rows ? out.columns : out.rows) = shape.elements();
  }
  ASSIGN_OR_RETURN(out.zero, MakeSpread(info, zero_input, out.matrices,
                                        along_rows ? out.rows : out.columns, along_rows));
  out.wide = info.BookScratch(shape.elements() * sizeof(int32_t));
  return out;
}

template <typename T>
void WidenAs(const IntegerOperand& o, const T* x, const T* zero, int32_t* wide) {
  if (o.rows == 0 || o.columns == 0)
    return;  // there may be any number of matrices without elements
  for (int64_t m = 0; m < o.matrices; ++m) {
    for (int64_t r = 0; r < o.rows; ++r) {
      const T* line_zero = zero == nullptr ? nullptr : zero + m * o.zero.matrix + r * o.zero.row;
      for (int64_t c = 0; c < o.columns; ++c) {
        *wide++ =
            int32_t{*x++} - (line_zero == nullptr ? 0 : int32_t{line_zero[c * o.zero.column]});
      }
    }
  }
}

int32_t* Widen(const IntegerOperand& o, KernelContext& context) {
  int32_t* wide = context.Scratch<int32_t>(o.wide);
  const void* zero = o.zero_input < 0 ? nullptr : context.Input<void>(o.zero_input);
  if (o.dtype == DType::kInt8) {
    WidenAs(o, context.Input<int8_t>(o.input), static_cast<const int8_t*>(zero), wide);
  } else {
    WidenAs(o, context.Input<uint8_t>(o.input), static_cast<const uint8_t*>(zero), wide);
  }
  return wide;
}

Status CreateMatMulInteger(KernelInfo& info) {
  ASSIGN_OR_RETURN(const IntegerOperand a, MakeOperand(info, 0, 2, true));
  ASSIGN_OR_RETURN(const IntegerOperand b, MakeOperand(info, 1, 3, false));
  ASSIGN_OR_RETURN(MatMulShape product,
                   MakeMatMulShape(info, DType::kInt32, info.InputShape(0), info.InputShape(1)));
  info.SetOutput(0, DType::kInt32, std::move(product.output));
  ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info, std::move(product.spec)));
  info.SetCompute([=, gemm = std::move(gemm)](KernelContext& context) {
    return gemm.Run(context, Widen(a, context), Widen(b, context), context.Output<void>(0));
  });
  return {};
}

// Reads element i of a float tensor of any width.
float ReadScale(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::kFloat16: return static_cast<const Float16*>(data)[i];
    case DType::kBFloat16: return static_cast<const BFloat16*>(data)[i];
    default: return static_cast<const float*>(data)[i];
  }
}

// Turns int32 sums into 8-bit results.
struct Requantize {
  int64_t matrices, rows, columns;
  DType scale_type;
  Spread a_scale, b_scale, y_scale, y_zero;
};

template <typename T>
void Quantize(const Requantize& q, const int32_t* sums, KernelContext& context, T* y) {
  const void *a_scale = context.Input<void>(1), *b_scale = context.Input<void>(4),
             *y_scale = context.Input<void>(6);
  const T* zero = context.Input<T>(7);
  auto at = [](const Spread& s, int64_t m, int64_t r, int64_t c) {
    return m * s.matrix + r * s.row + c * s.column;
  };
  if (q.rows == 0 || q.columns == 0) return;
  for (int64_t m = 0; m < q.matrices; ++m) {
    for (int64_t r = 0; r < q.rows; ++r) {
      for (int64_t c = 0; c < q.columns; ++c) {
        const float scale = ReadScale(q.scale_type, a_scale, at(q.a_scale, m, r, c)) *
                            ReadScale(q.scale_type, b_scale, at(q.b_scale, m, r, c)) /
                            ReadScale(q.scale_type, y_scale, at(q.y_scale, m, r, c));
        const float value =
            std::nearbyintf(scale * static_cast<float>(*sums++)) + zero[at(q.y_zero, m, r, c)];
        *y++ = Saturate<T>(value);
      }
    }
  }
}

Status CreateQLinearMatMul(KernelInfo& info) {
  ASSIGN_OR_RETURN(const IntegerOperand a, MakeOperand(info, 0, 2, true));
  ASSIGN_OR_RETURN(const IntegerOperand b, MakeOperand(info, 3, 5, false));
  ASSIGN_OR_RETURN(MatMulShape product,
                   MakeMatMulShape(info, DType::kInt32, info.InputShape(0), info.InputShape(3)));
  const DType y_type = info.InputDType(7), scale_type = info.InputDType(1);
  if (!kByteTypes.Contains(y_type))
    return info.Refuse(std::string("no output of ") + DTypeName(y_type));
  if (info.InputDType(4) != scale_type || info.InputDType(6) != scale_type ||
      !kFloatTypes.Contains(scale_type) || scale_type == DType::kFloat64) {
    return info.Invalid("scales must have one float dtype");
  }
  const GemmSpec& s = product.spec;
  Requantize q{1, s.m, s.n, scale_type, {}, {}, {}, {}};
  for (int64_t dim : s.batch) q.matrices *= dim;
  ASSIGN_OR_RETURN(q.a_scale, MakeSpread(info, 1, q.matrices, q.rows, true));
  ASSIGN_OR_RETURN(q.b_scale, MakeSpread(info, 4, q.matrices, q.columns, false));
  ASSIGN_OR_RETURN(q.y_scale, MakeSpread(info, 6, q.matrices, q.rows, true));
  ASSIGN_OR_RETURN(q.y_zero, MakeSpread(info, 7, q.matrices, q.rows, true));
  const size_t sums = info.BookScratch(product.output.elements() * sizeof(int32_t));
  info.SetOutput(0, y_type, std::move(product.output));
  ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info, std::move(product.spec)));
  info.SetCompute([=, gemm = std::move(gemm)](KernelContext& context) {
    int32_t* wide = context.Scratch<int32_t>(sums);
    RETURN_IF_ERROR(gemm.Run(context, Widen(a, context), Widen(b, context), wide));
    if (y_type == DType::kInt8) {
      Quantize(q, wide, context, context.Output<int8_t>(0));
    } else {
      Quantize(q, wide, context, context.Output<uint8_t>(0));
    }
    return Status();
  });
  return {};
}

}  // namespace

void RegisterMatMulInteger(KernelRegistry& registry) {
  registry.Add({.op_type = "MatMulInteger", .types = kByteTypes, .create = CreateMatMulInteger});
  registry.Add({.op_type = "QLinearMatMul", .types = kByteTypes, .create = CreateQLinearMatMul});
}

}  // namespace caesura
