// SPDX-License-Identifier: Apache-2.0
// DeformConv in one to three spatial dimensions: sampled columns, then a matrix product a group.
#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/conv/deform_window.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

template <typename T>
void SetDeformConv(KernelInfo& info, const DeformGeometry& g, Gemm gemm) {
  const size_t scratch = info.BookScratch(g.column_count() * sizeof(T));
  const bool has_bias = info.HasInput(3), has_mask = info.HasInput(4);
  const int64_t groups = g.conv.groups, positions = g.positions();
  info.SetCompute([=, gemm = std::move(gemm)](KernelContext& context) {
    const T *x = context.Input<T>(0), *w = context.Input<T>(1), *offset = context.Input<T>(2);
    const T* bias = has_bias ? context.Input<T>(3) : nullptr;
    const T* mask = has_mask ? context.Input<T>(4) : nullptr;
    T *y = context.Output<T>(0), *columns = context.Scratch<T>(scratch);
    const int64_t w_step = g.conv.outputs / groups * (g.conv.channels / groups) * g.taps();
    for (int64_t n = 0; n < g.conv.batch; ++n) {
      T* image = y + n * g.conv.outputs * positions;
      DeformColumns(g, x + n * g.x_step(), offset + n * g.offset_step(),
                    mask == nullptr ? nullptr : mask + n * g.mask_step(), columns);
      for (int64_t group = 0; group < groups; ++group) {
        RETURN_IF_ERROR(gemm.Run(context, w + group * w_step,
                                 columns + group * (g.column_count() / groups),
                                 image + group * (g.conv.outputs / groups) * positions));
      }
      for (int64_t c = 0; bias != nullptr && c < g.conv.outputs; ++c) {
        for (int64_t i = 0; i < positions; ++i) image[c * positions + i] += bias[c];
      }
    }
    return Status();
  });
}

Status CreateDeformConv(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const DeformGeometry g, MakeDeformGeometry(info, 0));
  if (info.HasInput(3) && info.InputShape(3) != Shape{g.conv.outputs}) {
    return info.Invalid("one bias an output channel expected, got " +
                        info.InputShape(3).ToString());
  }
  ASSIGN_OR_RETURN(const Shape y, CheckDims(info, g.conv.Dst().dims(), dtype));
  info.SetOutput(0, dtype, y);
  const int64_t taps = g.conv.channels / g.conv.groups * g.taps(), positions = g.positions();
  ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info, {.dtype = dtype,
                                                  .m = g.conv.outputs / g.conv.groups,
                                                  .n = positions,
                                                  .k = taps,
                                                  .a = RowMajor(taps),
                                                  .b = RowMajor(positions),
                                                  .c = RowMajor(positions)}));
  if (dtype == DType::kFloat64) {
    SetDeformConv<double>(info, g, std::move(gemm));
  } else {
    SetDeformConv<float>(info, g, std::move(gemm));
  }
  return {};
}

}  // namespace

void RegisterConvDeform(KernelRegistry& registry) {
  registry.Add({.op_type = "DeformConv",
                .types = {DType::kFloat32, DType::kFloat64},
                .create = CreateDeformConv});
  registry.Add({.op_type = "DeformConv",
                .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateDeformConv>});
}

}  // namespace caesura
