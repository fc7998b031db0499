// SPDX-License-Identifier: Apache-2.0
// With S = scale * Q K^T + bias, P = e^(S - lse), Y = P V, for each tile of queries and block of
// keys:
//   dP = dY V^T, dS = P * (dP - sum of dY Y), dQ += scale * dS K, dK += scale * dS^T Q, dV += P^T
//   dY
#include "core/ops/attention/attention_tiled_grad.h"

#include <cmath>
#include <type_traits>

#include "core/ops/attention/attention_tiles.h"
#include "core/kernels/simd/parallel.h"

namespace caesura {
namespace {

using namespace tiles;

// dK and dV of a key head, or what a part of the query tiles adds to them.
struct KeySums {
  float *dk, *dv;
  int64_t floats;

  KeySums(const AttentionSpec& s, float* block) {
    Carver carver(block);
    dk = carver.Take(RoundUp(s.total, kPanel) * RoundUp(s.q.size, kTileLanes));
    dv = carver.Take(RoundUp(s.total, kPanel) * RoundUp(s.v.size, kTileLanes));
    floats = carver.taken();
  }
};

struct Task {
  const AttentionSpec &s, &whole;
  const TiledAttentionGrad::Layouts& d;
  const TiledAttentionGrad::Tensors& t;
  DType dtype;
  int64_t parts;
};

// The five products of a tile of queries and a block of keys.
template <typename R>
class FloatGradientProducts {
 public:
  using Registers = R;

  FloatGradientProducts(const Task& task, Carver& memory)
      : s_(task.s),
        t_(task.t),
        dtype_(task.dtype),
        size_(RoundUp(s_.q.size, kTileLanes)),
        value_size_(RoundUp(s_.v.size, kTileLanes)) {
    const int64_t total = RoundUp(s_.total, kPanel);
    key_panels_ = memory.Take(total * size_);
    value_panels_ = memory.Take(total * value_size_);
    keys_ = memory.Take(total * size_);
    values_ = memory.Take(kPanel * value_size_);
    q_ = memory.Take(kQueries * size_);
  }

  void LoadKeys(int64_t b, int64_t h) {
    LoadPanels(dtype_, t_.k, s_.k, s_.k.Head(b, h), {keys_, kPanel, size_}, true, key_panels_);
    LoadPanels(dtype_, t_.v, s_.v, s_.v.Head(b, h), {values_, kPanel, value_size_}, false,
               value_panels_);
  }

  // Q is scaled as it is loaded: both S and dK want it so. `dy`: its tile of floats.
  void LoadQueries(const QueryTile& tile, const float* dy) {
    LoadRows(dtype_, t_.q, tile.Rows(s_.q), static_cast<float>(s_.scale),
             {q_, RoundUp(tile.rows(), kStrip), size_});
    dy_ = dy;
  }

  // S and dP of a block. A panel of keys stays in the L1 cache while the strips pass.
  void Scores(const QueryTile& tile, int64_t block, float* scores, float* slopes) const {
    for (int64_t p = block; p < std::min(block + kKeys, tile.all.last); p += kPanel) {
      for (int64_t r = 0; r < tile.rows(); r += kStrip) {
        const StripKeys keys = tile.Keys(r, p, p + kPanel);
        if (keys.empty()) continue;
        const int64_t columns = keys.to() - keys.from(), to = r * kKeys + keys.from() - block;
        MultiplyStrip<R, false, false>(q_ + r * size_, size_,
                                       key_panels_ + p * size_ + keys.from() - p, kPanel, s_.q.size,
                                       scores + to, kKeys, columns);
        MultiplyStrip<R, false, false>(dy_ + r * value_size_, value_size_,
                                       value_panels_ + p * value_size_ + keys.from() - p, kPanel,
                                       s_.v.size, slopes + to, kKeys, columns);
      }
    }
  }

  // dQ += dS K, where `dq` is not null; dK += dS^T Q; dV += P^T dY.
  void AddGradients(const QueryTile& tile, int64_t block, const float* shares, const float* slopes,
                    float* dq, const KeySums& sums) const {
    if (dq != nullptr) AddQueries(tile, block, slopes, dq);
    for (int64_t k = block; k < std::min(block + kKeys, tile.all.last); k += kStrip) {
      AddKeys(tile, k, block, shares, slopes, sums);
    }
  }

