// SPDX-License-Identifier: Apache-2.0
// Source planes are copied with their padding, and with the columns of each residue modulo the
// stride side by side: then the taps of neighbouring outputs are neighbours, whatever the stride.
// So is the gradient by the source, as one plain correlation of the padded dst for each residue of
// rows and columns.
#include "core/ops/conv/conv_depthwise.h"

#include <algorithm>
#include <cassert>
#include <type_traits>
#include <vector>

#include "core/kernels/simd/float_tiles.h"
#include "core/kernels/simd/parallel.h"

namespace caesura {
namespace {

constexpr int64_t kBlock = 8;   // vectors of sums: so many rows of one, or fewer of more
constexpr int64_t kSlack = 64;  // columns that a block may read after a row
constexpr int64_t kColumnTaps = 8;
constexpr int64_t kMaxStride =
    16;  // a residue each; beyond, a model asks for something else than a convolution

// A plane with room around it.
struct Padded {
  int64_t rows, phases, width;  // width: of the row of one phase
  int64_t floats() const { return (rows * phases * width + 15) / 16 * 16; }
  int64_t At(int64_t row, int64_t phase, int64_t column) const {
    return (row * phases + phase) * width + column;
  }
};

using Axis = DepthwiseConv::Axis;

// The part of the source under all taps of all outputs.
Padded SourcePlane(const Axis& rows, const Axis& columns) {
  const int64_t taps = (rows.output - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1;
  return {std::max(taps, rows.pad + rows.input) + (kBlock - 1) * rows.stride, columns.stride,
          std::max(columns.output + columns.reach(),
                   (columns.input + columns.pad) / columns.stride + 1) +
              kSlack};
}

// The part of the dst that reaches the source.
Padded DstPlane(const Axis& rows, const Axis& columns) {
  auto size = [](const Axis& a) {
    return a.reach() + std::max(a.output, (a.input + a.pad) / a.stride + 1);
  };
  return {size(rows) + kBlock - 1, 1, size(columns) + kSlack};
}

// Sums of weights[tap] * from[tap], for kRows rows of kVectors vectors that begin `row_step` apart.
template <typename R, int kRows, int kVectors, typename Tap>
inline void Correlate(const float* from, int64_t row_step, const std::vector<Tap>& taps,
                      const float* weights, float start, float* sums) {
  typename R::Floats sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = typename R::Floats{} + start;
  }
  for (const Tap& tap : taps) {
    const float weight = weights[tap.weight];
    const float* at = from + tap.offset;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] += weight * R::AtLoose(at + r * row_step + v * R::kWidth).floats;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) R::Store(sums + (r * kVectors + v) * R::kWidth, sum[r][v]);
  }
}

// Calls put(row, column, count, sums) for a plane of rows x columns sums.
template <typename R, typename Tap, typename Put>
inline void CorrelatePlane(const float* from, int64_t row_step, int64_t rows, int64_t columns,
                           const std::vector<Tap>& taps, const float* weights, float start,
                           Put put) {
  alignas(64) float sums[kBlock * R::kWidth];
  for (int64_t j = 0; j < columns;) {
    auto block = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
      constexpr int kRows = kBlock / kVectors;
      const int64_t count = std::min<int64_t>(kVectors * R::kWidth, columns - j);
      for (int64_t i = 0; i < rows; i += kRows) {
        Correlate<R, kRows, kVectors>(from + i * row_step + j, row_step, taps, weights, start,
                                      sums);
        for (int64_t r = 0; r < std::min<int64_t>(kRows, rows - i); ++r)
          put(i + r, j, count, sums + r * kVectors * R::kWidth);
      }
      j += count;
    };
    const int64_t left = columns - j;
    if (left > 2 * R::kWidth) block(std::integral_constant<int, 4>());
    else if (left > R::kWidth) block(std::integral_constant<int, 2>());
    else block(std::integral_constant<int, 1>());
  }
}

}  // namespace

