// SPDX-License-Identifier: Apache-2.0
#include "core/ops/attention/attention_tiled.h"

#include <cmath>
#include <type_traits>

#include "core/ops/attention/attention_tiles.h"
#include "core/kernels/simd/parallel.h"

namespace caesura {
namespace {

using namespace tiles;

// The two products of a tile of queries: S = scale * Q K^T for a block of keys, and Y += P V.
template <typename R>
class FloatProducts {
 public:
  using Registers = R;

  FloatProducts(const AttentionSpec& s, DType dtype, const TiledAttention::Tensors& t,
                Carver& memory)
      : s_(s),
        dtype_(dtype),
        t_(t),
        size_(RoundUp(s.q.size, kTileLanes)),
        value_size_(RoundUp(s.v.size, kTileLanes)) {
    panels_ = memory.Take(RoundUp(s.total, kPanel) * size_);
    values_ = memory.Take(s.total * value_size_);
    rows_ = memory.Take(kPanel * size_);
    q_ = memory.Take(kQueries * size_);
  }

  void LoadKeys(int64_t b, int64_t h) {
    LoadPanels(dtype_, t_.k, s_.k, s_.k.Head(b, h), {rows_, kPanel, size_}, false, panels_);
    LoadRows(dtype_, t_.v, {&s_.v, s_.v.Head(b, h), 0, s_.total}, 1.0f,
             {values_, s_.total, value_size_});
  }

  void LoadQueries(const QueryTile& tile) {
    LoadRows(dtype_, t_.q, tile.Rows(s_.q), static_cast<float>(s_.scale),
             {q_, RoundUp(tile.rows(), kStrip), size_});
  }

  // A panel of keys stays in the L1 cache while the strips pass.
  void Scores(const QueryTile& tile, int64_t block, float* scores) const {
    for (int64_t p = block; p < std::min(block + kKeys, tile.all.last); p += kPanel) {
      for (int64_t r = 0; r < tile.rows(); r += kStrip) {
        const StripKeys keys = tile.Keys(r, p, p + kPanel);
        if (keys.empty()) continue;
        MultiplyStrip<R, false, false>(q_ + r * size_, size_, panels_ + p * size_ + keys.from() - p,
                                       kPanel, s_.q.size, scores + r * kKeys + keys.from() - block,
                                       kKeys, keys.to() - keys.from());
      }
    }
  }

  void AddValues(const QueryTile& tile, int64_t block, const float* shares, float* y) const {
    for (int64_t c = 0; c < value_size_; c += kPanel) {
      for (int64_t r = 0; r < tile.rows(); r += kStrip) {
        const StripKeys keys = tile.Keys(r, block, block + kKeys);
        if (keys.empty()) continue;
        MultiplyStrip<R, false, true>(shares + r * kKeys + keys.first - block, kKeys,
                                      values_ + keys.first * value_size_ + c, value_size_,
                                      keys.last - keys.first, y + r * value_size_ + c, value_size_,
                                      std::min(kPanel, value_size_ - c));
      }
    }
  }

 private:
  const AttentionSpec& s_;
  const DType dtype_;
  const TiledAttention::Tensors& t_;
  const int64_t size_, value_size_;       // padded
  float *panels_, *values_, *rows_, *q_;  // values: all of a head's; rows: one panel's keys
};

// The same of bfloat16 tiles; P is rounded to them.
class AmxProducts {
 public:
  using Registers = tiles::Registers<Vectors64>;

  AmxProducts(const AttentionSpec& s, DType, const TiledAttention::Tensors& t, Carver& memory)
      : s_(s), t_(t), value_size_(RoundUp(s.v.size, kTileLanes)) {
    const int64_t total = RoundUp(s.total, kPanel);
    keys_ = memory.TakeTiles(total, s.q.size);
    values_ = memory.TakeTiles(value_size_, total);
    q_ = memory.TakeTiles(kQueries, s.q.size);
    shares_ = memory.TakeTiles(kQueries, kKeys);
  }

  void LoadKeys(int64_t b, int64_t h) {
    // Memory after the keys in use may hold anything.
    const int64_t count =
        t_.lengths == nullptr ? s_.total : std::clamp<int64_t>(t_.lengths[b], 0, s_.total);
    amx::PackRightTurned(HalvesOf({&s_.k, s_.k.Head(b, h), 0, count}, t_.k),
                         AmxLines(RoundUp(s_.total, kPanel)), keys_.step, keys_);
    amx::PackRight(HalvesOf({&s_.v, s_.v.Head(b, h), 0, count}, t_.v), AmxLines(value_size_),
                   values_.step, values_);
  }

  void LoadQueries(const QueryTile& tile) {
    amx::PackLeft(HalvesOf(tile.Rows(s_.q), t_.q), AmxLines(kQueries), q_.step, q_);
  }

