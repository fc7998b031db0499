// SPDX-License-Identifier: Apache-2.0
// With S = scale * Q K^T + bias, P = e^(S - lse), Y = P V, for each tile of queries and block of keys:
//   dP = dY V^T, dS = P * (dP - sum of dY Y), dQ += scale * dS K, dK += scale * dS^T Q, dV += P^T dY
#include "training/kernels/attention_tiled_grad.h"

#include "core/kernels/cpu/attention_tiles.h"
#include "core/kernels/cpu/parallel.h"

namespace caesura {
namespace {

using namespace tiles;

// A thread's tiles.
struct BackwardMemory {
  int64_t size, value_size;  // padded
  float *key_panels, *value_panels, *keys, *values, *q, *dy, *dq, *scores, *slopes;  // values: one panel's
  int64_t floats;

  BackwardMemory(const AttentionSpec& s, float* block)
      : size(RoundUp(s.q.size, kLanes)), value_size(RoundUp(s.v.size, kLanes)) {
    Carver carver(block);
    const int64_t total = RoundUp(s.total, kPanel);
    key_panels = carver.Take(total * size);
    value_panels = carver.Take(total * value_size);
    keys = carver.Take(total * size);
    values = carver.Take(kPanel * value_size);
    q = carver.Take(kQueries * size);
    dy = carver.Take(kQueries * value_size);
    dq = carver.Take(kQueries * std::max(size, value_size));  // before that, Y
    scores = carver.Take(kQueries * kKeys);
    slopes = carver.Take(kQueries * kKeys);
    floats = carver.taken();
  }
};

// dK and dV of a key head, or what a part of the query tiles adds to them.
struct KeySums {
  float *dk, *dv;
  int64_t floats;

  KeySums(const AttentionSpec& s, float* block) {
    Carver carver(block);
    dk = carver.Take(RoundUp(s.total, kStrip) * RoundUp(s.q.size, kLanes));
    dv = carver.Take(RoundUp(s.total, kStrip) * RoundUp(s.v.size, kLanes));
    floats = carver.taken();
  }
};

struct Task {
  const AttentionSpec& s;
  const TiledAttentionGrad::Layouts& d;
  const TiledAttentionGrad::Tensors& t;
  DType dtype;
  int64_t parts;
};

// One thread's work.
template <typename R>
class BackwardWorker {
 public:
  BackwardWorker(const Task& task, float* block)
      : s_(task.s), d_(task.d), t_(task.t), dtype_(task.dtype), parts_(task.parts), m_(s_, block) {}

  // Unit u: a key head and a part of the query tiles that look at it, the latter faster. Fills `sums`, writes dQ.
  void Run(int64_t unit, const KeySums& sums) {
    const int64_t tiles = TilesOf(s_), all = tiles * s_.group();
    const int64_t key_head = unit / parts_, part = unit % parts_, h = key_head % s_.k.heads;
    std::fill_n(sums.dk, sums.floats, 0.0f);
    tile_.b = key_head / s_.k.heads;
    LoadPanels(dtype_, t_.k, s_.k, s_.k.Head(tile_.b, h), {m_.keys, kPanel, m_.size}, true, m_.key_panels);
    LoadPanels(dtype_, t_.v, s_.v, s_.v.Head(tile_.b, h), {m_.values, kPanel, m_.value_size}, false, m_.value_panels);
    for (int64_t u = all * part / parts_; u < all * (part + 1) / parts_; ++u) {
      tile_.head = h * s_.group() + u / tiles;
      tile_.Place(s_, u % tiles, tiles, nullptr);
      RunTile(sums);
    }
  }

 private:
  using Floats = typename R::Floats;

  HeadRows Rows(const HeadLayout& layout) const {
    return {&layout, layout.Head(tile_.b, tile_.head), tile_.begin, tile_.end};
  }

  // Q is scaled as it is loaded: both S and dK want it so.
  void LoadQueries() {
    const int64_t rows = RoundUp(tile_.rows(), kStrip);
    const float* lse = t_.lse + (tile_.b * s_.q.heads + tile_.head) * s_.queries() + tile_.begin;
    float* y = m_.dq;
    LoadRows(dtype_, t_.q, Rows(s_.q), static_cast<float>(s_.scale), {m_.q, rows, m_.size});
    LoadRows(dtype_, t_.dy, Rows(d_.dy), 1.0f, {m_.dy, rows, m_.value_size});
    LoadRows(dtype_, t_.y, Rows(s_.y), 1.0f, {y, rows, m_.value_size});
    for (int64_t r = 0; r < tile_.rows(); ++r) {
      Floats dot = {};
      const int64_t row = r * m_.value_size;
      for (int64_t c = 0; c < m_.value_size; c += R::kWidth) dot += R::At(m_.dy + row + c) * R::At(y + row + c);
      mean_[r] = Sum(dot);
      lse_[r] = lse[r];
    }
    std::fill_n(m_.dq, rows * m_.size, 0.0f);
  }

