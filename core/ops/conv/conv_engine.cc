// SPDX-License-Identifier: Apache-2.0
#include "core/ops/conv/conv_engine.h"
#include "core/kernels/gemm/gemm.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/windows/im2col.h"
#include "core/kernels/gemm/dnnl_ops.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/capped_product.h"

namespace caesura {
namespace {

// Multiply-adds up to which the plain way is quicker to make and about as quick to run.
constexpr int64_t kSmallConv = 16384;

DnnlConvSpec MakeSpec(DType dtype, const ConvGeometry& g, bool bias) {
  DnnlConvSpec spec;
  spec.src = {dtype, g.Src().dims(), {}};
  spec.dst = {dtype, g.Dst().dims(), {}};
  std::vector<int64_t> weights = g.Weights().dims();
  if (g.groups > 1) {
    weights[0] /= g.groups;
    weights.insert(weights.begin(), g.groups);
  }
  spec.weights = {dtype, std::move(weights), {}};
  if (bias) spec.bias = {dtype, {g.outputs}, {}};
  spec.strides = g.window.strides;
  spec.dilations = g.window.dilations;
  spec.pads_begin = g.window.pads_begin;
  spec.pads_end = g.window.pads_end;
  return spec;
}

// `g` without spatial axes along which there is one position only, but for one axis: oneDNN is
// quicker without them, where they come last above all.
ConvGeometry WithoutUnitAxes(ConvGeometry g) {
  WindowGeometry& w = g.window;
  for (int a = w.rank() - 1; a >= 0 && w.rank() > 1; --a) {
    if (w.input[a] != 1 || w.kernel[a] != 1 || w.output[a] != 1 || w.pads_begin[a] != 0) continue;
    for (std::vector<int64_t>* each :
         {&w.input, &w.kernel, &w.output, &w.strides, &w.dilations, &w.pads_begin, &w.pads_end})
      each->erase(each->begin() + a);
  }
  return g;
}

Result<DnnlCall> MakeCall(KernelInfo& info, ConvDirection direction, const DnnlConvSpec& spec,
                          int64_t work) {
  const int threads = DnnlThreads(info.threads(), work);
  switch (direction) {
    case ConvDirection::kForward: return MakeDnnlConv(info, threads, spec);
    case ConvDirection::kBackwardData: return MakeDnnlConvBackwardData(info, threads, spec);
    default: return MakeDnnlConvBackwardWeights(info, threads, spec);
  }
}

// The product for one image and one group: columns have [channels * kernel] rows and [output]
// columns.
GemmSpec ProductSpec(DType dtype, ConvDirection direction, const ConvGeometry& g) {
  const int64_t outputs = g.outputs / g.groups, positions = g.window.OutputCount();
  const int64_t taps = g.channels / g.groups * g.window.KernelCount();
  switch (direction) {
    case ConvDirection::kForward:  // dst = weights columns
      return {.dtype = dtype,
              .m = outputs,
              .n = positions,
              .k = taps,
              .a = RowMajor(taps),
              .b = RowMajor(positions),
              .c = RowMajor(positions)};
    case ConvDirection::kBackwardData:  // columns = weights^T dst
      return {.dtype = dtype,
              .m = taps,
              .n = positions,
              .k = outputs,
              .a = ColumnMajor(taps),
              .b = RowMajor(positions),
              .c = RowMajor(positions)};
    default:  // weights += dst columns^T
      return {.dtype = dtype,
              .m = outputs,
              .n = taps,
              .k = positions,
              .a = RowMajor(positions),
              .b = ColumnMajor(positions),
              .c = RowMajor(taps),
              .accumulate = true};
  }
}

template <typename T>
void AddBias(const ConvGeometry& g, const T* bias, T* y) {
  const int64_t positions = g.window.OutputCount();
  for (int64_t row = 0; row < g.batch * g.outputs; ++row) {
    const Accumulator<T> b = bias[row % g.outputs];
    for (int64_t i = 0; i < positions; ++i) y[row * positions + i] = T(y[row * positions + i] + b);
  }
}

}  // namespace

Result<ConvEngine> ConvEngine::Make(KernelInfo& info, DType dtype, ConvDirection direction,
                                    const ConvGeometry& geometry, bool bias) {
  ConvEngine out;
  out.direction_ = direction;
  out.geometry_ = WithoutUnitAxes(geometry);
  const ConvGeometry& g = out.geometry_;
  out.dtype_ = dtype;
  out.threads_ = info.threads();
  if (dtype == DType::kFloat32 && DepthwiseConv::Serves(g)) {
    out.depthwise_ = DepthwiseConv::Make(info, direction, g);
    return out;
  }
  const int64_t work = g.multiply_adds();
  const bool dnnl_type = dtype == DType::kFloat32 || dtype == DType::kBFloat16;
  if (dnnl_type && (work > kSmallConv || dtype == DType::kBFloat16) && work > 0 &&
      g.window.rank() <= 3) {
    Result<DnnlCall> call = MakeCall(info, direction, MakeSpec(dtype, g, bias), work);
    if (call.ok()) {
      out.dnnl_ = *std::move(call);
      return out;
    }
    if (call.status().code() != StatusCode::kDeclined || dtype != DType::kFloat32)
      return call.status();
  }
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64 && dtype != DType::kInt32) {
    return info.Refuse(std::string("no convolution of ") + DTypeName(dtype));
  }
  if (g.window.rank() > 3) return info.Refuse("more than three spatial axes");
  ASSIGN_OR_RETURN(out.gemm_, Gemm::Create(info, ProductSpec(dtype, direction, g)));
  out.columns_ = info.BookScratch(static_cast<size_t>(
      CappedProduct({g.channels / g.groups, g.window.KernelCount(), g.window.OutputCount(),
                     static_cast<int64_t>(DTypeSize(dtype))})));
  return out;
}

