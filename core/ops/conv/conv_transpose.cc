// SPDX-License-Identifier: Apache-2.0
// ConvTranspose: the gradient of a convolution by its source, plus a bias.
#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/ops/conv/conv_engine.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

template <typename T>
void AddChannels(int threads, int64_t rows, int64_t channels, int64_t positions, const T* bias,
                 T* y) {
  ParallelFor(threads, rows, 1 + kParallelGrain / (positions + 1),
              [=](int64_t first, int64_t last) {
                for (int64_t row = first; row < last; ++row) {
                  const Accumulator<T> b = bias[row % channels];
                  for (int64_t i = 0; i < positions; ++i)
                    y[row * positions + i] = T(y[row * positions + i] + b);
                }
              });
}

Status CreateConvTranspose(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const ConvGeometry g,
                   MakeConvTransposeGeometry(info, info.InputShape(0), info.InputShape(1)));
  const bool bias = info.HasInput(2);
  if (bias && info.InputShape(2) != Shape{g.channels}) {
    return info.Invalid("one bias an output channel expected, got " +
                        info.InputShape(2).ToString());
  }
  ASSIGN_OR_RETURN(const Shape y, CheckDims(info, g.Src().dims(), dtype));
  info.SetOutput(0, dtype, y);
  ASSIGN_OR_RETURN(ConvEngine engine,
                   ConvEngine::Make(info, dtype, ConvDirection::kBackwardData, g));
  const int64_t channels = g.channels, positions = g.window.InputCount();
  const int64_t rows = positions == 0 ? 0 : g.batch * channels;
  const int threads = info.threads();
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=, engine = std::move(engine)](KernelContext& context) {
      T* out = context.Output<T>(0);
      RETURN_IF_ERROR(engine.Run(context, context.Input<T>(0), context.Input<T>(1), nullptr, out));
      if (bias) AddChannels(threads, rows, channels, positions, context.Input<T>(2), out);
      return Status();
    });
  });
  return {};
}

}  // namespace

void RegisterConvTranspose(KernelRegistry& registry) {
  registry.Add({.op_type = "ConvTranspose",
                .types = {DType::kFloat32, DType::kFloat64, DType::kBFloat16},
                .create = CreateConvTranspose});
  registry.Add({.op_type = "ConvTranspose",
                .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateConvTranspose>});
}

}  // namespace caesura