// One thread's work.
template <typename R>
class DepthwiseConv::Worker {
 public:
  Worker(const DepthwiseConv& conv, float* memory)
      : conv_(conv),
        rows_(conv.rows_),
        columns_(conv.columns_),
        source_(SourcePlane(rows_, columns_)),
        dst_(DstPlane(rows_, columns_)),
        memory_(memory) {
    std::fill_n(memory, conv.floats_, 0.0f);
  }

  // Planes of dst.
  void Forward(int64_t first, int64_t last, const float* x, const float* weights, const float* bias,
               float* y) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t output = p % (conv_.channels_ * conv_.multiplier_),
                    kept = p / conv_.multiplier_;
      if (p == first || p % conv_.multiplier_ == 0) LoadSource(x + kept * SourceSize());
      float* to = y + p * DstSize();
      CorrelatePlane<R>(memory_, source_.phases * source_.width * rows_.stride, rows_.output,
                        columns_.output, conv_.taps_, weights + output * TapCount(),
                        bias == nullptr ? 0.0f : bias[output],
                        [&](int64_t row, int64_t column, int64_t count, const float* sums) {
                          std::copy_n(sums, count, to + row * columns_.output + column);
                        });
    }
  }

  // Planes of the source.
  void BackwardData(int64_t first, int64_t last, const float* dy, const float* weights, float* dx) {
    for (int64_t p = first; p < last; ++p) {
      float* to = dx + p * SourceSize();
      std::fill_n(to, SourceSize(), 0.0f);
      for (int64_t m = 0; m < conv_.multiplier_; ++m) {
        LoadDst(dy + (p * conv_.multiplier_ + m) * DstSize());
        const float* taps = weights + (p % conv_.channels_ * conv_.multiplier_ + m) * TapCount();
        for (const Residue& residue : conv_.residues_) AddResidue(residue, taps, to);
      }
    }
  }

  // Channels of the weights.
  void BackwardWeights(int64_t first, int64_t last, const float* x, const float* dy, float* dw) {
    const int64_t wide = dst_.width;
    float* dst = memory_ + source_.floats();
    double* sums = reinterpret_cast<double*>(dst + dst_.floats());
    for (int64_t output = first; output < last; ++output) {
      std::fill_n(sums, TapCount(), 0.0);
      for (int64_t n = 0; n < conv_.batch_; ++n) {
        LoadSource(x + (n * conv_.channels_ + output / conv_.multiplier_) * SourceSize());
        const float* from = dy + (n * conv_.channels_ * conv_.multiplier_ + output) * DstSize();
        for (int64_t o = 0; o < rows_.output; ++o)
          std::copy_n(from + o * columns_.output, columns_.output, dst + o * wide);
        for (int64_t i = 0; i < rows_.kernel; ++i) {
          for (int64_t k = 0; k < columns_.kernel; k += kColumnTaps) AddTaps(i, k, dst, wide, sums);
        }
      }
      for (int64_t t = 0; t < TapCount(); ++t)
        dw[output * TapCount() + t] = static_cast<float>(sums[t]);
    }
  }

 private:
  int64_t SourceSize() const { return rows_.input * columns_.input; }
  int64_t DstSize() const { return rows_.output * columns_.output; }
  int64_t TapCount() const { return rows_.kernel * columns_.kernel; }

  void LoadSource(const float* x) {
    const int64_t stride = columns_.stride, pad = columns_.pad;
    for (int64_t i = 0; i < rows_.input; ++i, x += columns_.input) {
      float* row = memory_ + source_.At(i + rows_.pad, 0, 0);
      if (stride == 1) {
        std::copy_n(x, columns_.input, row + pad);
        continue;
      }
      for (int64_t phase = 0; phase < stride; ++phase) {
        // The first column whose padded place has this residue.
        const int64_t first = (phase + stride - pad % stride) % stride;
        float* to = row + phase * source_.width + (first + pad) / stride;
        for (int64_t j = first; j < columns_.input; j += stride) *to++ = x[j];
      }
    }
  }

  void LoadDst(const float* dy) {
    for (int64_t o = 0; o < rows_.output; ++o) {
      std::copy_n(dy + o * columns_.output, columns_.output,
                  memory_ + dst_.At(o + rows_.reach(), 0, columns_.reach()));
    }
  }

  void AddResidue(const Residue& residue, const float* weights, float* dx) {
    const int64_t stride = columns_.stride, row_step = rows_.stride * columns_.input;
    CorrelatePlane<R>(memory_ + residue.from, dst_.width, residue.rows, residue.columns,
                      residue.taps, weights, 0.0f,
                      [&](int64_t i, int64_t j, int64_t n, const float* sums) {
                        float* to = dx + residue.to + i * row_step + j * stride;
                        if (stride == 1) {
                          for (int64_t c = 0; c < n; ++c) to[c] += sums[c];
                        } else {
                          for (int64_t c = 0; c < n; ++c) to[c * stride] += sums[c];
                        }
                      });
  }

  // Kernel row i, columns [k, k + kColumnTaps): products of the dst's rows with those of the source
  // under the taps. The dst is zero after its rows.
  void AddTaps(int64_t i, int64_t k, const float* dst, int64_t wide, double* sums) {
    const int64_t count = std::min(kColumnTaps, columns_.kernel - k);
    int64_t offsets[kColumnTaps];
    for (int64_t t = 0; t < kColumnTaps; ++t)
      offsets[t] = conv_.taps_[i * columns_.kernel + k + std::min(t, count - 1)].offset;
    typename R::Floats sum[kColumnTaps] = {};
    for (int64_t o = 0; o < rows_.output; ++o) {
      const float* under = memory_ + source_.At(o * rows_.stride, 0, 0);
      for (int64_t j = 0; j < columns_.output; j += R::kWidth) {
        const typename R::Floats slope = R::AtLoose(dst + o * wide + j).floats;
#pragma GCC unroll 8
        for (int64_t t = 0; t < kColumnTaps; ++t)
          sum[t] += slope * R::AtLoose(under + offsets[t] + j).floats;
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      alignas(64) float lanes[R::kWidth];
      R::Store(lanes, sum[t]);
      for (float lane : lanes) sums[i * columns_.kernel + k + t] += lane;
    }
  }

  const DepthwiseConv& conv_;
  const Axis &rows_, &columns_;
  const Padded source_, dst_;
  float* const memory_;
};