Status ConvEngine::Run(KernelContext& context, const void* a, const void* b, const void* bias,
                       void* out) const {
  if (depthwise_) {
    depthwise_->Run(context, static_cast<const float*>(a), static_cast<const float*>(b),
                    static_cast<const float*>(bias), static_cast<float*>(out));
    return {};
  }
  if (dnnl_.defined()) {
    if (bias == nullptr) return dnnl_.Run(context, {a, b, out});
    return dnnl_.Run(context, {a, b, out, bias});
  }
  Status status;
  DispatchDType<float, double, int32_t>(dtype_, [&](auto tag) {
    using T = typename decltype(tag)::type;
    status = RunPlain(context, static_cast<const T*>(a), static_cast<const T*>(b),
                      static_cast<const T*>(bias), static_cast<T*>(out));
  });
  return status;
}

template <typename T>
Status ConvEngine::RunPlain(KernelContext& context, const T* a, const T* b, const T* bias,
                            T* out) const {
  const ConvGeometry& g = geometry_;
  const Window3 window(g.window);
  const int64_t channels = g.channels / g.groups, outputs = g.outputs / g.groups;
  const int64_t src_step = channels * window.InputCount(),
                dst_step = outputs * window.OutputCount();
  const int64_t weight_step = outputs * channels * window.KernelCount();
  T* columns = context.Scratch<T>(columns_);
  if (direction_ == ConvDirection::kBackwardData)
    std::fill_n(out, g.batch * g.groups * src_step, T(0));
  if (direction_ == ConvDirection::kBackwardWeights) std::fill_n(out, g.groups * weight_step, T(0));
  if (dst_step == 0 || (direction_ != ConvDirection::kForward && src_step == 0))
    return {};  // however many images
  auto each_channel = [&](auto fn) {
    const int64_t cost = window.KernelCount() * window.OutputCount();
    ParallelFor(
        threads_, channels, 1 + kParallelGrain / (cost + 1),
        [&](int64_t first, int64_t last) { fn(first, last - first, columns + first * cost); });
  };
  for (int64_t i = 0; i < g.batch * g.groups; ++i) {
    const int64_t group = i % g.groups;
    if (direction_ == ConvDirection::kBackwardData) {
      RETURN_IF_ERROR(gemm_.Run(context, b + group * weight_step, a + i * dst_step, columns));
      each_channel([&](int64_t c, int64_t count, const T* part) {
        Col2Im(window, count, part, out + i * src_step + c * window.InputCount());
      });
      continue;
    }
    each_channel([&](int64_t c, int64_t count, T* part) {
      Im2Col(window, count, a + i * src_step + c * window.InputCount(), part);
    });
    if (direction_ == ConvDirection::kForward) {
      RETURN_IF_ERROR(gemm_.Run(context, b + group * weight_step, columns, out + i * dst_step));
    } else {
      RETURN_IF_ERROR(gemm_.Run(context, b + i * dst_step, columns, out + group * weight_step));
    }
  }
  if (bias != nullptr) AddBias(g, bias, out);
  return {};
}

}  // namespace caesura
