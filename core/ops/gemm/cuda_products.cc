// SPDX-License-Identifier: Apache-2.0
// MatMul, Gemm and FusedMatMul (ai.caesura) by cuBLASLt. A bias is its epilogue; C of Gemm that is
// no plain bias, and the bias that cuBLASLt refuses, is written into the output first.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/cuda_product.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/gemm/matmul_shape.h"

namespace caesura {
namespace {

// Writes factor * c, which repeats along axes of stride 0, into Y [m, n].
class Fill {
 public:
  static Result<Fill> Make(const CudaDevicePtr& device, DType dtype, MatrixStrides c, float factor,
                           int64_t m, int64_t n) {
    const StridedWalk walk = StridedWalk::Make({m, n}, {{c.row, c.col}});
    const std::string source = CudaMacros({{"T_TYPE", CudaStorageType(dtype)},
                                           {"FACTOR", CudaLiteral(dtype, factor)},
                                           {"WALK_NUMBERS", std::to_string(walk.Numbers().size())},
                                           {"OFFSETS", walk.Offsets()}}) +
                               CudaInclude("core/ops/gemm/fill_output.cuh");
    ASSIGN_OR_RETURN(CudaKernel kernel,
                     CudaKernel::Make(device, source, "fill", GridOver(*device, walk.elements)));
    return Fill(std::move(kernel), walk.Numbers(), walk.elements);
  }

  Status Run(const void* c, void* y) const {
    CudaArguments arguments;
    arguments.AddPointer(c);
    arguments.AddPointer(y);
    arguments.Add(&elements_);
    arguments.Add(walk_.data());
    return kernel_.LaunchWith(arguments.addresses());
  }

 private:
  Fill(CudaKernel kernel, std::vector<int64_t> walk, int64_t elements)
      : kernel_(std::move(kernel)), walk_(std::move(walk)), elements_(elements) {}

  CudaKernel kernel_;
  std::vector<int64_t> walk_;
  int64_t elements_;
};

Status CreateProduct(KernelInfo& info, const CudaDevicePtr& device, MatMulTransposes swap,
                     float alpha) {
  ASSIGN_OR_RETURN(MatMulShape product, MakeProductShape(info, swap, alpha));
  info.SetOutput(0, product.spec.c_dtype, std::move(product.output));
  if (product.spec.bias && !CudaProduct::TakesBias(product.spec.dtype))
    return info.Refuse("cuBLASLt adds no bias of float64");
  ASSIGN_OR_RETURN(CudaProduct run, CudaProduct::Create(info, device, std::move(product.spec)));
  info.SetCompute([run = std::move(run), a = product.swapped ? 1 : 0](KernelContext& context) {
    return run.Run(context, context.Input<void>(a), context.Input<void>(1 - a),
                   context.Output<void>(0), context.Input<void>(2), context.Input<void>(3));
  });
  return {};
}

Status CreateMatMul(KernelInfo& info, const CudaDevicePtr& device) {
  return CreateProduct(info, device, {}, 1.0f);
}

Status CreateFusedMatMul(KernelInfo& info, const CudaDevicePtr& device) {
  return CreateProduct(info, device, TransposesOf(info), info.Attr<float>("alpha", 1.0f));
}

Status CreateGemm(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(GemmShape shape, MakeGemmShape(info));
  GemmSpec& spec = shape.product.spec;
  info.SetOutput(0, spec.dtype, std::move(shape.product.output));
  if (spec.bias && !CudaProduct::TakesBias(spec.dtype)) {
    spec.bias = false;
    spec.accumulate = true;
  }
  const bool bias = spec.bias;
  std::optional<Fill> fill;
  if (spec.accumulate) {
    ASSIGN_OR_RETURN(fill, Fill::Make(device, spec.dtype, shape.c, shape.beta, spec.m, spec.n));
  }
  ASSIGN_OR_RETURN(CudaProduct run, CudaProduct::Create(info, device, std::move(spec)));
  info.SetCompute(
      [run = std::move(run), fill = std::move(fill), bias](KernelContext& context) -> Status {
        void* y = context.Output<void>(0);
        if (fill) RETURN_IF_ERROR(fill->Run(context.Input<void>(2), y));
        return run.Run(context, context.Input<void>(0), context.Input<void>(1), y,
                       bias ? context.Input<void>(2) : nullptr, nullptr);
      });
  return {};
}

}  // namespace

void RegisterCudaProducts(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, const char* domain,
                 Status (*create)(KernelInfo&, const CudaDevicePtr&),
                 std::vector<int> strided_outputs) {
    registry.Add({.op_type = op,
                  .domain = domain,
                  .types = kFloatTypes,
                  .strided_inputs = {0, 1},
                  .strided_outputs = std::move(strided_outputs),
                  .pads_rows = true,
                  .create = [=](KernelInfo& info) { return create(info, device); }});
  };
  add("MatMul", "", CreateMatMul, {0});
  add("FusedMatMul", kCaesuraDomain, CreateFusedMatMul, {0});
  add("Gemm", "", CreateGemm, {});
}

}  // namespace caesura