bool DepthwiseConv::Serves(const ConvGeometry& g) {
  const WindowGeometry& w = g.window;
  auto none_below = [](const std::vector<int64_t>& sizes, int64_t least) {
    return std::all_of(sizes.begin(), sizes.end(), [=](int64_t size) { return size >= least; });
  };
  const bool steps = std::all_of(w.strides.begin(), w.strides.end(),
                                 [](int64_t stride) { return stride <= kMaxStride; });
  return g.groups > 1 && g.channels == g.groups && w.rank() >= 1 && w.rank() <= 2 &&
         none_below(w.pads_begin, 0) && none_below(w.output, 1) && none_below(w.input, 1) && steps;
}

// Padded places r = stride * q + residue of the source get the taps whose place in the window has
// that residue, from the dst at q less the window's steps.
DepthwiseConv::Residue DepthwiseConv::MakeResidue(int64_t row, int64_t column) const {
  const Padded dst = DstPlane(rows_, columns_);
  Residue out;
  for (int64_t t = 0; t < rows_.kernel * columns_.kernel; ++t) {
    const int64_t down = t / columns_.kernel * rows_.dilation,
                  right = t % columns_.kernel * columns_.dilation;
    if (down % rows_.stride != row || right % columns_.stride != column) continue;
    out.taps.push_back(
        {dst.At(rows_.reach() - down / rows_.stride, 0, columns_.reach() - right / columns_.stride),
         t});
  }
  // The places that are the source's: from the first with the residue to the last.
  auto first = [](const Axis& a, int64_t residue) {
    return (std::max<int64_t>(a.pad - residue, 0) + a.stride - 1) / a.stride;
  };
  auto last = [](const Axis& a, int64_t residue) {
    return (a.pad + a.input - 1 - residue + a.stride) / a.stride;
  };
  const int64_t q = first(rows_, row), p = first(columns_, column);
  out.from = dst.At(q, 0, p);
  out.to = (q * rows_.stride + row - rows_.pad) * columns_.input + p * columns_.stride + column -
           columns_.pad;
  out.rows = out.taps.empty() ? 0 : last(rows_, row) - q;
  out.columns = last(columns_, column) - p;
  return out;
}

