// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gemm/gemm.h"

#include <algorithm>
#include <cassert>
#include <concepts>
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>

#include "core/base/status_macros.h"
#include "core/kernels/gemm/dnnl_ops.h"
#include "core/kernels/gemm/gemm_tiles.h"
#include "core/kernels/simd/amx_tiles.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/capped_product.h"

namespace caesura {
namespace {

constexpr int64_t kShortSum = 192;  // terms that are summed up one after the other

// True if all products of the batch have one B.
[[maybe_unused]] bool SharesB(const GemmSpec& s) {
  for (size_t d = 0; d < s.batch.size(); ++d) {
    if (s.batch[d] > 1 && s.b_batch[d] != 0) return false;
  }
  return true;
}

// True if the plain loop (float32: gemm_tiles.h) beats a oneDNN call.
bool IsSmall(const GemmSpec& s, int64_t multiply_adds) {
  const bool tiles = s.dtype == DType::kFloat32 && (s.b.col == 1 || s.a.col == 1 || s.m >= 8);
  // Long sums are taken in blocks, for each of which oneDNN would be called.
  if (tiles && s.k > kShortSum && s.n % 32 == 0) return multiply_adds <= 4300000;
  return multiply_adds <= (tiles ? 140000 : 20000);
}

constexpr int64_t kRows = 32, kColumns = 64, kDepth = 64;  // a block of the plain loop
constexpr int64_t kWideStrip = 32, kStrip = 16,
                  kNarrowStrip = 8;  // columns whose sums stay in registers

// Sums of integers wrap around, which unsigned arithmetic may do.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <std::integral T>
struct Wrapping<T> {
  using Type = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
};
template <typename T>
using Sum = typename Wrapping<Accumulator<T>>::Type;

// acc[4][columns] += A[4][depth] B[depth][columns] for so many columns that the sums stay in
// registers.
template <typename T, int64_t kWidth>
void MultiplyStrip(int64_t depth, const T* a, MatrixStrides as, const T* b, int64_t b_row,
                   Sum<T>* acc) {
  using Acc = Sum<T>;
  Acc sums[4][kWidth];
  for (int r = 0; r < 4; ++r) {
    for (int64_t j = 0; j < kWidth; ++j) sums[r][j] = acc[r * kColumns + j];
  }
  for (int64_t p = 0; p < depth; ++p) {
    const T* x = a + p * as.col;
    const Acc a0 = x[0], a1 = x[as.row], a2 = x[2 * as.row], a3 = x[3 * as.row];
    const T* y = b + p * b_row;
#pragma omp simd
    for (int64_t j = 0; j < kWidth; ++j) {
      const Acc v = y[j];
      sums[0][j] += a0 * v;
      sums[1][j] += a1 * v;
      sums[2][j] += a2 * v;
      sums[3][j] += a3 * v;
    }
  }
  for (int r = 0; r < 4; ++r) {
    for (int64_t j = 0; j < kWidth; ++j) acc[r * kColumns + j] = sums[r][j];
  }
}

// acc[rows][columns] += A[rows][depth] B[depth][columns]; the rows of `b` are contiguous.
template <typename T>
void MultiplyBlock(int64_t rows, int64_t columns, int64_t depth, const T* a, MatrixStrides as,
                   const T* b, int64_t b_row, Sum<T>* acc) {
  using Acc = Sum<T>;
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / kNarrowStrip * kNarrowStrip;
  const bool wide = BestIsa() == Isa::kX86V4;  // the others have registers for four rows of kStrip
  for (int64_t i = 0; i < whole_rows; i += 4) {
    const T* x = a + i * as.row;
    Acc* sums = acc + i * kColumns;
    int64_t j = 0;
    for (; wide && j + kWideStrip <= columns; j += kWideStrip) {
      MultiplyStrip<T, kWideStrip>(depth, x, as, b + j, b_row, sums + j);
    }
    for (; j + kStrip <= columns; j += kStrip)
      MultiplyStrip<T, kStrip>(depth, x, as, b + j, b_row, sums + j);
    for (; j < whole_columns; j += kNarrowStrip)
      MultiplyStrip<T, kNarrowStrip>(depth, x, as, b + j, b_row, sums + j);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = i < whole_rows ? whole_columns : 0;
    if (first == columns) continue;
    Acc* c0 = acc + i * kColumns;
    for (int64_t p = 0; p < depth; ++p) {
      const Acc a0 = a[i * as.row + p * as.col];
      const T* y = b + p * b_row;
#pragma GCC ivdep
      for (int64_t j = first; j < columns; ++j) c0[j] += a0 * static_cast<Acc>(y[j]);
    }
  }
}

// Writes one block of sums to C.
template <typename T, typename C>
void StoreBlock(const GemmSpec& s, int64_t rows, int64_t columns, const Sum<T>* acc, C* c,
                const T* bias, const C* addend) {
  using Acc = Sum<T>;
  for (int64_t i = 0; i < rows; ++i) {
    const Acc* from = acc + i * kColumns;
    C* to = c + i * s.c.row;
    if (s.alpha != 1) {
      for (int64_t j = 0; j < columns; ++j) {
        const auto v = s.alpha * static_cast<Accumulator<T>>(from[j]);
        to[j] = ConvertElement<C>(s.accumulate ? v + to[j] : v);
      }
    } else if (s.accumulate) {
      for (int64_t j = 0; j < columns; ++j) to[j] = static_cast<C>(to[j] + from[j]);
    } else if (bias != nullptr) {
      for (int64_t j = 0; j < columns; ++j) to[j] = static_cast<C>(from[j] + bias[j]);
    } else {
      for (int64_t j = 0; j < columns; ++j) to[j] = static_cast<C>(from[j]);
    }
    if (addend == nullptr) continue;
    for (int64_t j = 0; j < columns; ++j)
      to[j] = static_cast<C>(Sum<C>(to[j]) + addend[i * s.c.row + j]);
  }
}

// Rows [first, last) of one product.
template <typename T, typename C>
void MultiplyRows(const GemmSpec& s, int64_t first, int64_t last, const T* a, const T* b, C* c,
                  const T* bias, const C* addend) {
  Sum<T> acc[kRows * kColumns];
  T tile[kDepth * kColumns];
  for (int64_t i0 = first; i0 < last; i0 += kRows) {
    const int64_t rows = std::min(kRows, last - i0);
    for (int64_t j0 = 0; j0 < s.n; j0 += kColumns) {
      const int64_t columns = std::min(kColumns, s.n - j0);
      for (int64_t i = 0; i < rows; ++i) std::fill_n(acc + i * kColumns, columns, Sum<T>(0));
      for (int64_t p0 = 0; p0 < s.k; p0 += kDepth) {
        const int64_t depth = std::min(kDepth, s.k - p0);
        const T* y = b + p0 * s.b.row + j0 * s.b.col;
        int64_t y_row = s.b.row;
        if (s.b.col != 1) {
          for (int64_t j = 0; j < columns; ++j) {
            for (int64_t p = 0; p < depth; ++p)
              tile[p * kColumns + j] = y[p * s.b.row + j * s.b.col];
          }
          y = tile;
          y_row = kColumns;
        }
        MultiplyBlock<T>(rows, columns, depth, a + i0 * s.a.row + p0 * s.a.col, s.a, y, y_row, acc);
      }
      const int64_t at = i0 * s.c.row + j0;
      StoreBlock<T, C>(s, rows, columns, acc, c + at, bias == nullptr ? nullptr : bias + j0,
                       addend == nullptr ? nullptr : addend + at);
    }
  }
}

int64_t BatchCount(const GemmSpec& s) {
  int64_t count = 1;
  for (int64_t dim : s.batch) count *= dim;
  return count;
}

int64_t BatchOffset(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides,
                    int64_t index) {
  int64_t offset = 0;
  for (size_t d = dims.size(); d-- > 0;) {
    offset += index % dims[d] * strides[d];
    index /= dims[d];
  }
  return offset;
}

template <typename T, typename C>
void PlainGemm(const GemmSpec& s, int threads, const void* a, const void* b, void* c,
               const void* bias, const void* addend) {
  if (s.n == 0) return;
  constexpr bool kFloats = std::is_same_v<T, float> && std::is_same_v<C, float>;
  const bool tiles = kFloats && (s.a.col == 1 || s.a.row == 1);
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, s.n * s.k));
  ParallelFor(threads, BatchCount(s) * s.m, grain, [&](int64_t first, int64_t last) {
    while (first < last) {
      const int64_t index = first / s.m, row = first % s.m;
      const int64_t rows = std::min(s.m - row, last - first);
      const T *x = static_cast<const T*>(a) + BatchOffset(s.batch, s.a_batch, index),
              *y = static_cast<const T*>(b) + BatchOffset(s.batch, s.b_batch, index),
              *added = static_cast<const T*>(bias);
      const int64_t place = BatchOffset(s.batch, s.c_batch, index);
      C* z = static_cast<C*>(c) + place;
      const C* other = addend == nullptr ? nullptr : static_cast<const C*>(addend) + place;
      auto multiply = [&] { MultiplyRows<T, C>(s, row, row + rows, x, y, z, added, other); };
      if constexpr (kFloats) {
        if (tiles) MultiplyFloatRows(s, row, row + rows, x, y, z, added, other);
        else OnBestIsa(multiply);
      } else if constexpr (std::is_floating_point_v<T>) {
        OnBestIsa(multiply);
      } else {
        multiply();
      }
      first += rows;
    }
  });
}

