// SPDX-License-Identifier: Apache-2.0
// DFT and STFT. Window functions and MelWeightMatrix are in window.cc. A complex number is
// two elements of the last axis; a real signal has one there. All lines are transformed in double.
#include <optional>

#include "core/base/status_macros.h"
#include "core/ops/signal/fourier.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

using Complex = FourierTransform::Complex;

// A strided line of real (width 1) or complex (width 2) numbers.
template <typename T>
struct Line {
  T* data;
  int64_t stride;  // between numbers, in elements
  int64_t width;

  Complex Load(int64_t k) const {
    using A = Accumulator<std::remove_const_t<T>>;
    const T* at = data + k * stride;
    return {static_cast<double>(static_cast<A>(at[0])),
            width == 2 ? static_cast<double>(static_cast<A>(at[1])) : 0.0};
  }
  void Store(int64_t k, Complex value) const {
    using A = Accumulator<T>;
    T* at = data + k * stride;
    at[0] = static_cast<T>(static_cast<A>(value.real()));
    if (width == 2) at[1] = static_cast<T>(static_cast<A>(value.imag()));
  }
};

// Scratch for each thread: one line and the transform's work.
struct LineScratch {
  size_t handle;
  int64_t size;  // complex numbers a thread
  int parts;

  static LineScratch Book(KernelInfo& info, const FourierTransform& transform, int64_t lines) {
    LineScratch s;
    s.parts = static_cast<int>(std::clamp<int64_t>(lines, 1, info.threads()));
    s.size = transform.length() + transform.work_size();
    s.handle = info.BookScratch(static_cast<size_t>(s.parts * s.size) * sizeof(Complex));
    return s;
  }

  // Calls fn(line, buffer) for every line; `buffer` belongs to the calling thread.
  template <typename Fn>
  void ForEachLine(KernelContext& context, int64_t lines, Fn&& fn) const {
    Complex* base = context.Scratch<Complex>(handle);
    ParallelFor(parts, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        for (int64_t l = lines * p / parts; l < lines * (p + 1) / parts; ++l)
          fn(l, base + p * size);
      }
    });
  }
};

// --- DFT ---

struct DftShape {
  int axis;
  int64_t length;  // of the transform
  bool inverse, onesided;
  int64_t width_in, width_out;
  Shape output;
};

// The axis was an attribute (default 1) up to version 19, and is an input (default -2) since 20.
int64_t DftAxis(const KernelInfo& info) {
  const int version = info.node().since_version();
  if (version != 0 && version < 20) return info.Attr<int64_t>("axis", 1);
  const std::vector<int64_t> given = info.HostInts(2);
  return given.empty() ? -2 : given[0];
}

Result<DftShape> FindDftShape(const KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  DftShape s;
  if (x.rank() < 2) return info.Invalid("expected rank 2 or more, got " + x.ToString());
  ASSIGN_OR_RETURN(s.axis, CheckAxis(info, DftAxis(info), x.rank()));
  if (s.axis == x.rank() - 1) return info.Invalid("axis: the last axis holds the complex numbers");
  s.width_in = x[x.rank() - 1];
  if (s.width_in != 1 && s.width_in != 2)
    return info.Invalid("expected 1 or 2 in the last axis of " + x.ToString());
  s.inverse = info.Attr<int64_t>("inverse", 0) != 0;
  s.onesided = info.Attr<int64_t>("onesided", 0) != 0;
  const std::vector<int64_t> given = info.HostInts(1);
  const int64_t fallback = s.inverse && s.onesided ? 2 * (x[s.axis] - 1) : x[s.axis];
  s.length = given.empty() ? fallback : given[0];
  if (s.length < 1 || s.length > FourierTransform::kMaxLength) {
    return info.Invalid("dft_length: expected 1 to 2^26, got " + std::to_string(s.length));
  }
  s.width_out = s.inverse && s.onesided ? 1 : 2;
  std::vector<int64_t> dims = x.dims();
  dims[s.axis] = s.onesided && !s.inverse ? s.length / 2 + 1 : s.length;
  dims.back() = s.width_out;
  ASSIGN_OR_RETURN(s.output, CheckDims(info, std::move(dims), info.InputDType(0)));
  return s;
}

// Fills `buffer` with a line, cut or padded with zeros to the transform's length. A one-sided
// spectrum is completed by X[n - k] = conj(X[k]); the imaginary parts of X[0] and X[n / 2] count as
// zero.
template <typename T>
void LoadLine(const Line<const T>& line, int64_t available, const DftShape& s, Complex* buffer) {
  const bool half = s.inverse && s.onesided;
  const int64_t used = std::min(available, half ? s.length / 2 + 1 : s.length);
  for (int64_t k = 0; k < used; ++k) buffer[k] = line.Load(k);
  std::fill(buffer + used, buffer + s.length, Complex{});
  if (!half) return;
  buffer[0] = buffer[0].real();
  for (int64_t k = 1; k <= (s.length - 1) / 2; ++k) buffer[s.length - k] = std::conj(buffer[k]);
  if (s.length % 2 == 0) buffer[s.length / 2] = buffer[s.length / 2].real();
}

