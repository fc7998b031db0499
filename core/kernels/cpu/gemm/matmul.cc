// SPDX-License-Identifier: Apache-2.0
// MatMul, Gemm, and FusedMatMul (ai.caesura): Y = alpha * op(A) op(B) + bias + addend, batched with
// broadcasting, where transA and transB swap the last two dims without a copy. The bias is a row,
// the addend has Y's shape and dtype, which the attribute `dtype` widens to float32. PackedMatMul
// (ai.caesura) is the same with weights B in oneDNN's order (graph_transforms/weight_packing.h),
// without transB.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/adapters/through_dense.h"
#include "core/kernels/cpu/adapters/through_float.h"
#include "core/kernels/cpu/gemm/gemm.h"
#include "core/kernels/cpu/gemm/kernel_list.h"
#include "core/kernels/cpu/simd/convert.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/matmul_shape.h"

namespace caesura {
namespace {

Status CreateProduct(KernelInfo& info, bool trans_a, bool trans_b, float alpha = 1.0f,
                     bool packed_b = false) {
  const DType dtype = info.InputDType(0);
  const auto y_dtype = static_cast<DType>(info.Attr<int64_t>("dtype", static_cast<int64_t>(dtype)));
  const bool widens =
      (dtype == DType::kFloat16 || dtype == DType::kBFloat16) && y_dtype == DType::kFloat32;
  if (info.InputDType(1) != dtype) return info.Invalid("operands of one dtype expected");
  if (y_dtype != dtype && !widens)
    return info.Invalid("dtype: expected float32 for products of halves");
  ASSIGN_OR_RETURN(MatMulShape product, MakeStridedMatMulShape(info, {trans_a, trans_b}));
  GemmSpec& spec = product.spec;
  spec.alpha = alpha;
  spec.c_dtype = y_dtype;
  spec.bias = info.HasInput(2);
  spec.addend = info.HasInput(3);
  spec.packed_b = packed_b;
  if (packed_b && product.swapped)
    return info.Refuse("with packed weights the output's rows are contiguous");
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
  info.SetOutput(0, y_dtype, std::move(product.output));
  ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info, std::move(spec)));
  info.SetCompute([gemm = std::move(gemm), a = product.swapped ? 1 : 0](KernelContext& context) {
    return gemm.Run(context, context.Input<void>(a), context.Input<void>(1 - a),
                    context.Output<void>(0), context.Input<void>(2), context.Input<void>(3));
  });
  return {};
}

Status CreateMatMul(KernelInfo& info) { return CreateProduct(info, false, false); }

Status CreateFusedMatMul(KernelInfo& info) {
  return CreateProduct(info, info.Attr<int64_t>("transA", 0) != 0,
                       info.Attr<int64_t>("transB", 0) != 0, info.Attr<float>("alpha", 1.0f));
}

Status CreatePackedMatMul(KernelInfo& info) {
  if (info.InputShape(1).rank() != 2) return info.Invalid("packed weights are a matrix");
  return CreateProduct(info, info.Attr<int64_t>("transA", 0) != 0, false,
                       info.Attr<float>("alpha", 1.0f),
                       /*packed_b=*/true);
}

// Y[m, n] = beta * C, where C's strides are 0 along broadcast axes.
template <typename T>
void FillFromC(const T* c, MatrixStrides strides, float beta, int64_t m, int64_t n, T* y) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const T v = c[i * strides.row + j * strides.col];
      y[i * n + j] =
          beta == 1.0f
              ? v
              : ConvertElement<T>(static_cast<double>(beta) * static_cast<Accumulator<T>>(v));
    }
  }
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

Status CreateGemm(KernelInfo& info) {
  const Shape &a = info.InputShape(0), &b = info.InputShape(1);
  if (a.rank() != 2 || b.rank() != 2)
    return info.Invalid("matrices expected, got " + a.ToString() + b.ToString());
  const DType dtype = info.InputDType(0);
  const MatMulTransposes transposes{info.Attr<int64_t>("transA", 0) != 0,
                                    info.Attr<int64_t>("transB", 0) != 0};
  ASSIGN_OR_RETURN(MatMulShape product, MakeStridedMatMulShape(info, transposes));
  GemmSpec& spec = product.spec;
  const int64_t m = spec.m, n = spec.n;
  const float alpha = info.Attr<float>("alpha", 1.0f), beta = info.Attr<float>("beta", 1.0f);
  info.SetOutput(0, dtype, Shape{m, n});
  spec.alpha = alpha;
  MatrixStrides c;
  if (info.HasInput(2)) {
    ASSIGN_OR_RETURN(c, StridesOfC(info, m, n));
  }
  const bool has_c = info.HasInput(2) && beta != 0.0f;
  spec.bias = has_c && c.row == 0 && (c.col == 1 || n == 1) && alpha == 1.0f && beta == 1.0f;
  spec.accumulate = has_c && !spec.bias;
  const bool bias = spec.bias, accumulate = spec.accumulate;
  ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info, std::move(spec)));
  void (*fill)(const void*, MatrixStrides, float, int64_t, int64_t, void*) = nullptr;
  DispatchNumeric(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill = [](const void* c, MatrixStrides strides, float beta, int64_t m, int64_t n, void* y) {
      FillFromC(static_cast<const T*>(c), strides, beta, m, n, static_cast<T*>(y));
    };
  });
  info.SetCompute([=, gemm = std::move(gemm)](KernelContext& context) {
    void* y = context.Output<void>(0);
    if (accumulate) fill(context.Input<void>(2), c, beta, m, n, y);
    return gemm.Run(context, context.Input<void>(0), context.Input<void>(1), y,
                    bias ? context.Input<void>(2) : nullptr);
  });
  return {};
}

// For halves that oneDNN does not multiply here.
template <KernelFactory factory>
Status ThroughDenseFloat(KernelInfo& info) {
  return CreateThroughDense(info, ThroughFloat<factory>);
}

constexpr DTypeSet kHalfTypes = {DType::kFloat16, DType::kBFloat16};

}  // namespace

void RegisterMatMul(KernelRegistry& registry) {
  registry.Add({.op_type = "MatMul",
                .types = kNumericTypes,
                .strided_inputs = {0, 1},
                .strided_outputs = {0},
                .create = CreateMatMul});
  registry.Add({.op_type = "MatMul",
                .types = kHalfTypes,
                .strided_inputs = {0, 1},
                .create = ThroughDenseFloat<CreateMatMul>});
  registry.Add({.op_type = "FusedMatMul",
                .domain = "ai.caesura",
                .types = kNumericTypes,
                .strided_inputs = {0, 1},
                .strided_outputs = {0},
                .create = CreateFusedMatMul});
  registry.Add({.op_type = "FusedMatMul",
                .domain = "ai.caesura",
                .types = kHalfTypes,
                .strided_inputs = {0, 1},
                .create = ThroughDenseFloat<CreateFusedMatMul>});
  registry.Add({.op_type = "PackedMatMul",
                .domain = "ai.caesura",
                .types = {DType::kFloat32},
                .strided_inputs = {0},
                .strided_outputs = {0},
                .create = CreatePackedMatMul});
  registry.Add(
      {.op_type = "Gemm", .types = kNumericTypes, .strided_inputs = {0, 1}, .create = CreateGemm});
  registry.Add({.op_type = "Gemm",
                .types = kHalfTypes,
                .strided_inputs = {0, 1},
                .create = ThroughDenseFloat<CreateGemm>});
}

}  // namespace caesura
