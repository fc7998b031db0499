// SPDX-License-Identifier: Apache-2.0
// Matrix products inside kernels: C = alpha * A B + bias + addend, or C += alpha * A B, over
// batches and with any strides. Large float32 and bfloat16 products go to oneDNN, but float32 on
// AVX2, and float64, to gemm_blocks.h; all others through a plain blocked loop. Sums of float32
// over many terms are taken in blocks, whose sums are then added: the error grows with the root of
// a block's length, not of all of it.
#ifndef CAESURA_CORE_KERNELS_GEMM_GEMM_H_
#define CAESURA_CORE_KERNELS_GEMM_GEMM_H_

#include <vector>

#include "core/kernels/gemm/dnnl_primitive.h"
#include "core/kernels/gemm/gemm_blocks.h"
#include "core/kernels/gemm/gemm_spec.h"
#include "core/kernels/kernel.h"

namespace caesura {

// A product that is set up once. Thread safety: Run may be called from many threads.
class Gemm {
 public:
  Gemm() = default;
  // kDeclined for a dtype that is not of numbers, and where only a slow way is left (large float16;
  // large bfloat16 on a chip without it): the kernel then runs through float32 (through_float.h).
  // REQUIRES: what GemmSpec says of its members.
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
  template <typename T>
  void RunBlocks(KernelContext& context, const void* a, const void* b, void* c, const void* bias,
                 const void* addend) const;

  GemmSpec spec_;
  int threads_ = 1;
  PlainFunction plain_ = nullptr;
  GemmBlocks blocks_;   // unless blocks_.items is 0
  size_t scratch_ = 0;  // of all threads, for the blocks
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

#endif  // CAESURA_CORE_KERNELS_GEMM_GEMM_H_