 private:
  void AddQueries(const QueryTile& tile, int64_t block, const float* slopes, float* dq) const {
    for (int64_t c = 0; c < size_; c += kPanel) {
      for (int64_t r = 0; r < tile.rows(); r += kStrip) {
        const StripKeys keys = tile.Keys(r, block, block + kKeys);
        if (keys.empty()) continue;
        MultiplyStrip<R, false, true>(slopes + r * kKeys + keys.first - block, kKeys,
                                      keys_ + keys.first * size_ + c, size_, keys.last - keys.first,
                                      dq + r * size_ + c, size_, std::min(kPanel, size_ - c));
      }
    }
  }

  // Adds to the strip of keys at `k` from the strips of queries that see any of it. Those are
  // neighbours, as what a query sees moves on with the query.
  void AddKeys(const QueryTile& tile, int64_t k, int64_t block, const float* shares,
               const float* slopes, const KeySums& sums) const {
    int64_t first = 0, last = tile.rows();
    while (first < last && tile.Keys(first, k, k + kStrip).empty()) first += kStrip;
    last = first;
    while (last < tile.rows() && !tile.Keys(last, k, k + kStrip).empty()) last += kStrip;
    const int64_t at = first * kKeys + k - block, depth = last - first;
    for (int64_t c = 0; c < value_size_; c += kPanel) {
      MultiplyStrip<R, true, true>(shares + at, kKeys, dy_ + first * value_size_ + c, value_size_,
                                   depth, sums.dv + k * value_size_ + c, value_size_,
                                   std::min(kPanel, value_size_ - c));
    }
    for (int64_t c = 0; c < size_; c += kPanel) {
      MultiplyStrip<R, true, true>(slopes + at, kKeys, q_ + first * size_ + c, size_, depth,
                                   sums.dk + k * size_ + c, size_, std::min(kPanel, size_ - c));
    }
  }

  const AttentionSpec& s_;
  const TiledAttentionGrad::Tensors& t_;
  const DType dtype_;
  const int64_t size_, value_size_;                           // padded
  float *key_panels_, *value_panels_, *keys_, *values_, *q_;  // values: one panel's
  const float* dy_ = nullptr;
};

// The same of bfloat16 tiles; P and dS are rounded to them. dK still wants the scale.
class AmxGradientProducts {
 public:
  using Registers = tiles::Registers<Vectors64>;

  AmxGradientProducts(const Task& task, Carver& memory)
      : s_(task.s),
        d_(task.d),
        t_(task.t),
        size_(RoundUp(s_.q.size, kTileLanes)),
        value_size_(RoundUp(s_.v.size, kTileLanes)) {
    const int64_t total = RoundUp(s_.total, kPanel);
    turned_keys_ = memory.TakeTiles(total, s_.q.size);
    turned_values_ = memory.TakeTiles(total, s_.v.size);
    keys_ = memory.TakeTiles(size_, total);
    q_left_ = memory.TakeTiles(kQueries, s_.q.size);
    q_right_ = memory.TakeTiles(size_, kQueries);
    dy_left_ = memory.TakeTiles(kQueries, s_.v.size);
    dy_right_ = memory.TakeTiles(value_size_, kQueries);
    rounded_ = memory.TakeTiles(kQueries, kKeys);
  }

  void LoadKeys(int64_t b, int64_t h) {
    const int64_t lines = AmxLines(RoundUp(s_.total, kPanel));
    const amx::Halves keys = HalvesOf({&s_.k, s_.k.Head(b, h), 0, s_.total}, t_.k);
    amx::PackRightTurned(keys, lines, turned_keys_.step, turned_keys_);
    amx::PackRight(keys, AmxLines(size_), keys_.step, keys_);
    amx::PackRightTurned(HalvesOf({&s_.v, s_.v.Head(b, h), 0, s_.total}, t_.v), lines,
                         turned_values_.step, turned_values_);
  }

  void LoadQueries(const QueryTile& tile, const float*) {
    const amx::Halves q = HalvesOf(tile.Rows(s_.q), t_.q), dy = HalvesOf(tile.Rows(d_.dy), t_.dy);
    amx::PackLeft(q, AmxLines(kQueries), q_left_.step, q_left_);
    amx::PackRight(q, AmxLines(size_), q_right_.step, q_right_);
    amx::PackLeft(dy, AmxLines(kQueries), dy_left_.step, dy_left_);
    amx::PackRight(dy, AmxLines(value_size_), dy_right_.step, dy_right_);
  }