// Drops batch dims of one, joins neighbours that step evenly in all three matrices, and turns a
// batch that shares B into more rows of A.
void Simplify(GemmSpec& s) {
  std::vector<int64_t>* strides[] = {&s.a_batch, &s.b_batch, &s.c_batch};
  auto erase = [&](size_t d) {
    s.batch.erase(s.batch.begin() + d);
    for (auto* v : strides) v->erase(v->begin() + d);
  };
  for (size_t d = s.batch.size(); d-- > 0;) {
    if (s.batch[d] == 1) erase(d);
  }
  for (size_t d = s.batch.size(); d-- > 1;) {
    bool even = true;
    for (auto* v : strides) even = even && (*v)[d - 1] == (*v)[d] * s.batch[d];
    if (!even) continue;
    s.batch[d] *= s.batch[d - 1];
    erase(d - 1);
  }
  if (!s.batch.empty() && s.b_batch.back() == 0 && s.a_batch.back() == s.m * s.a.row &&
      s.c_batch.back() == s.m * s.c.row) {
    s.m *= s.batch.back();
    erase(s.batch.size() - 1);
  }
}

DnnlTensor DnnlOperand(const GemmSpec& s, DType dtype, const std::vector<int64_t>& batch_strides,
                       int64_t rows, int64_t columns, MatrixStrides strides) {
  DnnlTensor out{dtype, {}, {}};
  for (size_t d = 0; d < s.batch.size(); ++d) {
    const bool shared = batch_strides[d] == 0;
    out.dims.push_back(shared ? 1 : s.batch[d]);
    out.strides.push_back(shared ? std::max(rows * strides.row, columns * strides.col)
                                 : batch_strides[d]);
  }
  out.dims.insert(out.dims.end(), {rows, columns});
  out.strides.insert(out.strides.end(), {strides.row, strides.col});
  return out;
}

