// SPDX-License-Identifier: Apache-2.0
// MatMulNBits (com.microsoft): Y = A W^T + bias, and TransposedMatMulNBits (ai.caesura): Y = A W +
// bias.
// W [N, K] has 2, 4 or 8 bits an element, in blocks along its rows:
//   W[n, k] = (q[n, k] - zero point[n, k / block]) * scale[n, k / block]
// Tiles of W become float32 in scratch, one after the other, each in front of the float32 product
// that reads it: W is never there as a whole.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"

namespace caesura {
namespace {

enum Input { kA, kB, kScales, kZeroPoints, kGroupIndex, kBias };

// A tile of W: so many elements along the sums, and along the product's columns. As many as keep
// the product's own blocks of terms and columns as they are without tiles.
constexpr int64_t kTileTerms = 576, kTileColumns = 1024;
// Tiles begin at multiples of blocks, or, in longer blocks, of so many elements.
constexpr int64_t kLongestUnit = 64;

int64_t PartsOf(int64_t count, int64_t size) { return (count + size - 1) / size; }

// W, as its attributes and inputs say.
struct BlockMatrix {
  int64_t n, k;  // of W [n, k]
  int64_t bits, block;
  int64_t blocks;               // a row
  int64_t zero_bytes;           // of a row's packed zero points
  bool packed_zeros = false;    // zero points of `bits` each
  bool floating_zeros = false;  // neither: 2^(bits - 1)