  void Scores(const QueryTile& tile, int64_t block, float* scores, float* slopes) const {
    const int64_t rows = AmxLines(tile.rows()), keys = AmxLines(KeysOfBlock(tile, block)),
                  at = block / amx::kLines;
    amx::Multiply(q_left_, turned_keys_.From(at, 0), q_left_.step, scores, kKeys, rows, keys,
                  false);
    amx::Multiply(dy_left_, turned_values_.From(at, 0), dy_left_.step, slopes, kKeys, rows, keys,
                  false);
    ScaleScores<Registers>(tile, block, static_cast<float>(s_.scale), scores);
  }

  void AddGradients(const QueryTile& tile, int64_t block, float* shares, float* slopes, float* dq,
                    const KeySums& sums) const {
    const int64_t keys = KeysOfBlock(tile, block), deep = AmxDeep(tile.rows());
    Blank(tile, block, shares);
    Blank(tile, block, slopes);
    const amx::Tiles turned = {rounded_.at, AmxDeep(kQueries)};
    amx::NarrowLeftTurned(shares, kKeys, AmxLines(keys), deep, turned);
    amx::Multiply(turned, dy_right_, deep, sums.dv + block * value_size_, value_size_,
                  AmxLines(keys), AmxLines(value_size_), true);
    amx::NarrowLeftTurned(slopes, kKeys, AmxLines(keys), deep, turned);
    amx::Multiply(turned, q_right_, deep, sums.dk + block * size_, size_, AmxLines(keys),
                  AmxLines(size_), true);
    if (dq == nullptr) return;
    amx::NarrowLeft(slopes, kKeys, AmxLines(tile.rows()), AmxDeep(keys), rounded_);
    amx::Multiply(rounded_, keys_.From(0, block / amx::kDepth), AmxDeep(keys), dq, size_,
                  AmxLines(tile.rows()), AmxLines(size_), true);
  }

 private:
  const AttentionSpec& s_;
  const TiledAttentionGrad::Layouts& d_;
  const TiledAttentionGrad::Tensors& t_;
  const int64_t size_, value_size_;
  amx::Tiles turned_keys_, turned_values_, keys_, q_left_, q_right_, dy_left_, dy_right_;
  amx::Tiles rounded_;  // the left side of one product: as many tiles turned
  amx::Registers registers_;
};

// One thread's work.
template <typename Products>
class BackwardWorker {
 public:
  BackwardWorker(const Task& task, Carver memory)
      : spec_(task.s),
        whole_(task.whole),
        d_(task.d),
        t_(task.t),
        dtype_(task.dtype),
        parts_(task.parts),
        products_(task, memory),
        size_(RoundUp(spec_.q.size, kTileLanes)),
        value_size_(RoundUp(spec_.v.size, kTileLanes)) {
    dy_ = memory.Take(kQueries * value_size_);
    dq_ = memory.Take(kQueries * std::max(size_, value_size_));
    scores_ = memory.Take(kQueries * kKeys);
    slopes_ = memory.Take(kQueries * kKeys);
    floats_ = memory.taken();
  }

  // That its memory has.
  int64_t floats() const { return floats_; }

  // Unit u: a key head and a part of the query tiles that look at it, the latter faster. Fills
  // `sums`, writes dQ.
  void Run(int64_t unit, const KeySums& sums) {
    const int64_t tiles = TilesOf(spec_), all = tiles * spec_.group();
    const int64_t key_head = unit / parts_, part = unit % parts_, h = key_head % spec_.k.heads;
    std::fill_n(sums.dk, sums.floats, 0.0f);
    tile_.b = key_head / spec_.k.heads;
    products_.LoadKeys(tile_.b, h);
    s_ = StandsForMask(spec_, whole_) && !IsFinite(h) ? &whole_ : &spec_;
    for (int64_t u = all * part / parts_; u < all * (part + 1) / parts_; ++u) {
      tile_.head = h * spec_.group() + u / tiles;
      tile_.Place(*s_, u % tiles, tiles, nullptr);
      RunTile(sums);
    }
  }

 private:
  using R = typename Products::Registers;
  using Floats = typename R::Floats;

  // True if all products of a key head are.
  bool IsFinite(int64_t h) const {
    return ProductsAreFinite(dtype_, spec_, tile_.b, h, t_.q, spec_.q, t_.k, spec_.k) &&
           ProductsAreFinite(dtype_, spec_, tile_.b, h, t_.dy, d_.dy, t_.v, spec_.v);
  }

