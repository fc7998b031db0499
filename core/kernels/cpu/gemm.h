// SPDX-License-Identifier: Apache-2.0
// Matrix products inside kernels: C = alpha * A B + bias + addend, or C += alpha * A B, over
// batches and with any strides. Large float32 and bfloat16 products go to oneDNN, all others
// through a plain blocked loop. Sums of float32 over many terms are taken in blocks, whose sums are
// then added: the error grows with the root of a block's length, not of all of it.
#ifndef CAESURA_CORE_KERNELS_CPU_GEMM_H_
#define CAESURA_CORE_KERNELS_CPU_GEMM_H_

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/dnnl_primitive.h"
#include "core/kernels/kernel.h"

namespace caesura {

// Distances between neighbours, in elements.
struct MatrixStrides {
  int64_t row = 0, col = 1;
};
inline MatrixStrides RowMajor(int64_t columns) { return {columns, 1}; }
inline MatrixStrides ColumnMajor(int64_t rows) { return {1, rows}; }

struct GemmSpec {
  DType dtype = DType::kUndefined;    // of A, B and the bias
  DType c_dtype = DType::kUndefined;  // of C and the addend: undefined for that of A, or float32
                                      // where A is of half
  int64_t m = 0, n = 0, k = 0;
  MatrixStrides a, b, c;                             // REQUIRES: c.col == 1
  int64_t a_offset = 0, b_offset = 0, c_offset = 0;  // of the first elements
  // Batch dims, outermost first, and the strides of each matrix along them (0: shared).
  std::vector<int64_t> batch = {}, a_batch = {}, b_batch = {}, c_batch = {};
  float alpha = 1.0f;
  bool accumulate = false;  // adds to C
  bool bias = false;        // adds a row of n; REQUIRES: alpha == 1
  bool addend = false;      // adds matrices that lie as C does, in other memory
  bool packed_b = false;    // B is packed (PackDnnlWeights); REQUIRES: float32, and one B for all
};

// A product that is set up once. Thread safety: Run may be called from many threads.
class Gemm {
 public:
  Gemm() = default;
  // REQUIRES: a numeric dtype. kUnsupported where only a slow way is left (large float16; large
  // bfloat16 on a chip without it): the kernel then runs through float32 (through_float.h).
  static Result<Gemm> Create(KernelInfo& info, GemmSpec spec);

  Status Run(KernelContext& context, const void* a, const void* b, void* c,
             const void* bias = nullptr, const void* addend = nullptr) const;

 private:
  using PlainFunction = void (*)(const GemmSpec&, int threads, const void* a, const void* b,
                                 void* c, const void* bias, const void* addend);
  // Makes the calls to oneDNN.
  Status MakeCalls(KernelInfo& info, int threads);
  Status RunPanels(KernelContext& context, const void* a, const void* b, void* c, const void* bias,
                   const void* addend) const;

  GemmSpec spec_;
  int threads_ = 1;
  PlainFunction plain_ = nullptr;
  // A part of the product: some rows, and some terms of their sums.
  struct Part {
    size_t call;
    int64_t row, term;
    bool first;  // terms
  };
  // Makes the calls for blocks of `terms` terms.
  Status MakeParts(KernelInfo& info, int threads, int64_t terms);

  std::vector<Part> parts_;  // in order; empty: the whole at once
  // One call, or those of the parts, or, where threads come for panels of rows, one for each
  // thread, which has scratch of its own.
  std::vector<DnnlCall> calls_, last_calls_;  // last: of the last panel where that has fewer rows
  int64_t panel_rows_ = 0;                    // 0: one call for all
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_GEMM_H_
