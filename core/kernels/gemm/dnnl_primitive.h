// SPDX-License-Identifier: Apache-2.0
// The border to oneDNN: a primitive that is created with a kernel and called with plain pointers.
// oneDNN's own types do not leave the dnnl_*.cc files. What can be made is listed in dnnl_ops.h.
#ifndef CAESURA_CORE_KERNELS_GEMM_DNNL_PRIMITIVE_H_
#define CAESURA_CORE_KERNELS_GEMM_DNNL_PRIMITIVE_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/kernel.h"
#include "core/tensor/dtype.h"

namespace caesura {

// A tensor as a primitive sees it. Empty strides: row-major. An undefined dtype: no such tensor.
struct DnnlTensor {
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;
  bool packed = false;  // weights as PackDnnlWeights has put them (dnnl_ops.h)
};

// A primitive with fixed sizes and a fixed number of threads, and the copies between the layout
// that it prefers and ours. Its scratch memory (and that of the copies) is booked in the kernel's.
// Thread safety: Run may be called from many threads at once. Copies share the primitive.
class DnnlCall {
 public:
  struct Rep;
  DnnlCall() = default;
  explicit DnnlCall(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  // `pointers`: one for each argument, in the order that the making function states. Output
  // pointers are written. Allocates nothing of ours after the first call in a thread's turn; oneDNN
  // builds its argument map in each call.
  Status Run(KernelContext& context, std::initializer_list<const void*> pointers) const;
  bool defined() const { return rep_ != nullptr; }

 private:
  std::shared_ptr<const Rep> rep_;
};

// The number of `threads` that so many multiply-adds are worth: a team costs about a
// microsecond to start.
inline int DnnlThreads(int threads, int64_t multiply_adds) {
  return multiply_adds < 200000 ? 1 : threads;
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_GEMM_DNNL_PRIMITIVE_H_
