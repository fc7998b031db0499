// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cpu/attention_tiled.h"

#include <cmath>

#include "core/kernels/cpu/attention_tiles.h"
#include "core/kernels/cpu/parallel.h"

namespace caesura {
namespace {

using namespace tiles;

// A thread's tiles.
struct ForwardMemory {
  int64_t size, value_size;                             // padded
  float *panels, *values, *rows, *q, *scores, *y;       // values: all of a head's; rows: one panel's keys
  int64_t floats;

  ForwardMemory(const AttentionSpec& s, float* block)
      : size(RoundUp(s.q.size, kLanes)), value_size(RoundUp(s.v.size, kLanes)) {
    Carver carver(block);
    panels = carver.Take(RoundUp(s.total, kPanel) * size);
    values = carver.Take(s.total * value_size);
    rows = carver.Take(kPanel * size);
    q = carver.Take(kQueries * size);
    scores = carver.Take(kQueries * kKeys);
    y = carver.Take(kQueries * value_size);
    floats = carver.taken();
  }
};

// One thread's work: query tiles of heads.
template <typename R>
class ForwardWorker {
 public:
  ForwardWorker(const AttentionSpec& s, DType dtype, const TiledAttention::Tensors& t, float* block)
      : s_(s), dtype_(dtype), t_(t), m_(s, block) {}

  // Unit u: a query head and a tile of it, the latter faster.
  void Run(int64_t first, int64_t last) {
    const int64_t tiles = TilesOf(s_);
    int64_t loaded = -1;
    for (int64_t u = first; u < last; ++u) {
      const int64_t key_head = u / tiles / s_.group();
      tile_.b = u / tiles / s_.q.heads;
      tile_.head = u / tiles % s_.q.heads;
      tile_.Place(s_, u % tiles, tiles, t_.lengths);
      if (key_head != loaded) LoadKeys(key_head % s_.k.heads);
      loaded = key_head;
      RunTile();
    }
  }

 private:
  using Floats = typename R::Floats;

  void LoadKeys(int64_t h) {
    LoadPanels(dtype_, t_.k, s_.k, s_.k.Head(tile_.b, h), {m_.rows, kPanel, m_.size}, false, m_.panels);
    LoadRows(dtype_, t_.v, {&s_.v, s_.v.Head(tile_.b, h), 0, s_.total}, 1.0f, {m_.values, s_.total, m_.value_size});
  }

  void RunTile() {
    LoadRows(dtype_, t_.q, {&s_.q, s_.q.Head(tile_.b, tile_.head), tile_.begin, tile_.end},
             static_cast<float>(s_.scale), {m_.q, RoundUp(tile_.rows(), kStrip), m_.size});
    std::fill_n(m_.y, kQueries * m_.value_size, 0.0f);
    std::fill_n(max_, kQueries, kMinusInfinity);
    std::fill_n(sum_, kQueries, 0.0f);
    for (int64_t j = RoundDown(tile_.all.first, kPanel); j < tile_.all.last; j += kKeys) {
      Scores(j);
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) Probabilities(r, j);
      AddValues(j);
    }
    Store();
  }

  StripKeys Keys(int64_t r, int64_t begin, int64_t end) const { return tile_.strips[r / kStrip].Within(begin, end); }

  // A panel of keys stays in the L1 cache while the strips pass.
  void Scores(int64_t block) {
    for (int64_t p = block; p < std::min(block + kKeys, tile_.all.last); p += kPanel) {
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) {
        const StripKeys keys = Keys(r, p, p + kPanel);
        if (keys.empty()) continue;
        MultiplyStrip<R, false, false>(m_.q + r * m_.size, m_.size, m_.panels + p * m_.size + keys.from() - p,
                                               kPanel, s_.q.size, m_.scores + r * kKeys + keys.from() - block, kKeys,
                                               keys.to() - keys.from());
      }
    }
  }

  void Probabilities(int64_t strip, int64_t block) {
    const StripKeys keys = Keys(strip, block, block + kKeys);
    if (keys.empty()) return;
    const int64_t count = keys.to() - keys.from();
    for (int64_t r = strip; r < strip + kStrip; ++r) {
      float* row = m_.scores + r * kKeys + keys.from() - block;
      const int64_t i = tile_.begin + r;
      if (r < tile_.rows()) {
        BiasRow(dtype_, s_, t_.mask, s_.MaskRow(tile_.b, tile_.head, i), keys, s_.Sees(tile_.b, i, t_.lengths), row);
        Softmax(r, row, count);
      } else {
        std::fill_n(row, count, 0.0f);
      }
    }
  }

