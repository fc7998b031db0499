// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/cuda_product.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "core/base/status_macros.h"
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/strided_walk.h"

namespace caesura {
namespace {

// Rows of A and C that lie one after the other over the innermost batch dim, with one B for all,
// are the rows of one product.
void FoldBatch(GemmSpec& spec) {
  StridedWalk batches = StridedWalk::Make(spec.batch, {spec.a_batch, spec.b_batch, spec.c_batch});
  while (batches.elements > 1) {
    const int64_t count = batches.dims.back();
    std::vector<int64_t>&a = batches.strides[0], &b = batches.strides[1], &c = batches.strides[2];
    if (b.back() != 0 || spec.a.col != 1 || a.back() != spec.m * spec.a.row ||
        c.back() != spec.m * spec.c.row)
      break;
    spec.m *= count;
    batches.elements /= count;
    batches.dims.pop_back();
    for (std::vector<int64_t>* strides : {&a, &b, &c}) strides->pop_back();
    if (batches.dims.empty()) batches = StridedWalk::Make({}, batches.strides);
  }
  spec.batch = batches.dims;
  spec.a_batch = batches.strides[0];
  spec.b_batch = batches.strides[1];
  spec.c_batch = batches.strides[2];
}

// The fast kernels of cuBLASLt for halves take extents that are multiples of eight: on an H100,
// version 13.1 needs 6.0 ms for 50,257 columns and 1.1 ms for 50,256. What is left over of a large
// extent is a product of its own.
constexpr int64_t kUnit = 8, kLargeExtent = 1024;

// The first of the two parts of an extent; all of it where it is not divided.
int64_t Division(int64_t extent) {
  return extent >= kLargeExtent ? extent / kUnit * kUnit : extent;
}

struct Block {
  GemmSpec spec;
  int64_t first_column;
};

std::vector<Block> Divide(const GemmSpec& spec) {
  std::vector<Block> out;
  int64_t m = spec.m, n = spec.n, k = spec.k;
  if (IsHalf(spec.dtype)) {
    m = Division(m);
    n = Division(n);
    // C takes up the second part of its sums: in half precision it would be rounded twice.
    if (!IsHalf(spec.c_dtype)) k = Division(k);
  }
  for (const auto& [row, rows] : {std::pair(int64_t{0}, m), std::pair(m, spec.m - m)}) {
    for (const auto& [column, columns] : {std::pair(int64_t{0}, n), std::pair(n, spec.n - n)}) {
      for (const auto& [term, terms] : {std::pair(int64_t{0}, k), std::pair(k, spec.k - k)}) {
        if (rows == 0 || columns == 0 || terms == 0) continue;
        GemmSpec part = spec;
        part.m = rows;
        part.n = columns;
        part.k = terms;
        part.a_offset += row * spec.a.row + term * spec.a.col;
        part.b_offset += term * spec.b.row + column * spec.b.col;
        part.c_offset += row * spec.c.row + column * spec.c.col;
        if (term > 0) {
          part.accumulate = true;
          part.bias = part.addend = false;
        }
        out.push_back({std::move(part), column});
      }
    }
  }
  return out;
}

}  // namespace

Result<CudaProduct> CudaProduct::Create(KernelInfo& info, const CudaDevicePtr& device,
                                        GemmSpec spec) {
  assert(spec.c.col == 1 && (!spec.bias || spec.alpha == 1) && !spec.packed_b);
  if (spec.c_dtype == DType::kUndefined) spec.c_dtype = spec.dtype;
  const bool empty = spec.m == 0 || spec.n == 0 || spec.k == 0 ||
                     std::count(spec.batch.begin(), spec.batch.end(), 0) > 0;
  if (empty) return info.Refuse("a product of nothing");
  if (spec.bias && !TakesBias(spec.dtype)) return info.Refuse("cuBLASLt adds no bias of float64");
  FoldBatch(spec);
  CudaProduct out;
  out.columns_ = spec.n;
  out.bias_element_ = DTypeSize(spec.c_dtype);
  for (Block& block : Divide(spec)) {
    const bool bias = block.spec.bias, addend = block.spec.addend;
    ASSIGN_OR_RETURN(LtProduct product, LtProduct::Create(info, device, std::move(block.spec)));
    out.parts_.push_back({std::move(product), block.first_column, bias, addend});
  }
  if (spec.bias && spec.c_dtype != spec.dtype) {
    const std::string source = CudaMacros({{"T_TYPE", CudaStorageType(spec.dtype)}}) +
                               CudaInclude("core/kernels/cuda/widen.cuh");
    ASSIGN_OR_RETURN(out.widen_,
                     CudaKernel::Make(device, source, "widen", GridOver(*device, spec.n)));
    out.wide_bias_ = info.BookScratch(static_cast<size_t>(spec.n) * sizeof(float));
  }
  return out;
}

Status CudaProduct::Run(KernelContext& context, const void* a, const void* b, void* c,
                        const void* bias, const void* addend) const {
  if (widen_) {
    void* wide = context.Scratch<void>(wide_bias_);
    RETURN_IF_ERROR(widen_->Launch(bias, wide, columns_));
    bias = wide;
  }
  for (const Part& part : parts_) {
    const void* own =
        part.bias ? static_cast<const char*>(bias) + part.first_column * bias_element_ : nullptr;
    RETURN_IF_ERROR(part.product.Run(context, a, b, c, own, part.addend ? addend : nullptr));
  }
  return {};
}

}  // namespace caesura