  void Scores(const QueryTile& tile, int64_t block, float* scores) const {
    const int64_t keys = KeysOfBlock(tile, block);
    amx::Multiply(q_, keys_.From(block / amx::kLines, 0), q_.step, scores, kKeys,
                  AmxLines(tile.rows()), AmxLines(keys), false);
    ScaleScores<Registers>(tile, block, static_cast<float>(s_.scale), scores);
  }

  void AddValues(const QueryTile& tile, int64_t block, float* shares, float* y) const {
    const int64_t deep = AmxDeep(KeysOfBlock(tile, block)), rows = AmxLines(tile.rows());
    Blank(tile, block, shares);
    amx::NarrowLeft(shares, kKeys, rows, deep, shares_);
    amx::Multiply(shares_, values_.From(0, block / amx::kDepth), deep, y, value_size_, rows,
                  AmxLines(value_size_), true);
  }

 private:
  const AttentionSpec& s_;
  const TiledAttention::Tensors& t_;
  const int64_t value_size_;
  amx::Tiles keys_, values_, q_, shares_;
  amx::Registers registers_;
};

// One thread's work: query tiles of heads.
template <typename Products>
class ForwardWorker {
 public:
  ForwardWorker(const AttentionSpec& spec, const AttentionSpec& whole, DType dtype,
                const TiledAttention::Tensors& t, Carver memory)
      : spec_(spec),
        whole_(whole),
        dtype_(dtype),
        t_(t),
        products_(spec, dtype, t, memory),
        value_size_(RoundUp(spec.v.size, kTileLanes)),
        scores_(memory.Take(kQueries * kKeys)),
        y_(memory.Take(kQueries * value_size_)),
        floats_(memory.taken()) {}

  // That its memory has.
  int64_t floats() const { return floats_; }

  // Unit u: a query head and a tile of it, the latter faster.
  void Run(int64_t first, int64_t last) {
    const int64_t tiles = TilesOf(spec_);
    int64_t loaded = -1;
    for (int64_t u = first; u < last; ++u) {
      const int64_t key_head = u / tiles / spec_.group();
      tile_.b = u / tiles / spec_.q.heads;
      tile_.head = u / tiles % spec_.q.heads;
      if (key_head != loaded) {
        products_.LoadKeys(tile_.b, key_head % spec_.k.heads);
        s_ = StandsForMask(spec_, whole_) && !IsFinite(key_head % spec_.k.heads) ? &whole_ : &spec_;
      }
      loaded = key_head;
      tile_.Place(*s_, u % tiles, tiles, t_.lengths);
      RunTile();
    }
  }

 private:
  using R = typename Products::Registers;
  using Floats = typename R::Floats;

  // True if all scores and values of a key head are.
  bool IsFinite(int64_t h) const {
    const float value =
        Magnitude(dtype_, t_.v, {&spec_.v, spec_.v.Head(tile_.b, h), 0, spec_.v.positions});
    return std::isfinite(value) &&
           ProductsAreFinite(dtype_, spec_, tile_.b, h, t_.q, spec_.q, t_.k, spec_.k);
  }

  void RunTile() {
    products_.LoadQueries(tile_);
    std::fill_n(y_, kQueries * value_size_, 0.0f);
    std::fill_n(max_, kQueries, kMinusInfinity);
    std::fill_n(sum_, kQueries, 0.0f);
    for (int64_t j = RoundDown(tile_.all.first, kPanel); j < tile_.all.last; j += kKeys) {
      products_.Scores(tile_, j, scores_);
      for (int64_t r = 0; r < tile_.rows(); r += kStrip) Probabilities(r, j);
      products_.AddValues(tile_, j, scores_, y_);
    }
    Store();
  }

  void Probabilities(int64_t strip, int64_t block) {
    const StripKeys keys = tile_.Keys(strip, block, block + kKeys);
    if (keys.empty()) return;
    const int64_t count = keys.to() - keys.from();
    for (int64_t r = strip; r < strip + kStrip; ++r) {
      float* row = scores_ + r * kKeys + keys.from() - block;
      const int64_t i = tile_.begin + r;
      if (r < tile_.rows()) {
        BiasRow(dtype_, *s_, t_.mask, s_->MaskRow(tile_.b, tile_.head, i), keys,
                s_->Sees(tile_.b, i, t_.lengths), row);
        Softmax(r, row, count);
      } else {
        std::fill_n(row, count, 0.0f);
      }
    }
  }

  // Scores to probabilities under the maximum so far; what was summed under an older one is scaled
  // down. NaN stays.
  void Softmax(int64_t r, float* row, int64_t count) {
    Floats top = R::At(row);
    for (int64_t j = R::kWidth; j < count; j += R::kWidth)
      top = R::At(row + j) < top ? top : R::At(row + j);
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
      for (int64_t c = 0; c < value_size_; c += R::kWidth)
        R::At(y_ + r * value_size_ + c) *= factor;
    }
    max_[r] = max;
    sum_[r] += Sum(total);
  }