Result<DnnlCall> MakeCall(KernelInfo& info, int threads, const GemmSpec& s) {
  DnnlMatMulSpec spec;
  spec.src = DnnlOperand(s, s.dtype, s.a_batch, s.m, s.k, s.a);
  spec.weights = DnnlOperand(s, s.dtype, s.b_batch, s.k, s.n, s.b);
  spec.weights.packed = s.packed_b;
  spec.dst = DnnlOperand(s, s.c_dtype, s.c_batch, s.m, s.n, s.c);
  if (s.bias) {
    spec.bias = {s.dtype, std::vector<int64_t>(s.batch.size() + 1, 1), {}};
    spec.bias.dims.push_back(s.n);
  }
  spec.alpha = static_cast<float>(s.alpha);
  spec.accumulate = s.accumulate;
  spec.addend = s.addend;
  return MakeDnnlMatMul(info, threads, spec);
}

// The rows of A that a thread comes for at a time; 0 where oneDNN shares the work out, in equal
// parts.
//
// The unit that multiplies tiles is one for both hardware threads of a core: beside others' work a
// core has half of its speed, or less, and the quicker one of two would wait. As panels, each with
// the whole of B, the work goes where it is done first. A few rows would cost more than that saves,
// and so would columns that A keeps apart: oneDNN copies them.
int64_t PanelRows(const GemmSpec& s, int threads) {
  constexpr int64_t kPanelsOfThread = 2, kFewestRows = 128;
  if (threads == 1 || s.dtype != DType::kBFloat16 || !s.batch.empty() || s.a.col != 1 ||
      !amx::Available())
    return 0;
  const int64_t panels = std::min(kPanelsOfThread * threads, s.m / kFewestRows);
  if (panels <= threads) return 0;
  return ((s.m + panels - 1) / panels + amx::kLines - 1) / amx::kLines * amx::kLines;
}

