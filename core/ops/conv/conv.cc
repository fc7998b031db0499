// SPDX-License-Identifier: Apache-2.0
// Conv in one to three spatial dimensions.
#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/conv/conv_engine.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

Status CreateConv(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const ConvGeometry geometry,
                   MakeConvGeometry(info, info.InputShape(0), info.InputShape(1)));
  const bool bias = info.HasInput(2);
  if (bias && info.InputShape(2) != Shape{geometry.outputs}) {
    return info.Invalid("one bias an output channel expected, got " +
                        info.InputShape(2).ToString());
  }
  ASSIGN_OR_RETURN(const Shape y, CheckDims(info, geometry.Dst().dims(), dtype));
  info.SetOutput(0, dtype, y);
  ASSIGN_OR_RETURN(ConvEngine engine,
                   ConvEngine::Make(info, dtype, ConvDirection::kForward, geometry, bias));
  info.SetCompute([bias, engine = std::move(engine)](KernelContext& context) {
    return engine.Run(context, context.Input<void>(0), context.Input<void>(1),
                      bias ? context.Input<void>(2) : nullptr, context.Output<void>(0));
  });
  return {};
}

}  // namespace

void RegisterConv(KernelRegistry& registry) {
  registry.Add({.op_type = "Conv",
                .types = {DType::kFloat32, DType::kFloat64, DType::kBFloat16},
                .create = CreateConv});
  registry.Add({.op_type = "Conv",
                .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateConv>});
}

}  // namespace caesura