  void Store() {
    const NanRows nan = spec_.nan_rows;
    for (int64_t r = 0; r < tile_.rows(); ++r) {
      if (nan == NanRows::kZero && std::isnan(sum_[r])) ZeroRow(r);
      const float inverse = sum_[r] == 0 && nan != NanRows::kKept ? 0.0f : 1 / sum_[r];
      for (int64_t c = 0; c < value_size_; c += R::kWidth)
        R::At(y_ + r * value_size_ + c) *= inverse;
    }
    StoreRows(dtype_, {y_, tile_.rows(), value_size_}, 1.0f, tile_.Rows(spec_.y), t_.y);
    if (t_.lse == nullptr) return;
    float* lse = t_.lse + (tile_.b * spec_.q.heads + tile_.head) * spec_.queries() + tile_.begin;
    const float nowhere =
        nan == NanRows::kKept ? std::numeric_limits<float>::quiet_NaN() : -kMinusInfinity;
    for (int64_t r = 0; r < tile_.rows(); ++r)
      lse[r] = sum_[r] == 0 ? nowhere : max_[r] + std::log(sum_[r]);
  }

  // A row of NaN probabilities becomes what zeros in their place give: zeros, but for values that
  // are not finite.
  void ZeroRow(int64_t r) {
    sum_[r] = 0;
    float* row = y_ + r * value_size_;
    std::fill_n(row, value_size_, 0.0f);
    const HeadLayout& values = spec_.v;
    const int64_t head = values.Head(tile_.b, tile_.head / spec_.group());
    for (int64_t c = 0; c < values.size; ++c) {
      HeadLayout column = values;
      column.size = 1;
      const float top =
          Magnitude(dtype_, t_.v, {&column, head + c * values.col_stride, 0, values.positions});
      row[c] = 0 * top;
    }
  }

  const AttentionSpec &spec_, &whole_;
  const AttentionSpec* s_ = nullptr;  // the one of the two that serves the head
  const DType dtype_;
  const TiledAttention::Tensors& t_;
  Products products_;
  const int64_t value_size_;  // padded
  float *const scores_, *const y_;
  const int64_t floats_;
  QueryTile tile_;
  float max_[kQueries], sum_[kQueries];
};

// The floats of one worker's memory.
template <typename Products>
int64_t FloatsOf(const AttentionSpec& s, DType dtype) {
  return ForwardWorker<Products>(s, s, dtype, {}, Carver(nullptr)).floats();
}

}  // namespace

void TiledAttention::Run(KernelContext& context, const Tensors& tensors) const {
  // Heads that share keys stay with one thread where there is enough of it.
  const int64_t key_heads = spec_.batch * spec_.k.heads,
                units = spec_.batch * spec_.q.heads * TilesOf(spec_);
  const int64_t items = key_heads >= 2 * threads_ ? key_heads : threads_;
  WorkQueue queue(items);
  float* scratch = context.Scratch<float>(scratch_);
  ParallelFor(threads_, threads_, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      OnBestTiles([&](auto registers) {
        using R = decltype(registers);
        auto run = [&]<typename Products>(std::type_identity<Products>) {
          ForwardWorker<Products> worker(spec_, whole_, dtype_, tensors,
                                         Carver(scratch + thread * floats_));
          for (int64_t i; queue.Take(&i);) worker.Run(units * i / items, units * (i + 1) / items);
        };
        if constexpr (std::is_same_v<R, AmxProducts::Registers>) {
          if (by_amx_) return run(std::type_identity<AmxProducts>());
        }
        run(std::type_identity<FloatProducts<R>>());
      });
    }
  });
}

TiledAttention TiledAttention::Make(KernelInfo& info, DType dtype, const AttentionSpec& spec,
                                    const AttentionSpec& whole) {
  TiledAttention out;
  out.spec_ = spec;
  out.whole_ = whole;
  out.dtype_ = dtype;
  // A thread is worth about 64k products.
  const int64_t work = (spec.score_count() * (spec.q.size + spec.v.size)) >> 16;
  const int64_t units = spec.batch * spec.q.heads * TilesOf(spec);
  out.threads_ = static_cast<int>(std::clamp<int64_t>(std::min(work, units), 1, info.threads()));
  out.by_amx_ = AmxServes(dtype, spec);
  out.floats_ = out.by_amx_ ? FloatsOf<AmxProducts>(spec, dtype)
                            : FloatsOf<FloatProducts<Registers<Vectors16>>>(spec, dtype);
  out.scratch_ = info.BookScratch(out.threads_ * out.floats_ * sizeof(float));
  return out;
}

}  // namespace caesura