DepthwiseConv DepthwiseConv::Make(KernelInfo& info, ConvDirection direction,
                                  const ConvGeometry& g) {
  assert(Serves(g));
  const WindowGeometry& w = g.window;
  auto axis = [&w](int i) {
    return Axis{w.input[i],   w.kernel[i],    w.output[i],
                w.strides[i], w.dilations[i], w.pads_begin[i]};
  };
  DepthwiseConv out;
  out.direction_ = direction;
  if (w.rank() == 2) out.rows_ = axis(0);
  out.columns_ = axis(w.rank() - 1);
  out.batch_ = g.batch;
  out.channels_ = g.channels;
  out.multiplier_ = g.outputs / g.groups;
  const Padded source = SourcePlane(out.rows_, out.columns_),
               dst = DstPlane(out.rows_, out.columns_);
  const int64_t taps = out.rows_.kernel * out.columns_.kernel;
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t down = t / out.columns_.kernel * out.rows_.dilation,
                  right = t % out.columns_.kernel * out.columns_.dilation;
    out.taps_.push_back(
        {source.At(down, right % out.columns_.stride, right / out.columns_.stride), t});
  }
  switch (direction) {
    case ConvDirection::kForward: out.floats_ = source.floats(); break;
    case ConvDirection::kBackwardWeights:
      out.floats_ = source.floats() + dst.floats() + 2 * taps;
      break;
    case ConvDirection::kBackwardData:
      out.floats_ = dst.floats();
      for (int64_t residue = 0; residue < out.rows_.stride * out.columns_.stride; ++residue) {
        out.residues_.push_back(
            out.MakeResidue(residue / out.columns_.stride, residue % out.columns_.stride));
      }
  }
  out.floats_ = (out.floats_ + 15) / 16 * 16;
  const int64_t units =
      direction == ConvDirection::kBackwardWeights ? g.outputs : g.batch * g.channels;
  const int64_t worth = 1 + g.multiply_adds() / kParallelGrain;
  out.threads_ = static_cast<int>(std::clamp<int64_t>(std::min(units, worth), 1, info.threads()));
  out.scratch_ = info.BookScratch(out.threads_ * out.floats_ * sizeof(float));
  return out;
}

void DepthwiseConv::Run(KernelContext& context, const float* a, const float* b, const float* bias,
                        float* out) const {
  float* scratch = context.Scratch<float>(scratch_);
  const bool forward = direction_ == ConvDirection::kForward,
             data = direction_ == ConvDirection::kBackwardData;
  const int64_t units = (data ? batch_ : forward ? batch_ * multiplier_ : multiplier_) * channels_;
  ParallelFor(threads_, threads_, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      tiles::OnBestTiles([&](auto registers) {
        Worker<decltype(registers)> worker(*this, scratch + thread * floats_);
        const int64_t begin = units * thread / threads_, end = units * (thread + 1) / threads_;
        if (forward) worker.Forward(begin, end, a, b, bias, out);
        else if (data) worker.BackwardData(begin, end, a, b, out);
        else worker.BackwardWeights(begin, end, a, b, out);
      });
    }
  });
}

}  // namespace caesura