  void RunTile(const KeySums& sums) {
    LoadQueries();
    for (int64_t j = RoundDown(tile_.all.first, kPanel); j < tile_.all.last; j += kKeys) {
      Products(j);
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) Slopes(r, j);
      if (t_.dq != nullptr) AddQueries(j);
      for (int64_t k = j; k < std::min(j + kKeys, tile_.all.last); k += kStrip) AddKeys(k, j, sums);
    }
    if (t_.dq == nullptr) return;
    StoreRows(dtype_, {m_.dq, tile_.rows(), m_.size}, static_cast<float>(s_.scale), Rows(d_.dq), t_.dq);
  }

  StripKeys Keys(int64_t r, int64_t begin, int64_t end) const { return tile_.strips[r / kStrip].Within(begin, end); }

  // S and dP of a block. A panel of keys stays in the L1 cache while the strips pass.
  void Products(int64_t block) {
    for (int64_t p = block; p < std::min(block + kKeys, tile_.all.last); p += kPanel) {
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) {
        const StripKeys keys = Keys(r, p, p + kPanel);
        if (keys.empty()) continue;
        const int64_t columns = keys.to() - keys.from(), to = r * kKeys + keys.from() - block;
        MultiplyStrip<R, false, false>(m_.q + r * m_.size, m_.size,
                                               m_.key_panels + p * m_.size + keys.from() - p, kPanel, s_.q.size,
                                               m_.scores + to, kKeys, columns);
        MultiplyStrip<R, false, false>(m_.dy + r * m_.value_size, m_.value_size,
                                               m_.value_panels + p * m_.value_size + keys.from() - p, kPanel, s_.v.size,
                                               m_.slopes + to, kKeys, columns);
      }
    }
  }

  // S becomes P, and dP becomes dS.
  void Slopes(int64_t strip, int64_t block) {
    const StripKeys keys = Keys(strip, block, block + kKeys);
    if (keys.empty()) return;
    const int64_t count = keys.to() - keys.from();
    for (int64_t r = strip; r < strip + kStrip; ++r) {
      const int64_t i = tile_.begin + r, at = r * kKeys + keys.from() - block;
      float *p = m_.scores + at, *slope = m_.slopes + at;
      if (r >= tile_.rows()) {
        std::fill_n(p, count, 0.0f);
        std::fill_n(slope, count, 0.0f);
        continue;
      }
      BiasRow(dtype_, s_, t_.mask, s_.MaskRow(tile_.b, tile_.head, i), keys, s_.Sees(tile_.b, i, nullptr), p);
      const float lse = lse_[r], mean = mean_[r];
      for (int64_t j = 0; j < count; j += R::kWidth) {
        Floats x = R::At(p + j) - lse;
        Exp<R>(x);
        R::At(p + j) = x;
        R::At(slope + j) = x * (R::At(slope + j) - mean);
      }
    }
  }