  // Scores to probabilities under the maximum so far; what was summed under an older one is scaled down. NaN stays.
  void Softmax(int64_t r, float* row, int64_t count) {
    Floats top = R::At(row);
    for (int64_t j = R::kWidth; j < count; j += R::kWidth) top = R::At(row + j) < top ? top : R::At(row + j);
    const float here = Max(top), before = max_[r], max = here < before ? before : here;
    const float shift = max == kMinusInfinity ? 0.0f : max;  // of a query that has seen nothing yet
    Floats total = {};
    for (int64_t j = 0; j < count; j += R::kWidth) {
      Floats x = R::At(row + j) - shift;
      Exp<R>(x);
      R::At(row + j) = x;
      total += x;
    }
    if (max != before && sum_[r] != 0) {
      const float factor = std::exp(before - max);
      sum_[r] *= factor;
      for (int64_t c = 0; c < m_.value_size; c += R::kWidth) R::At(m_.y + r * m_.value_size + c) *= factor;
    }
    max_[r] = max;
    sum_[r] += Sum(total);
  }

  void AddValues(int64_t block) {
    for (int64_t c = 0; c < m_.value_size; c += kPanel) {
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) {
        const StripKeys keys = Keys(r, block, block + kKeys);
        if (keys.empty()) continue;
        MultiplyStrip<R, false, true>(m_.scores + r * kKeys + keys.first - block, kKeys,
                                              m_.values + keys.first * m_.value_size + c, m_.value_size,
                                              keys.last - keys.first, m_.y + r * m_.value_size + c, m_.value_size,
                                              std::min(kPanel, m_.value_size - c));
      }
    }
  }

  void Store() {
    for (int64_t r = 0; r < tile_.rows(); ++r) {
      const float inverse = sum_[r] == 0 ? 0.0f : 1 / sum_[r];
      for (int64_t c = 0; c < m_.value_size; c += R::kWidth) R::At(m_.y + r * m_.value_size + c) *= inverse;
    }
    StoreRows(dtype_, {m_.y, tile_.rows(), m_.value_size}, 1.0f,
              {&s_.y, s_.y.Head(tile_.b, tile_.head), tile_.begin, tile_.end}, t_.y);
    if (t_.lse == nullptr) return;
    float* lse = t_.lse + (tile_.b * s_.q.heads + tile_.head) * s_.queries() + tile_.begin;
    for (int64_t r = 0; r < tile_.rows(); ++r) lse[r] = sum_[r] == 0 ? -kMinusInfinity : max_[r] + std::log(sum_[r]);
  }

  const AttentionSpec& s_;
  const DType dtype_;
  const TiledAttention::Tensors& t_;
  const ForwardMemory m_;
  QueryTile tile_;
  float max_[kQueries], sum_[kQueries];
};

}  // namespace

void TiledAttention::Run(KernelContext& context, const Tensors& tensors) const {
  const int64_t units = spec_.batch * spec_.q.heads * TilesOf(spec_), floats = ForwardMemory(spec_, nullptr).floats;
  float* scratch = context.Scratch<float>(scratch_);
  ParallelFor(threads_, threads_, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      OnBestTiles([&](auto registers) {
        ForwardWorker<decltype(registers)> worker(spec_, dtype_, tensors, scratch + thread * floats);
        worker.Run(units * thread / threads_, units * (thread + 1) / threads_);
      });
    }
  });
}

TiledAttention TiledAttention::Make(KernelInfo& info, DType dtype, const AttentionSpec& spec) {
  TiledAttention out;
  out.spec_ = spec;
  out.dtype_ = dtype;
  // A thread is worth about 64k products.
  const int64_t work = (spec.score_count() * (spec.q.size + spec.v.size)) >> 16;
  const int64_t units = spec.batch * spec.q.heads * TilesOf(spec);
  out.threads_ = static_cast<int>(std::clamp<int64_t>(std::min(work, units), 1, info.threads()));
  out.scratch_ = info.BookScratch(out.threads_ * ForwardMemory(spec, nullptr).floats * sizeof(float));
  return out;
}

}  // namespace caesura