  int64_t unit() const { return std::min(block, kLongestUnit); }
};

// The input may have this shape, or its elements in one dim.
Status CheckShape(const KernelInfo& info, int input, const char* name, const Shape& expected) {
  const Shape& shape = info.InputShape(input);
  if (shape == expected || shape == Shape{expected.elements()}) return {};
  return info.Invalid(std::string(name) + ": expected " + expected.ToString() + ", got " +
                      shape.ToString());
}

Status CheckDType(const KernelInfo& info, int input, const char* name, DType expected) {
  const DType dtype = info.InputDType(input);
  if (dtype == expected) return {};
  return info.Invalid(std::string(name) + ": expected " + DTypeName(expected) + ", got " +
                      DTypeName(dtype));
}

Result<BlockMatrix> MakeBlockMatrix(const KernelInfo& info) {
  BlockMatrix w{};
  const auto attribute = [&](const char* name, int64_t fallback, int64_t* value) -> Status {
    *value = info.Attr<int64_t>(name, fallback);
    if (*value > 0) return {};
    return info.Invalid(std::string(name) + ": expected a positive number, got " +
                        std::to_string(*value));
  };
  RETURN_IF_ERROR(attribute("N", 0, &w.n));
  RETURN_IF_ERROR(attribute("K", 0, &w.k));
  RETURN_IF_ERROR(attribute("bits", 4, &w.bits));
  RETURN_IF_ERROR(attribute("block_size", 0, &w.block));
  if (w.bits != 2 && w.bits != 4 && w.bits != 8)
    return info.Invalid("bits: expected 2, 4 or 8, got " + std::to_string(w.bits));
  if (w.block < 16 || (w.block & (w.block - 1)) != 0)
    return info.Invalid("block_size: expected a power of two from 16 on, got " +
                        std::to_string(w.block));
  w.blocks = PartsOf(w.k, w.block);
  w.zero_bytes = PartsOf(w.blocks * w.bits, 8);
  if (!info.HasInput(kB) || !info.HasInput(kScales))
    return info.Invalid("expected the inputs B and scales");
  RETURN_IF_ERROR(CheckDType(info, kB, "B", DType::kUInt8));
  const Shape packed{w.n, w.blocks, w.block * w.bits / 8};
  if (info.InputShape(kB) != packed) {
    return info.Invalid("B: expected " + packed.ToString() + ", got " +
                        info.InputShape(kB).ToString());
  }
  const DType dtype = info.InputDType(kA);
  RETURN_IF_ERROR(CheckDType(info, kScales, "scales", dtype));
  RETURN_IF_ERROR(CheckShape(info, kScales, "scales", {w.n, w.blocks}));
  if (!info.HasInput(kZeroPoints)) return w;
  w.packed_zeros = info.InputDType(kZeroPoints) == DType::kUInt8;
  w.floating_zeros = !w.packed_zeros;
  if (w.floating_zeros) {
    RETURN_IF_ERROR(CheckDType(info, kZeroPoints, "zero_points that are not uint8", dtype));
  }
  RETURN_IF_ERROR(CheckShape(info, kZeroPoints, "zero_points",
                             {w.n, w.packed_zeros ? w.zero_bytes : w.blocks}));
  return w;
}

// W in memory; one of the zero points is null, or both.
struct BlockData {
  const uint8_t* q;
  const float* scales;
  const uint8_t* packed_zeros;
  const float* floating_zeros;
};

// out[i] = (q[i] - zero) * scale. `q` holds whole 32-bit words.
template <int kBits>
inline void UnpackBlock(const uint8_t* q, int64_t count, float zero, float scale, float* out) {
  if constexpr (kBits == 8) {
    for (int64_t i = 0; i < count; ++i)
      out[i] = (static_cast<float>(static_cast<int32_t>(q[i])) - zero) * scale;
  } else {
    constexpr int kOfWord = 32 / kBits;
    for (int64_t i = 0; i < count; i += kOfWord, q += sizeof(uint32_t), out += kOfWord) {
      uint32_t word;
      std::memcpy(&word, q, sizeof(word));
#pragma omp simd
      for (int j = 0; j < kOfWord; ++j) {
        const auto number = static_cast<int32_t>(word >> (kBits * j) & ((1u << kBits) - 1));
        out[j] = (static_cast<float>(number) - zero) * scale;
      }
    }
  }
}

// A part of W, of whole units.
struct Tile {
  int64_t row, rows, column, columns;
};

// Rows [first, last) of the tile, [rows][columns].
template <int kBits>
void UnpackRows(const BlockMatrix& w, const BlockData& data, const Tile& tile, int64_t first,
                int64_t last, float* out) {
  const int64_t step = w.unit();
  out += first * tile.columns;
  for (int64_t row = tile.row + first; row < tile.row + last; ++row) {
    const uint8_t* q = data.q + (row * w.blocks * w.block + tile.column) * kBits / 8;
    for (int64_t c = 0; c < tile.columns; c += step, q += step * kBits / 8, out += step) {
      const int64_t b = (tile.column + c) / w.block;
      float zero = 1 << (kBits - 1);
      if (data.floating_zeros != nullptr) zero = data.floating_zeros[row * w.blocks + b];
      if (data.packed_zeros != nullptr) {
        const int byte = data.packed_zeros[row * w.zero_bytes + b * kBits / 8];
        zero = static_cast<float>(byte >> (b * kBits % 8) & ((1 << kBits) - 1));
      }
      UnpackBlock<kBits>(q, step, zero, data.scales[row * w.blocks + b], out);
    }
  }
}

void Unpack(int threads, const BlockMatrix& w, const BlockData& data, const Tile& tile,
            float* out) {
  ParallelFor(threads, tile.rows, PartsOf(kParallelGrain, tile.columns),
              [&](int64_t first, int64_t last) {
                OnBestIsa([&] {
                  if (w.bits == 2) UnpackRows<2>(w, data, tile, first, last, out);
                  else if (w.bits == 4) UnpackRows<4>(w, data, tile, first, last, out);
                  else UnpackRows<8>(w, data, tile, first, last, out);
                });
              });
}

// A W^T or A W as products with one tile of W each.
class TiledProduct {
 public:
  // `rows`: of A.
  static Result<TiledProduct> Make(KernelInfo& info, const BlockMatrix& w, int64_t rows,
                                   bool transposed) {
    TiledProduct out;
    out.w_ = w;
    out.threads_ = info.threads();
    out.transposed_ = transposed;
    const int64_t columns = transposed ? w.n : w.k, terms = transposed ? w.k : w.n;
    const int64_t unit = w.unit();
    const int64_t tile_columns = EvenPart(columns, kTileColumns, unit),
                  tile_terms = EvenPart(terms, kTileTerms, unit);
    out.scratch_ = info.BookScratch(tile_columns * tile_terms * sizeof(float));
    std::map<std::tuple<int64_t, int64_t, bool>, size_t> made;
    for (int64_t c = 0; c < columns; c += tile_columns) {
      for (int64_t t = 0; t < terms; t += tile_terms) {
        const int64_t n = std::min(tile_columns, columns - c), k = std::min(tile_terms, terms - t);
        const auto padded = [&](int64_t count) { return PartsOf(count, unit) * unit; };
        const Tile tile = transposed ? Tile{c, n, t, padded(k)} : Tile{t, k, c, padded(n)};
        const auto [it, fresh] = made.try_emplace({n, k, t == 0}, out.gemms_.size());
        if (fresh) {
          GemmSpec spec{.dtype = DType::kFloat32,
                        .m = rows,
                        .n = n,
                        .k = k,
                        .a = RowMajor(terms),
                        .b = transposed ? ColumnMajor(tile.columns) : RowMajor(tile.columns),
                        .c = RowMajor(columns)};
          spec.accumulate = t > 0;
          spec.bias = t == 0 && info.HasInput(kBias);
          ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info, std::move(spec)));
          out.gemms_.push_back(std::move(gemm));
        }
        out.calls_.push_back({it->second, tile, c, t});
      }
    }
    return out;
  }

