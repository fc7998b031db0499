// SPDX-License-Identifier: Apache-2.0
// DeformConvGrad (dY, X, W, offset, B?, mask?) -> dX, dW, doffset, dB, dmask. With Y = W columns,
//     where
// columns = mask * sample(X, offset):
//   dcolumns = W^T dY, dW = dY columns^T; dmask, dX and doffset follow from dcolumns by the
//       sample's corners.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/ops/conv/deform_window.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/channel_norm.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// One image's tensors; null where absent or not wanted.
template <typename T>
struct Image {
  const T *x, *offset, *mask;
  T *dx, *doffset, *dmask;
};

// Spreads dcolumns [channels, taps, positions] of one image to dX, doffset and dmask.
template <typename T>
void SpreadColumns(const DeformGeometry& g, const T* d_columns, const Image<T>& m) {
  const int64_t taps = g.taps(), positions = g.positions(),
                share = g.conv.channels / g.offset_groups;
  const int64_t image = g.conv.window.InputCount();
  const int axes = g.axes();
  for (int64_t row = 0; row < g.offset_groups * taps; ++row) {
    const int64_t first = row / taps * share, k = row % taps;
    for (int64_t o = 0; o < positions; ++o) {
      const DeformSample<T> sample = SampleAt(g, k, o, m.offset + row * axes * positions);
      const T scale = m.mask == nullptr ? T(1) : m.mask[row * positions + o];
      T by_mask = 0, by_place[kMaxDeformAxes] = {};
      for (int64_t c = first; c < first + share; ++c) {
        const T d = d_columns[(c * taps + k) * positions + o];
        for (int s = 0; s < sample.count; ++s) {
          const int64_t at = c * image + sample.at[s];
          by_mask += d * sample.weight[s] * m.x[at];
          for (int a = 0; a < axes; ++a) by_place[a] += d * scale * sample.slope[s][a] * m.x[at];
          if (m.dx != nullptr) m.dx[at] += d * scale * sample.weight[s];
        }
      }
      if (m.dmask != nullptr) m.dmask[row * positions + o] = by_mask;
      if (m.doffset == nullptr) continue;
      for (int a = 0; a < axes; ++a) m.doffset[(row * axes + a) * positions + o] = by_place[a];
    }
  }
}

struct DeformGrad {
  DeformGeometry g;
  Gemm d_columns, d_weights;
  size_t columns;
  bool has_mask, wanted[5];
};

template <typename T>
Status RunDeformGrad(const DeformGrad& k, int threads, KernelContext& context) {
  const DeformGeometry& g = k.g;
  const int64_t groups = g.conv.groups, positions = g.positions();
  const int64_t y_step = g.conv.outputs * positions,
                w_count = g.conv.outputs * (g.conv.channels / groups) * g.taps();
  const T *dy = context.Input<T>(0), *x = context.Input<T>(1), *w = context.Input<T>(2),
          *offset = context.Input<T>(3);
  const T* mask = k.has_mask ? context.Input<T>(5) : nullptr;
  auto output = [&](int i) { return k.wanted[i] ? context.Output<T>(i) : nullptr; };
  T *dx = output(0), *dw = output(1), *doffset = output(2), *db = output(3), *dmask = output(4);
  T* columns = context.Scratch<T>(k.columns);
  if (dx != nullptr) std::fill_n(dx, g.conv.batch * g.x_step(), T(0));
  if (dw != nullptr) std::fill_n(dw, w_count, T(0));
  for (int64_t n = 0; n < g.conv.batch; ++n) {
    auto at = [n](auto* base, int64_t step) { return base == nullptr ? nullptr : base + n * step; };
    const Image<T> image{
        at(x, g.x_step()),  at(offset, g.offset_step()),  at(mask, g.mask_step()),
        at(dx, g.x_step()), at(doffset, g.offset_step()), at(dmask, g.mask_step())};
    auto each_group = [&](auto fn) -> Status {
      for (int64_t i = 0; i < groups; ++i) {
        RETURN_IF_ERROR(fn(dy + n * y_step + i * (y_step / groups), i * (w_count / groups),
                           columns + i * (g.column_count() / groups)));
      }
      return {};
    };
    if (dw != nullptr) {
      DeformColumns(g, image.x, image.offset, image.mask, columns);
      RETURN_IF_ERROR(each_group([&](const T* part, int64_t weights, const T* block) {
        return k.d_weights.Run(context, part, block, dw + weights);
      }));
    }
    if (dx == nullptr && doffset == nullptr && dmask == nullptr) continue;
    RETURN_IF_ERROR(each_group([&](const T* part, int64_t weights, T* block) {
      return k.d_columns.Run(context, w + weights, part, block);
    }));
    SpreadColumns(g, columns, image);
  }
  if (db != nullptr)
    ChannelSums(kDTypeOf<T>, threads, {g.conv.batch, g.conv.outputs, positions}, dy, db);
  return {};
}

Status CreateDeformConvGrad(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  DeformGrad k{};
  ASSIGN_OR_RETURN(k.g, MakeDeformGeometry(info, 1));
  const ConvGeometry& conv = k.g.conv;
  if (info.InputShape(0) != conv.Dst())
    return info.Invalid("dY of shape " + conv.Dst().ToString() + " expected");
  info.SetOutput(0, dtype, info.InputShape(1));
  info.SetOutput(1, dtype, info.InputShape(2));
  info.SetOutput(2, dtype, info.InputShape(3));
  info.SetOutput(3, dtype, Shape{conv.outputs});
  k.has_mask = info.HasInput(5);
  if (k.has_mask) info.SetOutput(4, dtype, info.InputShape(5));
  for (int i = 0; i < 5; ++i) k.wanted[i] = info.HasOutput(i);
  if (k.wanted[4] && !k.has_mask) return info.Invalid("dmask is wanted where there is no mask");
  const int64_t outputs = conv.outputs / conv.groups,
                taps = conv.channels / conv.groups * k.g.taps();
  const int64_t positions = k.g.positions();
  ASSIGN_OR_RETURN(k.d_columns, Gemm::Create(info, {.dtype = dtype,
                                                    .m = taps,
                                                    .n = positions,
                                                    .k = outputs,
                                                    .a = ColumnMajor(taps),
                                                    .b = RowMajor(positions),
                                                    .c = RowMajor(positions)}));
  ASSIGN_OR_RETURN(k.d_weights, Gemm::Create(info, {.dtype = dtype,
                                                    .m = outputs,
                                                    .n = taps,
                                                    .k = positions,
                                                    .a = RowMajor(positions),
                                                    .b = ColumnMajor(positions),
                                                    .c = RowMajor(taps),
                                                    .accumulate = true}));
  k.columns = info.BookScratch(k.g.column_count() * DTypeSize(dtype));
  const int threads = info.threads();
  DispatchDType<float, double>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([threads, k = std::move(k)](KernelContext& context) {
      return RunDeformGrad<T>(k, threads, context);
    });
  });
  return {};
}

}  // namespace

void RegisterConvDeformGrad(KernelRegistry& registry) {
  registry.Add({.op_type = "DeformConvGrad",
                .domain = kCaesuraDomain,
                .types = {DType::kFloat32, DType::kFloat64},
                .create = CreateDeformConvGrad});
  registry.Add({.op_type = "DeformConvGrad",
                .domain = kCaesuraDomain,
                .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateDeformConvGrad>});
}

}  // namespace caesura