// True if products that are not small go to gemm_blocks.h. With AVX2 oneDNN has half of the chip's
// rate for blocks of terms with many columns; with AVX-512 it has nearly all of it. It has no
// float64.
bool TakesBlocks(const GemmSpec& s) {
  return (BestIsa() == Isa::kX86V3 && s.dtype == DType::kFloat32 && !s.packed_b) ||
         (BestIsa() != Isa::kBaseline && s.dtype == DType::kFloat64);
}

// Even blocks of a sum of `k` terms. Below 300 they keep the mean error within 1.2 times that of a
// library that takes some 200 terms at a time.
int64_t EvenTerms(int64_t k) {
  constexpr int64_t kTwoBlocks = 512, kLongest = 288;
  if (k <= kShortSum) return k;
  const int64_t blocks = k <= kTwoBlocks ? 2 : (k + kLongest - 1) / kLongest;
  return ((k + blocks - 1) / blocks + 15) / 16 * 16;
}

// The terms of a block where oneDNN sums up; `k`: all at once. Blocks cost small products too much,
// and those of few rows where B's columns lie apart, which oneDNN copies: it then sums as it does.
int64_t TermsOfBlock(const GemmSpec& s) {
  constexpr int64_t kFewRows = 512, kFewProducts = int64_t{1} << 21;
  if (s.dtype != DType::kFloat32 || s.packed_b || (s.b.col != 1 && s.m < kFewRows)) return s.k;
  const int64_t terms = EvenTerms(s.k);
  return BatchCount(s) * s.m * s.n * terms < kFewProducts ? s.k : terms;
}

// The rows of C that all blocks of terms are added to before the next ones: they stay in cache, and
// so does the work.
int64_t RowsOfPart(const GemmSpec& s) {
  constexpr int64_t kRows = 256, kCached = int64_t{1} << 18;
  const bool large = s.batch.empty() && s.b.col == 1 && s.m > kRows && s.m * s.n > kCached;
  return large ? kRows : s.m;
}

const void* At(const void* base, int64_t offset, DType dtype) {
  if (base == nullptr) return nullptr;
  return static_cast<const char*>(base) + offset * static_cast<int64_t>(DTypeSize(dtype));
}

Status RunCall(const DnnlCall& call, KernelContext& context, const void* a, const void* b,
               const void* c, const void* bias, const void* addend) {
  if (bias != nullptr && addend != nullptr) return call.Run(context, {a, b, c, bias, addend});
  if (bias == nullptr && addend == nullptr) return call.Run(context, {a, b, c});
  return call.Run(context, {a, b, c, bias == nullptr ? addend : bias});
}

}  // namespace

