// SPDX-License-Identifier: Apache-2.0
// What Slice's starts, ends, axes and steps mean for a concrete shape (ONNX's Slice-13); shared
// with SliceGrad.
#ifndef CAESURA_CORE_KERNELS_WALKS_SLICE_SPEC_H_
#define CAESURA_CORE_KERNELS_WALKS_SLICE_SPEC_H_

#include "core/kernels/kernel.h"

namespace caesura {

struct SliceSpec {
  Shape shape;                   // of the slice
  int64_t offset = 0;            // of its first element in the sliced tensor
  std::vector<int64_t> strides;  // of its axes in the sliced tensor
};

// Reads host inputs `first` (starts), first + 1 (ends), first + 2 (axes, optional), first + 3
// (steps, optional).
Result<SliceSpec> ResolveSlice(const KernelInfo& info, const Shape& shape, int first);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_SLICE_SPEC_H_