  void LoadQueries() {
    const int64_t rows = RoundUp(tile_.rows(), kStrip);
    const float* lse =
        t_.lse + (tile_.b * spec_.q.heads + tile_.head) * spec_.queries() + tile_.begin;
    float* y = dq_;
    LoadRows(dtype_, t_.dy, tile_.Rows(d_.dy), 1.0f, {dy_, rows, value_size_});
    LoadRows(dtype_, t_.y, tile_.Rows(spec_.y), 1.0f, {y, rows, value_size_});
    products_.LoadQueries(tile_, dy_);
    for (int64_t r = 0; r < tile_.rows(); ++r) {
      Floats dot = {};
      const int64_t row = r * value_size_;
      for (int64_t c = 0; c < value_size_; c += R::kWidth)
        dot += R::At(dy_ + row + c) * R::At(y + row + c);
      mean_[r] = Sum(dot);
      lse_[r] = lse[r];
    }
    std::fill_n(dq_, kQueries * size_, 0.0f);
  }

  // P = e^(S - lse) says nothing where scores are so large that lse has no digits left, as of
  // queries whose keys all have -1e9 added: the sums of such rows are taken again.
  void ScaleFarRows() {
    constexpr float kFar = 1e4f;
    std::fill_n(factor_, kQueries, 1.0f);
    const auto is_far = [](float lse) { return std::fabs(lse) > kFar && std::isfinite(lse); };
    if (std::none_of(lse_, lse_ + tile_.rows(), is_far)) return;
    float total[kQueries] = {};
    for (int64_t j = RoundDown(tile_.all.first, kPanel); j < tile_.all.last; j += kKeys) {
      products_.Scores(tile_, j, scores_, slopes_);
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) Slopes(r, j);
      for (int64_t r = 0; r < tile_.rows(); ++r) {
        const StripKeys keys = tile_.Keys(r, j, j + kKeys);
        const float* row = scores_ + r * kKeys - j;
        for (int64_t k = keys.first; k < keys.last; ++k) total[r] += row[k];
      }
    }
    for (int64_t r = 0; r < tile_.rows(); ++r) {
      if (is_far(lse_[r])) factor_[r] = 1 / total[r];
    }
  }

  void RunTile(const KeySums& sums) {
    LoadQueries();
    ScaleFarRows();
    for (int64_t j = RoundDown(tile_.all.first, kPanel); j < tile_.all.last; j += kKeys) {
      products_.Scores(tile_, j, scores_, slopes_);
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) Slopes(r, j);
      products_.AddGradients(tile_, j, scores_, slopes_, t_.dq == nullptr ? nullptr : dq_, sums);
    }
    if (t_.dq == nullptr) return;
    StoreRows(dtype_, {dq_, tile_.rows(), size_}, static_cast<float>(spec_.scale),
              tile_.Rows(d_.dq), t_.dq);
  }

