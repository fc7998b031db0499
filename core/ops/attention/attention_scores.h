// SPDX-License-Identifier: Apache-2.0
// From raw scores Q K^T to probabilities, for Attention and its gradient.
#ifndef CAESURA_CORE_OPS_ATTENTION_ATTENTION_SCORES_H_
#define CAESURA_CORE_OPS_ATTENTION_ATTENTION_SCORES_H_

#include <cassert>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/gemm/dnnl_ops.h"
#include "core/kernels/simd/parallel.h"
#include "core/ops/attention/attention_spec.h"

namespace caesura {

// scores = softcap * tanh(scores / softcap), over all of them.
template <typename T>
void CapScores(const AttentionSpec& s, int threads, T* scores) {
  if (s.softcap <= 0) return;
  const T cap = static_cast<T>(s.softcap);
  ParallelFor(threads, s.score_count(), kParallelGrain / 16, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) scores[i] = cap * std::tanh(scores[i] / cap);
  });
}

// Rows of scores: kBlind ones may look nowhere, kUndefined ones have no softmax (a score is NaN or
// +inf, or all are -inf).
enum ScoreRow : uint8_t { kDefined, kBlind, kUndefined };

template <typename T>
ScoreRow KindOfScores(const T* scores, int64_t n) {
  T top = -std::numeric_limits<T>::infinity();
  bool nan = false;
  for (int64_t j = 0; j < n; ++j) {
    nan = nan || std::isnan(scores[j]);
    top = std::max(top, scores[j]);
  }
  return !nan && std::isfinite(top) ? kDefined : kUndefined;
}

// Adds the bias to each row, and says of each (one byte a row) what it is.
template <typename T>
void BiasScores(const AttentionSpec& s, int threads, const void* mask, const int64_t* lengths,
                T* scores, uint8_t* rows_are) {
  const int64_t rows = s.batch * s.q.heads * s.q.positions;
  ParallelFor(
      threads, rows, 1 + kParallelGrain / (2 * s.total + 1), [=, &s](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
          const int64_t i = r % s.q.positions, head = r / s.q.positions % s.q.heads,
                        b = r / s.q.positions / s.q.heads;
          T* row = scores + r * s.total;
          rows_are[r] =
              s.AddBias(b, head, i, mask, lengths, row) ? KindOfScores(row, s.total) : kBlind;
        }
      });
}

// The logarithm of each row's sum of e^score; +inf for blind rows, NaN where it is not defined.
template <typename T>
void LogSumExp(const AttentionSpec& s, const uint8_t* rows_are, const T* scores, T* out) {
  for (int64_t r = 0; r < s.batch * s.q.heads * s.q.positions; ++r) {
    if (rows_are[r] != kDefined) {
      using Limits = std::numeric_limits<T>;
      out[r] = rows_are[r] == kBlind ? Limits::infinity() : Limits::quiet_NaN();
      continue;
    }
    const T *row = scores + r * s.total, max = *std::max_element(row, row + s.total);
    T sum = 0;
    for (int64_t j = 0; j < s.total; ++j) sum += std::exp(row[j] - max);
    out[r] = max + std::log(sum);
  }
}

// Softmax over keys, in place; blind rows end as zeros, others that have none as NaN, or zeros
// where the spec says so.
class ScoreSoftmax {
 public:
  static Result<ScoreSoftmax> Make(KernelInfo& info, DType dtype, const AttentionSpec& s) {
    ScoreSoftmax out;
    out.threads_ = info.threads();
    if (dtype != DType::kFloat32 || s.score_count() < 64 || s.softmax != DType::kUndefined)
      return out;
    const int threads = DnnlThreads(info.threads(), 8 * s.score_count());
    Result<DnnlCall> call =
        MakeDnnlSoftmax(info, threads, {dtype, {s.score_count() / s.total, s.total}, {}}, 1, false);
    if (call.ok()) out.dnnl_ = *std::move(call);
    else if (call.status().code() != StatusCode::kDeclined) return call.status();
    return out;
  }

  template <typename T>
  Status Run(const AttentionSpec& s, KernelContext& context, const uint8_t* rows_are,
             T* scores) const {
    if (s.score_count() == 0) return {};
    const int64_t rows = s.score_count() / s.total, n = s.total;
    if (dnnl_.defined()) RETURN_IF_ERROR(dnnl_.Run(context, {scores, scores}));
    const bool done = dnnl_.defined(), zeros = s.nan_rows == NanRows::kZero;
    ParallelFor(
        threads_, rows, 1 + kParallelGrain / (16 * n), [=, &s](int64_t first, int64_t last) {
          for (int64_t r = first; r < last; ++r) {
            T* row = scores + r * n;
            if (rows_are[r] != kDefined) {
              std::fill_n(
                  row, n,
                  rows_are[r] == kBlind || zeros ? T(0) : std::numeric_limits<T>::quiet_NaN());
            } else if (s.softmax != DType::kUndefined) {
              DispatchFloat(s.softmax,
                            [row, n](auto tag) { LineIn<typename decltype(tag)::type>(row, n); });
            } else if (!done) {
              Line(row, n);
            }
          }
        });
    return {};
  }

 private:
  template <typename T>
  static void Line(T* row, int64_t n) {
    const T max = *std::max_element(row, row + n);
    T sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - max);
    for (int64_t j = 0; j < n; ++j) row[j] /= sum;
  }

  // The softmax of a row whose scores and probabilities are rounded to type P.
  template <typename P, typename T>
  static void LineIn(T* row, int64_t n) {
    using A = std::conditional_t<std::is_same_v<P, double>, double, T>;
    for (int64_t j = 0; j < n; ++j) row[j] = static_cast<T>(static_cast<P>(row[j]));
    const A max = *std::max_element(row, row + n);
    A sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += std::exp(row[j] - max);
    for (int64_t j = 0; j < n; ++j)
      row[j] = static_cast<T>(static_cast<P>(std::exp(row[j] - max) / sum));
  }

  int threads_ = 1;
  DnnlCall dnnl_;
};

// Copies between a tensor in `from` layout and one in `to` layout, of which the latter starts at
// position `at`. REQUIRES: to.col_stride == 1.
template <typename T>
void CopyHeads(int64_t batch, const HeadLayout& from, const T* x, const HeadLayout& to, int64_t at,
               T* y) {
  assert(to.col_stride == 1);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < from.heads; ++h) {
      for (int64_t i = 0; i < from.positions; ++i) {
        const T* row = x + from.Head(b, h) + i * from.row_stride;
        T* copy = y + to.Head(b, h) + (at + i) * to.row_stride;
        for (int64_t c = 0; c < from.size; ++c) copy[c] = row[c * from.col_stride];
      }
    }
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ATTENTION_ATTENTION_SCORES_H_
