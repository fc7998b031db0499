// SPDX-License-Identifier: Apache-2.0
// MatMul, Gemm, and FusedMatMul (ai.caesura): Y = alpha * op(A) op(B) + bias + addend, batched with
// broadcasting, where transA and transB swap the last two dims without a copy. The bias is a row,
// the addend has Y's shape and dtype, which the attribute `dtype` widens to float32. PackedMatMul
// (ai.caesura) is the same with weights B in oneDNN's order
// (graph_transforms/fusion/weight_packing.h), without transB.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_dense.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/kernel.h"
#include "core/ops/gemm/matmul_shape.h"

namespace caesura {
namespace {

Status CreateProduct(KernelInfo& info, MatMulTransposes swap, float alpha = 1.0f,
                     bool packed_b = false) {
  ASSIGN_OR_RETURN(MatMulShape product, MakeProductShape(info, swap, alpha));
  GemmSpec& spec = product.spec;
  spec.packed_b = packed_b;
  if (packed_b && product.swapped)
    return info.Refuse("with packed weights the output's rows are contiguous");
  info.SetOutput(0, spec.c_dtype, std::move(product.output));
  ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info, std::move(spec)));
  info.SetCompute([gemm = std::move(gemm), a = product.swapped ? 1 : 0](KernelContext& context) {
    return gemm.Run(context, context.Input<void>(a), context.Input<void>(1 - a),
                    context.Output<void>(0), context.Input<void>(2), context.Input<void>(3));
  });
  return {};
}

Status CreateMatMul(KernelInfo& info) { return CreateProduct(info, {}); }

Status CreateFusedMatMul(KernelInfo& info) {
  return CreateProduct(info, TransposesOf(info), info.Attr<float>("alpha", 1.0f));
}

Status CreatePackedMatMul(KernelInfo& info) {
  if (info.InputShape(1).rank() != 2) return info.Invalid("packed weights are a matrix");
  return CreateProduct(info, {TransposesOf(info).a, false}, info.Attr<float>("alpha", 1.0f),
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

Status CreateGemm(KernelInfo& info) {
  ASSIGN_OR_RETURN(GemmShape shape, MakeGemmShape(info));
  GemmSpec& spec = shape.product.spec;
  const DType dtype = spec.dtype;
  const int64_t m = spec.m, n = spec.n;
  const MatrixStrides c = shape.c;
  const float beta = shape.beta;
  info.SetOutput(0, dtype, std::move(shape.product.output));
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
                .domain = kCaesuraDomain,
                .types = kNumericTypes,
                .strided_inputs = {0, 1},
                .strided_outputs = {0},
                .create = CreateFusedMatMul});
  registry.Add({.op_type = "FusedMatMul",
                .domain = kCaesuraDomain,
                .types = kHalfTypes,
                .strided_inputs = {0, 1},
                .create = ThroughDenseFloat<CreateFusedMatMul>});
  registry.Add({.op_type = "PackedMatMul",
                .domain = kCaesuraDomain,
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