  // S becomes P, and dP becomes dS.
  void Slopes(int64_t strip, int64_t block) {
    const StripKeys keys = tile_.Keys(strip, block, block + kKeys);
    if (keys.empty()) return;
    const int64_t count = keys.to() - keys.from();
    for (int64_t r = strip; r < strip + kStrip; ++r) {
      const int64_t i = tile_.begin + r, at = r * kKeys + keys.from() - block;
      float *p = scores_ + at, *slope = slopes_ + at;
      if (r >= tile_.rows()) {
        std::fill_n(p, count, 0.0f);
        std::fill_n(slope, count, 0.0f);
        continue;
      }
      BiasRow(dtype_, *s_, t_.mask, s_->MaskRow(tile_.b, tile_.head, i), keys,
              s_->Sees(tile_.b, i, nullptr), p);
      const float lse = lse_[r], mean = mean_[r];
      if (s_->nan_rows == NanRows::kZero &&
          lse == -kMinusInfinity) {  // softmax's own gradient is NaN there
        std::fill_n(p, count, 0.0f);
        std::fill_n(slope, count, std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      for (int64_t j = 0; j < count; j += R::kWidth) {
        Floats x = R::At(p + j) - lse;
        Exp<R>(x);
        R::At(p + j) = x;
        R::At(slope + j) = x * (R::At(slope + j) - mean);
      }
      if (factor_[r] != 1) {
        for (int64_t j = 0; j < count; ++j) {
          p[j] *= factor_[r];
          slope[j] *= factor_[r];
        }
      }
      if (s_->nan_rows != NanRows::kByMask && s_->mask == MaskKind::kBool) {
        HideSlopes(*s_, t_.mask,
                   s_->MaskRow(tile_.b, tile_.head, i) + keys.from() * s_->mask_strides[3],
                   std::min(keys.to(), s_->total) - keys.from(), slope);
      }
    }
  }

  const AttentionSpec &spec_, &whole_;
  const AttentionSpec* s_ = nullptr;  // the one of the two that serves the head
  const TiledAttentionGrad::Layouts& d_;
  const TiledAttentionGrad::Tensors& t_;
  const DType dtype_;
  const int64_t parts_;
  Products products_;
  const int64_t size_, value_size_;      // padded
  float *dy_, *dq_, *scores_, *slopes_;  // dq: before that, Y
  int64_t floats_;
  QueryTile tile_;
  float lse_[kQueries], mean_[kQueries], factor_[kQueries];
};

// Adds the parts of a key head to the first of them, in order, and writes the result.
void StoreKeys(const Task& task, int64_t key_head, float key_scale, float* parts) {
  const AttentionSpec& s = task.s;
  const KeySums sums(s, parts);
  for (int64_t part = 1; part < task.parts; ++part) {
    for (int64_t i = 0; i < sums.floats; ++i) parts[i] += parts[part * sums.floats + i];
  }
  auto store = [&](const float* from, const HeadLayout& layout, float scale, void* to) {
    if (to == nullptr) return;
    const HeadRows rows = {&layout, layout.Head(key_head / s.k.heads, key_head % s.k.heads), 0,
                           s.total};
    StoreRows(task.dtype, {const_cast<float*>(from), s.total, RoundUp(layout.size, kTileLanes)},
              scale, rows, to);
  };
  store(sums.dk, task.d.dk, key_scale, task.t.dk);
  store(sums.dv, task.d.dv, 1.0f, task.t.dv);
}

// The floats of one worker's memory.
template <typename Products>
int64_t FloatsOf(const Task& task) {
  return BackwardWorker<Products>(task, Carver(nullptr)).floats();
}

}  // namespace

void TiledAttentionGrad::Run(KernelContext& context, const Tensors& tensors) const {
  const Task task = {spec_, whole_, d_, tensors, dtype_, parts_};
  const int64_t sum_floats = KeySums(spec_, nullptr).floats;
  const int64_t heads = spec_.batch * spec_.k.heads, units = heads * parts_;
  WorkQueue queue(units);
  float* scratch = context.Scratch<float>(scratch_);
  const float key_scale = by_amx_ ? static_cast<float>(spec_.scale) : 1.0f;
  float* sums =
      scratch + threads_ * floats_;  // of each thread where it has whole heads, else of all units
  ParallelFor(threads_, threads_, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      OnBestTiles([&](auto registers) {
        using R = decltype(registers);
        auto run = [&]<typename Products>(std::type_identity<Products>) {
          BackwardWorker<Products> worker(task, Carver(scratch + thread * floats_));
          for (int64_t u; queue.Take(&u);) {
            float* own = sums + (parts_ > 1 ? u : thread) * sum_floats;
            worker.Run(u, KeySums(spec_, own));
            if (parts_ == 1) StoreKeys(task, u, key_scale, own);
          }
        };
        if constexpr (std::is_same_v<R, AmxGradientProducts::Registers>) {
          if (by_amx_) return run(std::type_identity<AmxGradientProducts>());
        }
        run(std::type_identity<FloatGradientProducts<R>>());
      });
    }
  });
  if (parts_ == 1) return;
  ParallelFor(threads_, heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t head = first; head < last; ++head)
      StoreKeys(task, head, key_scale, sums + head * parts_ * sum_floats);
  });
}

TiledAttentionGrad TiledAttentionGrad::Make(KernelInfo& info, DType dtype,
                                            const AttentionSpec& spec, const AttentionSpec& whole,
                                            const Layouts& d) {
  TiledAttentionGrad out;
  out.spec_ = spec;
  out.whole_ = whole;
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
  out.by_amx_ = AmxServes(dtype, spec);
  const Task task = {out.spec_, out.whole_, out.d_, {}, dtype, out.parts_};
  out.floats_ = out.by_amx_ ? FloatsOf<AmxGradientProducts>(task)
                            : FloatsOf<FloatGradientProducts<Registers<Vectors16>>>(task);
  const int64_t floats = threads * out.floats_ + sums * KeySums(spec, nullptr).floats;
  out.scratch_ = info.BookScratch(floats * sizeof(float));
  return out;
}

}  // namespace caesura