Status Gemm::MakeCalls(KernelInfo& info, int threads) {
  panel_rows_ = PanelRows(spec_, threads);
  const int64_t terms = TermsOfBlock(spec_);
  if (terms < spec_.k) return MakeParts(info, threads, terms);
  if (panel_rows_ == 0) {
    ASSIGN_OR_RETURN(DnnlCall call, MakeCall(info, threads, spec_));
    calls_.push_back(std::move(call));
    return {};
  }
  threads_ = threads;
  GemmSpec panel = spec_;
  auto make = [&](int64_t rows, std::vector<DnnlCall>* calls) -> Status {
    panel.m = rows;
    for (int i = 0; i < threads; ++i) {
      ASSIGN_OR_RETURN(DnnlCall call, MakeCall(info, 1, panel));
      calls->push_back(std::move(call));
    }
    return {};
  };
  RETURN_IF_ERROR(make(panel_rows_, &calls_));
  if (spec_.m % panel_rows_ != 0) RETURN_IF_ERROR(make(spec_.m % panel_rows_, &last_calls_));
  return {};
}

Status Gemm::MakeParts(KernelInfo& info, int threads, int64_t terms) {
  const int64_t rows = RowsOfPart(spec_);
  std::map<std::tuple<int64_t, int64_t, bool>, size_t>
      made;  // calls by rows, terms and whether they begin
  for (int64_t row = 0; row < spec_.m; row += rows) {
    for (int64_t term = 0; term < spec_.k; term += terms) {
      GemmSpec part = spec_;
      part.m = std::min(rows, spec_.m - row);
      part.k = std::min(terms, spec_.k - term);
      if (term > 0) {
        part.accumulate = true;
        part.bias = part.addend = false;
      }
      const auto [it, fresh] = made.try_emplace({part.m, part.k, term == 0}, calls_.size());
      if (fresh) {
        ASSIGN_OR_RETURN(DnnlCall call, MakeCall(info, threads, part));
        calls_.push_back(std::move(call));
      }
      parts_.push_back({it->second, row, term, term == 0});
    }
  }
  return {};
}

Result<Gemm> Gemm::Create(KernelInfo& info, GemmSpec spec) {
  assert(spec.c.col == 1 && (!spec.bias || spec.alpha == 1));
  assert(!spec.packed_b || (spec.dtype == DType::kFloat32 && SharesB(spec)));
  Simplify(spec);
  if (spec.c_dtype == DType::kUndefined) spec.c_dtype = spec.dtype;
  Gemm out;
  const int64_t work = CappedProduct({BatchCount(spec), spec.m, spec.n, spec.k});
  if (TakesBlocks(spec) && work > 0 && !IsSmall(spec, work)) {
    out.threads_ = DnnlThreads(info.threads(), work);
    out.blocks_ = GemmBlocks::Plan(spec, BatchCount(spec), EvenTerms(spec.k), out.threads_);
    out.scratch_ = info.BookScratch(out.threads_ * out.blocks_.scratch * DTypeSize(spec.dtype));
    out.spec_ = std::move(spec);
    return out;
  }
  const bool dnnl_type = spec.dtype == DType::kFloat32 || spec.dtype == DType::kBFloat16;
  if ((!IsSmall(spec, work) && (dnnl_type || spec.dtype == DType::kFloat16)) ||
      (spec.packed_b && work > 0)) {
    out.spec_ = spec;
    const Status status = out.MakeCalls(info, DnnlThreads(info.threads(), work));
    if (status.ok()) return out;
    const bool plain = spec.dtype == DType::kFloat32 && !spec.packed_b;
    if (status.code() != StatusCode::kDeclined || !plain) return status;
    out = Gemm();
  }
  out.threads_ = spec.dtype == DType::kFloat32 ? DnnlThreads(info.threads(), work) : info.threads();
  DispatchNumeric(spec.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (spec.c_dtype == spec.dtype) out.plain_ = PlainGemm<T, T>;
    if constexpr (!std::is_same_v<T, Accumulator<T>>) {
      if (spec.c_dtype == DType::kFloat32) out.plain_ = PlainGemm<T, float>;
    }
  });
  if (out.plain_ == nullptr)
    return info.Refuse(std::string("no matrix product of ") + DTypeName(spec.dtype));
  out.spec_ = std::move(spec);
  return out;
}

