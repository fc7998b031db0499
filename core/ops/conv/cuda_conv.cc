// SPDX-License-Identifier: Apache-2.0
// Conv and ConvGrad (ai.caesura) by cuDNN: a plan for each of Y, dX and dW. The bias, and its
// gradient, by kernels of their own.
#include "core/kernels/cuda/booked_plan.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/conv/cuda_conv_graph.h"
#include "core/kernels/cuda/element_source.h"
#include "core/cuda/cuda_source.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

std::string Source(DType dtype) {
  return CudaMacros({{"S_TYPE", CudaStorageType(dtype)}, {"C_TYPE", CudaComputeType(dtype)}}) +
         CudaInclude("core/ops/conv/conv_bias.cuh");
}

Result<BookedPlan> Plan(KernelInfo& info, const CudaDevicePtr& device, ConvDirection direction,
                        const ConvGeometry& g) {
  Result<BookedPlan> plan =
      BookedPlan::Book(info, device, ConvGraph(*device->dnn(), info.InputDType(0), direction, g));
  if (!plan.ok()) return info.Refuse(plan.status().message());
  return plan;
}

Status CheckSizes(const KernelInfo& info, const ConvGeometry& g) {
  if (g.window.rank() > 3) return info.Refuse("on CUDA it has at most three spatial axes");
  if (g.Src().elements() == 0 || g.Weights().elements() == 0 || g.Dst().elements() == 0)
    return info.Refuse("a convolution of nothing");
  return {};
}

void* Address(const void* input) { return const_cast<void*>(input); }

Status CreateConv(KernelInfo& info, const CudaDevicePtr& device) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const ConvGeometry g,
                   MakeConvGeometry(info, info.InputShape(0), info.InputShape(1)));
  RETURN_IF_ERROR(CheckSizes(info, g));
  const bool bias = info.HasInput(2);
  if (bias && info.InputShape(2) != Shape{g.outputs}) {
    return info.Invalid("one bias an output channel expected, got " +
                        info.InputShape(2).ToString());
  }
  ASSIGN_OR_RETURN(const Shape y, CheckDims(info, g.Dst().dims(), dtype));
  const int64_t elements = y.elements();
  info.SetOutput(0, dtype, y);
  ASSIGN_OR_RETURN(const BookedPlan plan, Plan(info, device, ConvDirection::kForward, g));
  ASSIGN_OR_RETURN(const CudaKernel add, CudaKernel::Make(device, Source(dtype), "add_bias",
                                                          GridOver(*device, elements)));
  info.SetCompute([=](KernelContext& context) -> Status {
    void* out = context.Output<void>(0);
    RETURN_IF_ERROR(
        plan.Run(context, {Address(context.Input<void>(0)), Address(context.Input<void>(1)), out}));
    if (!bias) return {};
    return add.Launch(context.Input<void>(2), out, elements, g.outputs, g.window.OutputCount());
  });
  return {};
}

// ConvGrad (dY, X, W) -> dX, dW, dB.
Status CreateConvGrad(KernelInfo& info, const CudaDevicePtr& device) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const ConvGeometry g,
                   MakeConvGeometry(info, info.InputShape(1), info.InputShape(2)));
  RETURN_IF_ERROR(CheckSizes(info, g));
  if (info.InputShape(0) != g.Dst()) {
    return info.Invalid("dY of shape " + g.Dst().ToString() + " expected, got " +
                        info.InputShape(0).ToString());
  }
  info.SetOutput(0, dtype, info.InputShape(1));
  info.SetOutput(1, dtype, info.InputShape(2));
  info.SetOutput(2, dtype, Shape{g.outputs});
  std::optional<BookedPlan> dx, dw;
  if (info.HasOutput(0)) {
    ASSIGN_OR_RETURN(dx, Plan(info, device, ConvDirection::kBackwardData, g));
  }
  if (info.HasOutput(1)) {
    ASSIGN_OR_RETURN(dw, Plan(info, device, ConvDirection::kBackwardWeights, g));
  }
  const bool has_db = info.HasOutput(2);
  ASSIGN_OR_RETURN(const CudaKernel db, CudaKernel::Make(device, Source(dtype), "bias_gradient",
                                                         {static_cast<unsigned>(g.outputs), 256}));
  info.SetCompute([=](KernelContext& context) -> Status {
    void *dy = Address(context.Input<void>(0)), *x = Address(context.Input<void>(1)),
         *w = Address(context.Input<void>(2));
    if (dx) RETURN_IF_ERROR(dx->Run(context, {context.Output<void>(0), w, dy}));
    if (dw) RETURN_IF_ERROR(dw->Run(context, {x, context.Output<void>(1), dy}));
    if (!has_db) return {};
    return db.Launch(dy, context.Output<void>(2), g.batch, g.outputs, g.window.OutputCount());
  });
  return {};
}

}  // namespace

void RegisterCudaConv(KernelRegistry& registry, const CudaDevicePtr& device) {
  if (device->dnn() == nullptr) return;
  const DTypeSet types = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  registry.Add({.op_type = "Conv", .types = types, .create = [device](KernelInfo& info) {
                  return CreateConv(info, device);
                }});
  registry.Add({.op_type = "ConvGrad",
                .domain = kCaesuraDomain,
                .types = types,
                .create = [device](KernelInfo& info) { return CreateConvGrad(info, device); }});
}

}  // namespace caesura