  Status Run(KernelContext& context) const {
    const auto* zeros = context.Input<void>(kZeroPoints);
    const BlockData data{context.Input<uint8_t>(kB), context.Input<float>(kScales),
                         w_.packed_zeros ? static_cast<const uint8_t*>(zeros) : nullptr,
                         w_.floating_zeros ? static_cast<const float*>(zeros) : nullptr};
    const auto *a = context.Input<float>(kA), *bias = context.Input<float>(kBias);
    auto* y = context.Output<float>(0);
    auto* tile = context.Scratch<float>(scratch_);
    for (const Call& call : calls_) {
      Unpack(threads_, w_, data, call.tile, tile);
      RETURN_IF_ERROR(
          gemms_[call.gemm].Run(context, a + call.term, tile, y + call.column,
                                bias == nullptr || call.term > 0 ? nullptr : bias + call.column));
    }
    return {};
  }

 private:
  struct Call {
    size_t gemm;
    Tile tile;
    int64_t column, term;  // of the product, where the tile begins
  };
  // The length of even parts of `count` of at most `most`, in whole units.
  static int64_t EvenPart(int64_t count, int64_t most, int64_t unit) {
    return PartsOf(PartsOf(count, PartsOf(count, most)), unit) * unit;
  }

  BlockMatrix w_;
  int threads_;
  bool transposed_;
  size_t scratch_;
  std::vector<Gemm> gemms_;
  std::vector<Call> calls_;
};

// `transposed`: of W, as the product reads it.
Status CreateProduct(KernelInfo& info, bool transposed) {
  ASSIGN_OR_RETURN(const BlockMatrix w, MakeBlockMatrix(info));
  const Shape& a = info.InputShape(kA);
  const int64_t terms = transposed ? w.k : w.n, columns = transposed ? w.n : w.k;
  if (a.rank() == 0 || a[a.rank() - 1] != terms) {
    return info.Invalid("A: expected a last dim of " + std::to_string(terms) + ", got " +
                        a.ToString());
  }
  if (info.HasInput(kGroupIndex))
    return info.Refuse("g_idx: blocks in another order are not supported");
  if (info.HasInput(kBias)) {
    RETURN_IF_ERROR(CheckDType(info, kBias, "bias", info.InputDType(kA)));
    RETURN_IF_ERROR(CheckShape(info, kBias, "bias", {columns}));
  }
  std::vector<int64_t> dims = a.dims();
  dims.back() = columns;
  ASSIGN_OR_RETURN(Shape y, CheckDims(info, std::move(dims), DType::kFloat32));
  const int64_t rows = a.Elements(0, a.rank() - 1);
  info.SetOutput(0, DType::kFloat32, std::move(y));
  if (rows == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  ASSIGN_OR_RETURN(TiledProduct product, TiledProduct::Make(info, w, rows, transposed));
  info.SetCompute(
      [product = std::move(product)](KernelContext& context) { return product.Run(context); });
  return {};
}

Status CreateMatMulNBits(KernelInfo& info) { return CreateProduct(info, true); }
Status CreateTransposedMatMulNBits(KernelInfo& info) { return CreateProduct(info, false); }

}  // namespace

void RegisterMatMulNBits(KernelRegistry& registry) {
  constexpr DTypeSet kFloat = {DType::kFloat32}, kHalves = {DType::kFloat16, DType::kBFloat16};
  registry.Add({.op_type = "MatMulNBits",
                .domain = kContribDomain,
                .types = kFloat,
                .create = CreateMatMulNBits});
  registry.Add({.op_type = "MatMulNBits",
                .domain = kContribDomain,
                .types = kHalves,
                .create = ThroughFloat<CreateMatMulNBits>});
  registry.Add({.op_type = "TransposedMatMulNBits",
                .domain = kCaesuraDomain,
                .types = kFloat,
                .create = CreateTransposedMatMulNBits});
  registry.Add({.op_type = "TransposedMatMulNBits",
                .domain = kCaesuraDomain,
                .types = kHalves,
                .create = ThroughFloat<CreateTransposedMatMulNBits>});
}

}  // namespace caesura