Status Gemm::RunPanels(KernelContext& context, const void* a, const void* b, void* c,
                       const void* bias, const void* addend) const {
  const int64_t panels = (spec_.m + panel_rows_ - 1) / panel_rows_;
  std::mutex mutex;
  Status failure;
  WorkQueue queue(panels);
  ParallelFor(threads_, threads_, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      for (int64_t p; queue.Take(&p);) {
        const bool is_last = p == panels - 1 && !last_calls_.empty();
        const int64_t row = p * panel_rows_, of_c = row * spec_.c.row;
        const Status status =
            RunCall((is_last ? last_calls_ : calls_)[thread], context,
                    At(a, row * spec_.a.row, spec_.dtype), b, At(c, of_c, spec_.c_dtype), bias,
                    At(addend, of_c, spec_.c_dtype));
        if (status.ok()) continue;
        const std::lock_guard<std::mutex> lock(mutex);
        failure = status;
      }
    }
  });
  return failure;
}

template <typename T>
void Gemm::RunBlocks(KernelContext& context, const void* a, const void* b, void* c,
                     const void* bias, const void* addend) const {
  const int64_t parts = blocks_.row_parts * blocks_.column_parts;
  T* const scratch = context.Scratch<T>(scratch_);
  ParallelFor(threads_, threads_, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      const int64_t end = blocks_.items * (thread + 1) / threads_;
      for (int64_t i = blocks_.items * thread / threads_; i < end; ++i) {
        const auto at = [&](const void* base, const std::vector<int64_t>& strides) {
          return static_cast<const T*>(
              At(base, BatchOffset(spec_.batch, strides, i / parts), spec_.dtype));
        };
        MultiplyGemmBlocks<T>(spec_, blocks_, i, at(a, spec_.a_batch), at(b, spec_.b_batch),
                              const_cast<T*>(at(c, spec_.c_batch)), static_cast<const T*>(bias),
                              at(addend, spec_.c_batch), scratch + thread * blocks_.scratch);
      }
    }
  });
}

Status Gemm::Run(KernelContext& context, const void* a, const void* b, void* c, const void* bias,
                 const void* addend) const {
  a = At(a, spec_.a_offset, spec_.dtype);
  b = At(b, spec_.b_offset, spec_.dtype);
  c = const_cast<void*>(At(c, spec_.c_offset, spec_.c_dtype));
  if (blocks_.items > 0) {
    if (spec_.dtype == DType::kFloat32) RunBlocks<float>(context, a, b, c, bias, addend);
    else RunBlocks<double>(context, a, b, c, bias, addend);
    return {};
  }
  if (panel_rows_ > 0) return RunPanels(context, a, b, c, bias, addend);
  for (const Part& part : parts_) {
    const int64_t of_c = part.row * spec_.c.row;
    const int64_t of_a = part.row * spec_.a.row + part.term * spec_.a.col,
                  of_b = part.term * spec_.b.row;
    RETURN_IF_ERROR(RunCall(calls_[part.call], context, At(a, of_a, spec_.dtype),
                            At(b, of_b, spec_.dtype), At(c, of_c, spec_.c_dtype),
                            part.first ? bias : nullptr,
                            part.first ? At(addend, of_c, spec_.c_dtype) : nullptr));
  }
  if (!parts_.empty()) return {};
  if (!calls_.empty()) return RunCall(calls_[0], context, a, b, c, bias, addend);
  plain_(spec_, threads_, a, b, c, bias, addend);
  return {};
}

}  // namespace caesura
