// SPDX-License-Identifier: Apache-2.0
// Multidirectional (NumPy, ONNX) broadcasting as a walk over runs. A plan drops dims of size 1 and
// merges the dims
// that all operands walk alike; what is left of the innermost dim is a *run*, on which an operand
// either moves one element a step or stands still. Kernels then have plain loops over runs, and no
// index arithmetic an element.
//
//   ASSIGN_OR_RETURN(BroadcastSpec<2> plan, MakeBroadcastPlan<2>(output, {&a_shape, &b_shape}));
//   ParallelFor(threads, plan.elements, grain, [&](int64_t first, int64_t last) {
//     ForEachRun(plan, first, last, [&](const auto& offsets, int64_t at, int64_t length) {
//       BinaryRun(a + offsets[0], plan.Moves(0), b + offsets[1], plan.Moves(1), y + at, length,
//           op);
//     });
//   });
//
// In-place use is safe: an operand that has as many elements as the output stands at `at` whenever
// the output
// does.
// Thread safety: values.
#ifndef CAESURA_CORE_KERNELS_WALKS_BROADCAST_H_
#define CAESURA_CORE_KERNELS_WALKS_BROADCAST_H_

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>

#include "core/base/status.h"
#include "core/kernels/walks/broadcast_strides.h"

namespace caesura {

// Dims that may be left after merging.
inline constexpr int kMaxBroadcastDims = 16;

template <int N>
struct BroadcastSpec {
  int rank = 1;
  std::array<int64_t, kMaxBroadcastDims> dims = {1};  // outermost first
  std::array<std::array<int64_t, kMaxBroadcastDims>, N> strides =
      {};                // in elements; 0 where an operand repeats
  int64_t elements = 1;  // of the output

  // True if an operand advances (by one element) along a run.
  bool Moves(int operand) const { return strides[operand][rank - 1] != 0; }
};

namespace broadcast_internal {

// Appends a dim to the plan, merged into the previous one where every operand allows it. False when
// the plan is full.
template <int N>
bool AppendDim(BroadcastSpec<N>& plan, int& used, int64_t dim,
               const std::array<int64_t, N>& strides) {
  bool merges = used > 0;
  for (int n = 0; n < N && merges; ++n) merges = plan.strides[n][used - 1] == strides[n] * dim;
  if (!merges && used == kMaxBroadcastDims) return false;
  if (merges) {
    plan.dims[used - 1] *= dim;
  } else {
    plan.dims[used++] = dim;
  }
  for (int n = 0; n < N; ++n) plan.strides[n][used - 1] = strides[n];
  return true;
}

}  // namespace broadcast_internal

// Fails with kInvalidArgument when a shape does not broadcast to `output`, kDeclined beyond
// kMaxBroadcastDims.
template <int N>
Result<BroadcastSpec<N>> MakeBroadcastPlan(const Shape& output,
                                           const std::array<const Shape*, N>& shapes) {
  std::array<std::vector<int64_t>, N> strides;
  for (int n = 0; n < N; ++n) {
    strides[n].resize(output.rank());
    if (!BroadcastStrides(*shapes[n], output, strides[n].data())) {
      return InvalidArgument("shape " + shapes[n]->ToString() + " does not broadcast to " +
                             output.ToString());
    }
  }
  BroadcastSpec<N> plan;
  plan.elements = output.elements();
  int used = 0;
  for (int d = 0; d < output.rank(); ++d) {
    if (output[d] == 1) continue;
    std::array<int64_t, N> dim_strides;
    for (int n = 0; n < N; ++n) dim_strides[n] = strides[n][d];
    if (!broadcast_internal::AppendDim<N>(plan, used, output[d], dim_strides)) {
      return Declined("broadcasting over more than " + std::to_string(kMaxBroadcastDims) + " dims");
    }
  }
  if (used == 0) {
    for (int n = 0; n < N; ++n)
      plan.strides[n][0] = 1;  // one element: the fast path in which all move
  }
  plan.rank = std::max(used, 1);
  return plan;
}

// The pieces of runs within the output's elements [first, last), in order. A plan of one run takes
// no division and no call, which a small tensor would be bound by.
// REQUIRES: 0 <= first < last <= plan.elements.
template <int N>
class RunWalk {
 public:
  RunWalk(const BroadcastSpec<N>& plan, int64_t first, int64_t last)
      : plan_(plan), at_(first), last_(last) {
    assert(0 <= first && first < last && last <= plan.elements);
    if (plan.rank > 1) {
      Begin();
    } else {
      for (int n = 0; n < N; ++n) offsets_[n] = first * plan.strides[n][0];
      length_ = last - first;
    }
  }
  // False at the end.
  bool Next() {
    at_ += length_;
    if (at_ >= last_) return false;
    Advance();
    return true;
  }
  // The place of each operand, and the element of the output.
  const std::array<int64_t, N>& offsets() const { return offsets_; }
  int64_t at() const { return at_; }
  int64_t length() const { return length_; }

 private:
  // Not inlined: one copy serves the loops of all ops and instruction sets.
  [[gnu::noinline]] void Begin() {
    offsets_ = {};
    int64_t rest = at_;
    for (int d = plan_.rank - 1; d >= 0; --d) {
      index_[d] = rest % plan_.dims[d];
      rest /= plan_.dims[d];
      for (int n = 0; n < N; ++n) offsets_[n] += index_[d] * plan_.strides[n][d];
    }
    SetLength();
  }
  [[gnu::noinline]] void Advance() {
    const int inner = plan_.rank - 1;
    for (int n = 0; n < N; ++n) offsets_[n] -= index_[inner] * plan_.strides[n][inner];
    index_[inner] = 0;
    for (int d = inner - 1; d >= 0; --d) {
      for (int n = 0; n < N; ++n) offsets_[n] += plan_.strides[n][d];
      if (++index_[d] < plan_.dims[d]) break;
      for (int n = 0; n < N; ++n) offsets_[n] -= plan_.dims[d] * plan_.strides[n][d];
      index_[d] = 0;
    }
    SetLength();
  }
  void SetLength() {
    const int inner = plan_.rank - 1;
    length_ = std::min(plan_.dims[inner] - index_[inner], last_ - at_);
  }

  const BroadcastSpec<N>& plan_;
  int64_t at_, last_, length_;
  std::array<int64_t, N> offsets_;
  std::array<int64_t, kMaxBroadcastDims> index_;  // unused where there is one run
};

// Calls fn(offsets, at, length) for each piece that RunWalk has, from one place only, so that it is
// compiled once.
template <int N, typename Fn>
void ForEachRun(const BroadcastSpec<N>& plan, int64_t first, int64_t last, Fn&& fn) {
  RunWalk<N> walk(plan, first, last);
  do fn(walk.offsets(), walk.at(), walk.length());
  while (walk.Next());
}

// y[i] = op(a[i], b[i]) over a run, on which `a` and `b` move or stand still. `y` may be `a` or
// `b`.
template <typename A, typename B, typename Y, typename Op>
void BinaryRun(const A* a, bool a_moves, const B* b, bool b_moves, Y* y, int64_t n, const Op& op) {
  if (a_moves && b_moves) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = op(a[i], b[i]);
  } else if (a_moves) {
    const B right = *b;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = op(a[i], right);
  } else if (b_moves) {
    const A left = *a;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = op(left, b[i]);
  } else {
    std::fill_n(y, n, static_cast<Y>(op(*a, *b)));
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_BROADCAST_H_