template <typename T>
void SetDftCompute(KernelInfo& info, const DftShape& s) {
  const Shape& x = info.InputShape(0);
  const int64_t inner = x.Elements(s.axis + 1, x.rank() - 1), outer = x.Elements(0, s.axis);
  const int64_t dim_in = x[s.axis], dim_out = s.output[s.axis], lines = inner * outer;
  auto transform = std::make_shared<const FourierTransform>(s.length, s.inverse);
  const LineScratch scratch = LineScratch::Book(info, *transform, lines);
  info.SetOutput(0, kDTypeOf<T>, s.output);
  info.SetCompute([=](KernelContext& context) {
    const T* in = context.Input<T>(0);
    T* out = context.Output<T>(0);
    scratch.ForEachLine(context, lines, [&](int64_t l, Complex* buffer) {
      const int64_t o = l / inner, i = l % inner;
      const Line<const T> from{in + (o * dim_in * inner + i) * s.width_in, inner * s.width_in,
                               s.width_in};
      const Line<T> to{out + (o * dim_out * inner + i) * s.width_out, inner * s.width_out,
                       s.width_out};
      LoadLine(from, dim_in, s, buffer);
      transform->Run(buffer, buffer + s.length);
      for (int64_t k = 0; k < dim_out; ++k) to.Store(k, buffer[k]);
    });
  });
}

Status CreateDft(KernelInfo& info) {
  ASSIGN_OR_RETURN(const DftShape shape, FindDftShape(info));
  if (DispatchFloat(info.InputDType(0),
                    [&](auto tag) { SetDftCompute<typename decltype(tag)::type>(info, shape); })) {
    return {};
  }
  return info.Refuse("has an unexpected type");
}

// --- STFT ---

struct StftShape {
  int64_t batch, signal, width;
  int64_t step, frame, frames, bins;
  bool has_window;
};

Result<StftShape> FindStftShape(const KernelInfo& info) {
  RETURN_IF_ERROR(CheckRank(info, 0, 3));
  const Shape& x = info.InputShape(0);
  StftShape s{x[0], x[1], x[2], 0, x[1], 0, 0, info.HasInput(2)};
  if (s.width != 1 && s.width != 2)
    return info.Invalid("expected 1 or 2 in the last axis of " + x.ToString());
  const std::vector<int64_t> step = info.HostInts(1), frame = info.HostInts(3);
  if (step.size() != 1 || step[0] < 1)
    return info.Invalid("frame_step: expected a positive number");
  s.step = step[0];
  if (s.has_window) {
    RETURN_IF_ERROR(CheckRank(info, 2, 1));
    RETURN_IF_ERROR(CheckDType(info, 2, {info.InputDType(0)}));
    s.frame = info.InputShape(2)[0];
  }
  if (!frame.empty()) {
    if (s.has_window && frame[0] != s.frame)
      return info.Invalid("frame_length differs from the window's length");
    s.frame = frame[0];
  }
  if (s.frame < 1 || s.frame > s.signal || s.frame > FourierTransform::kMaxLength) {
    return info.Invalid("frame_length: expected 1 to " + std::to_string(s.signal) + ", got " +
                        std::to_string(s.frame));
  }
  s.frames = (s.signal - s.frame) / s.step + 1;
  s.bins = info.Attr<int64_t>("onesided", 1) != 0 ? s.frame / 2 + 1 : s.frame;
  return s;
}

template <typename T>
void SetStftCompute(KernelInfo& info, const StftShape& s) {
  auto transform = std::make_shared<const FourierTransform>(s.frame, false);
  const int64_t lines = s.batch * s.frames;
  const LineScratch scratch = LineScratch::Book(info, *transform, lines);
  info.SetOutput(0, kDTypeOf<T>, Shape{s.batch, s.frames, s.bins, 2});
  info.SetCompute([=](KernelContext& context) {
    const T* in = context.Input<T>(0);
    const T* window = s.has_window ? context.Input<T>(2) : nullptr;
    T* out = context.Output<T>(0);
    scratch.ForEachLine(context, lines, [&](int64_t l, Complex* buffer) {
      const int64_t start = l / s.frames * s.signal + l % s.frames * s.step;
      const Line<const T> from{in + start * s.width, s.width, s.width};
      for (int64_t k = 0; k < s.frame; ++k) {
        const double weight =
            window != nullptr ? static_cast<double>(static_cast<Accumulator<T>>(window[k])) : 1.0;
        buffer[k] = from.Load(k) * weight;
      }
      transform->Run(buffer, buffer + s.frame);
      const Line<T> to{out + l * s.bins * 2, 2, 2};
      for (int64_t k = 0; k < s.bins; ++k) to.Store(k, buffer[k]);
    });
  });
}

Status CreateStft(KernelInfo& info) {
  ASSIGN_OR_RETURN(const StftShape shape, FindStftShape(info));
  if (DispatchFloat(info.InputDType(0),
                    [&](auto tag) { SetStftCompute<typename decltype(tag)::type>(info, shape); })) {
    return {};
  }
  return info.Refuse("has an unexpected type");
}

}  // namespace

void RegisterDft(KernelRegistry& registry) {
  registry.Add({.op_type = "DFT",
                .since = 17,
                .types = kFloatTypes,
                .host_inputs = {1, 2},
                .create = CreateDft});
  registry.Add(
      {.op_type = "STFT", .types = kFloatTypes, .host_inputs = {1, 3}, .create = CreateStft});
}

}  // namespace caesura