  void AddQueries(int64_t block) {
    for (int64_t c = 0; c < m_.size; c += kPanel) {
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) {
        const StripKeys keys = Keys(r, block, block + kKeys);
        if (keys.empty()) continue;
        MultiplyStrip<R, false, true>(m_.slopes + r * kKeys + keys.first - block, kKeys,
                                              m_.keys + keys.first * m_.size + c, m_.size, keys.last - keys.first,
                                              m_.dq + r * m_.size + c, m_.size, std::min(kPanel, m_.size - c));
      }
    }
  }

  // What the strip of keys at `k` gets from the strips of queries that see any of it. Those are neighbours, as what a
  // query sees moves on with the query.
  void AddKeys(int64_t k, int64_t block, const KeySums& sums) {
    int64_t first = 0, last = tile_.rows();
    while (first < last && Keys(first, k, k + kStrip).empty()) first += kStrip;
    last = first;
    while (last < tile_.rows() && !Keys(last, k, k + kStrip).empty()) last += kStrip;
    const int64_t at = first * kKeys + k - block, depth = last - first;
    for (int64_t c = 0; c < m_.value_size; c += kPanel) {
      MultiplyStrip<R, true, true>(m_.scores + at, kKeys, m_.dy + first * m_.value_size + c, m_.value_size,
                                           depth, sums.dv + k * m_.value_size + c, m_.value_size,
                                           std::min(kPanel, m_.value_size - c));
    }
    for (int64_t c = 0; c < m_.size; c += kPanel) {
      MultiplyStrip<R, true, true>(m_.slopes + at, kKeys, m_.q + first * m_.size + c, m_.size, depth,
                                           sums.dk + k * m_.size + c, m_.size, std::min(kPanel, m_.size - c));
    }
  }

  const AttentionSpec& s_;
  const TiledAttentionGrad::Layouts& d_;
  const TiledAttentionGrad::Tensors& t_;
  const DType dtype_;
  const int64_t parts_;
  const BackwardMemory m_;
  QueryTile tile_;
  float lse_[kQueries], mean_[kQueries];
};

// Adds the parts of a key head to the first of them, in order, and writes the result.
void StoreKeys(const Task& task, int64_t key_head, float* parts) {
  const AttentionSpec& s = task.s;
  const KeySums sums(s, parts);
  for (int64_t part = 1; part < task.parts; ++part) {
    for (int64_t i = 0; i < sums.floats; ++i) parts[i] += parts[part * sums.floats + i];
  }
  auto store = [&](const float* from, const HeadLayout& layout, void* to) {
    if (to == nullptr) return;
    const HeadRows rows = {&layout, layout.Head(key_head / s.k.heads, key_head % s.k.heads), 0, s.total};
    StoreRows(task.dtype, {const_cast<float*>(from), s.total, RoundUp(layout.size, kLanes)}, 1.0f, rows, to);
  };
  store(sums.dk, task.d.dk, task.t.dk);
  store(sums.dv, task.d.dv, task.t.dv);
}

}  // namespace

void TiledAttentionGrad::Run(KernelContext& context, const Tensors& tensors) const {
  const Task task = {spec_, d_, tensors, dtype_, parts_};
  const int64_t floats = BackwardMemory(spec_, nullptr).floats, sum_floats = KeySums(spec_, nullptr).floats;
  const int64_t heads = spec_.batch * spec_.k.heads, units = heads * parts_;
  float* scratch = context.Scratch<float>(scratch_);
  float* sums = scratch + threads_ * floats;  // of each thread where it has whole heads, else of all units
  ParallelFor(threads_, threads_, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      OnBestTiles([&](auto registers) {
        BackwardWorker<decltype(registers)> worker(task, scratch + thread * floats);
        for (int64_t u = units * thread / threads_; u < units * (thread + 1) / threads_; ++u) {
          float* own = sums + (parts_ > 1 ? u : thread) * sum_floats;
          worker.Run(u, KeySums(spec_, own));
          if (parts_ == 1) StoreKeys(task, u, own);
        }
      });
    }
  });
  if (parts_ == 1) return;
  ParallelFor(threads_, heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t head = first; head < last; ++head) StoreKeys(task, head, sums + head * parts_ * sum_floats);
  });
}

TiledAttentionGrad TiledAttentionGrad::Make(KernelInfo& info, DType dtype, const AttentionSpec& spec,
                                            const Layouts& d) {
  TiledAttentionGrad out;
  out.spec_ = spec;
  out.d_ = d;
  out.dtype_ = dtype;
  // A thread is worth about 64k products.
  const int64_t work = (spec.score_count() * (spec.q.size + spec.v.size)) >> 15;
  const int64_t heads = spec.batch * spec.k.heads, tiles = TilesOf(spec) * spec.group();
  const int64_t threads = std::clamp<int64_t>(std::min(work, heads * tiles), 1, info.threads());
  // Heads are cut only where whole ones would leave threads idle for long.
  out.parts_ = heads % threads == 0 || heads >= 8 * threads ? 1 : std::min(tiles, threads);
  out.threads_ = static_cast<int>(threads);
  const int64_t sums = out.parts_ == 1 ? threads : heads * out.parts_;
  const int64_t floats = threads * BackwardMemory(spec, nullptr).floats + sums * KeySums(spec, nullptr).floats;
  out.scratch_ = info.BookScratch(floats * sizeof(float));
  return out;
}

}  // namespace caesura
