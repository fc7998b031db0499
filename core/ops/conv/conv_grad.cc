// SPDX-License-Identifier: Apache-2.0
// ConvGrad and ConvTransposeGrad (dY, X, W) -> dX, dW, dB. With Y = conv(X, W):
//   dX = the transposed convolution of dY with W, dW = the correlation of X with dY, dB = sum of
//   dY.
// For Y = conv_transpose(X, W) the roles of X and dY swap.
#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/ops/conv/conv_engine.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/channel_norm.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// Sets the outputs dX, dW, dB; dB has one element for each of dY's channels.
Status SetGradientOutputs(KernelInfo& info, const Shape& y) {
  if (info.InputShape(0) != y) {
    return info.Invalid("dY of shape " + y.ToString() + " expected, got " +
                        info.InputShape(0).ToString());
  }
  for (int i : {1, 2}) {
    if (info.InputDType(i) != info.InputDType(0))
      return info.Invalid("inputs of one dtype expected");
  }
  info.SetOutput(0, info.InputDType(0), info.InputShape(1));
  info.SetOutput(1, info.InputDType(0), info.InputShape(2));
  info.SetOutput(2, info.InputDType(0), Shape{y[1]});
  return {};
}

// One engine for each of dX and dW, where it is wanted.
struct Engines {
  ConvEngine dx, dw;
  bool has_dx, has_dw, has_db;
};

Result<Engines> MakeEngines(KernelInfo& info, const ConvGeometry& g, ConvDirection dx_direction) {
  Engines out{{}, {}, info.HasOutput(0), info.HasOutput(1), info.HasOutput(2)};
  if (out.has_dx) {
    ASSIGN_OR_RETURN(out.dx, ConvEngine::Make(info, info.InputDType(0), dx_direction, g));
  }
  if (out.has_dw) {
    ASSIGN_OR_RETURN(
        out.dw, ConvEngine::Make(info, info.InputDType(0), ConvDirection::kBackwardWeights, g));
  }
  return out;
}

Status CreateConvGrad(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const ConvGeometry g,
                   MakeConvGeometry(info, info.InputShape(1), info.InputShape(2)));
  RETURN_IF_ERROR(SetGradientOutputs(info, g.Dst()));
  ASSIGN_OR_RETURN(Engines engines, MakeEngines(info, g, ConvDirection::kBackwardData));
  const ChannelView dy_view{g.batch, g.outputs, g.window.OutputCount()};
  const int threads = info.threads();
  info.SetCompute([=, e = std::move(engines)](KernelContext& context) {
    const void *dy = context.Input<void>(0), *x = context.Input<void>(1),
               *w = context.Input<void>(2);
    if (e.has_dx) RETURN_IF_ERROR(e.dx.Run(context, dy, w, nullptr, context.Output<void>(0)));
    if (e.has_dw) RETURN_IF_ERROR(e.dw.Run(context, x, dy, nullptr, context.Output<void>(1)));
    if (e.has_db) ChannelSums(dtype, threads, dy_view, dy, context.Output<void>(2));
    return Status();
  });
  return {};
}

Status CreateConvTransposeGrad(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const ConvGeometry g,
                   MakeConvTransposeGeometry(info, info.InputShape(1), info.InputShape(2)));
  RETURN_IF_ERROR(SetGradientOutputs(info, g.Src()));
  ASSIGN_OR_RETURN(Engines engines, MakeEngines(info, g, ConvDirection::kForward));
  const ChannelView dy_view{g.batch, g.channels, g.window.InputCount()};
  const int threads = info.threads();
  info.SetCompute([=, e = std::move(engines)](KernelContext& context) {
    const void *dy = context.Input<void>(0), *x = context.Input<void>(1),
               *w = context.Input<void>(2);
    if (e.has_dx) RETURN_IF_ERROR(e.dx.Run(context, dy, w, nullptr, context.Output<void>(0)));
    if (e.has_dw) RETURN_IF_ERROR(e.dw.Run(context, dy, x, nullptr, context.Output<void>(1)));
    if (e.has_db) ChannelSums(dtype, threads, dy_view, dy, context.Output<void>(2));
    return Status();
  });
  return {};
}

}  // namespace

void RegisterConvGrad(KernelRegistry& registry) {
  constexpr DTypeSet kDirect = {DType::kFloat32, DType::kFloat64, DType::kBFloat16};
  constexpr DTypeSet kHalf = {DType::kFloat16, DType::kBFloat16};
  registry.Add({.op_type = "ConvGrad",
                .domain = kCaesuraDomain,
                .types = kDirect,
                .create = CreateConvGrad});
  registry.Add({.op_type = "ConvGrad",
                .domain = kCaesuraDomain,
                .types = kHalf,
                .create = ThroughFloat<CreateConvGrad>});
  registry.Add({.op_type = "ConvTransposeGrad",
                .domain = kCaesuraDomain,
                .types = kDirect,
                .create = CreateConvTransposeGrad});
  registry.Add({.op_type = "ConvTransposeGrad",
                .domain = kCaesuraDomain,
                .types = kHalf,
                .create = ThroughFloat<CreateConvTransposeGrad>});
}

}  // namespace caesura
