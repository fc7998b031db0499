// SPDX-License-Identifier: Apache-2.0
// For the dnnl_*.cc files only: owners of oneDNN's C handles, and the step from a primitive
// descriptor to a DnnlCall.
#ifndef CAESURA_CORE_KERNELS_GEMM_DNNL_HANDLES_H_
#define CAESURA_CORE_KERNELS_GEMM_DNNL_HANDLES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/kernels/gemm/dnnl_primitive.h"
#include "core/kernels/kernel.h"
#include "oneapi/dnnl/dnnl.h"

namespace caesura {

template <typename Handle, dnnl_status_t (*Destroy)(Handle)>
struct DnnlDestroy {
  using pointer = Handle;
  void operator()(Handle handle) const { Destroy(handle); }
};
template <typename Handle, dnnl_status_t (*Destroy)(Handle)>
using DnnlOwner = std::unique_ptr<std::remove_pointer_t<Handle>, DnnlDestroy<Handle, Destroy>>;

using DnnlMemoryDesc = DnnlOwner<dnnl_memory_desc_t, dnnl_memory_desc_destroy>;
using DnnlMemory = DnnlOwner<dnnl_memory_t, dnnl_memory_destroy>;
using DnnlStream = DnnlOwner<dnnl_stream_t, dnnl_stream_destroy>;
using DnnlPrimitiveDesc = DnnlOwner<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using DnnlPrimitiveHandle = DnnlOwner<dnnl_primitive_t, dnnl_primitive_destroy>;
using DnnlAttributes = DnnlOwner<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>;
using DnnlPostOps = DnnlOwner<dnnl_post_ops_t, dnnl_post_ops_destroy>;

// The CPU engine of the process; oneDNN's engines are immutable. Null where oneDNN cannot make one.
dnnl_engine_t DnnlCpuEngine();

// Ok, or what oneDNN answered to `what`: kDeclined where it has no implementation.
Status DnnlStatus(dnnl_status_t status, const char* what);

// oneDNN calculates with 32 bits in places, and ends the process where sizes do not fit (a division
// by a dim of 2^32): all sizes, steps and counts that it is given are asked about here first.
inline bool FitDnnl(const std::vector<int64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](int64_t n) { return n >= -INT32_MAX && n <= INT32_MAX; });
}

// The order of packed weights of these dims; null where there is none.
DnnlMemoryDesc MakePackedDesc(const DnnlTensor& weights);

// Null where the dtype has no counterpart, a dim does not fit, or the strides are refused.
DnnlMemoryDesc MakeDnnlMemoryDesc(const DnnlTensor& tensor);
// Dims and dtype of `tensor` in a layout that oneDNN chooses.
DnnlMemoryDesc MakeDnnlAnyDesc(const DnnlTensor& tensor);

// Attributes with the scratchpad in our hands.
DnnlAttributes MakeDnnlAttributes();

// Runs oneDNN calls of this thread with a given team size; gives the old one back at the end.
class DnnlTeam {
 public:
  explicit DnnlTeam(int threads);
  ~DnnlTeam();
  DnnlTeam(const DnnlTeam&) = delete;
  DnnlTeam& operator=(const DnnlTeam&) = delete;

 private:
  int before_;
  int threads_;
};

// One argument of a call: oneDNN's number for it, and our layout.
struct DnnlArgument {
  int id;
  DnnlTensor tensor;
  bool is_output = false;
};

// Makes the primitive of `desc`, with copies where it prefers another layout than the argument's.
// Refuses oneDNN's reference implementations: our plain kernels are faster.
Result<DnnlCall> MakeDnnlCall(KernelInfo& info, int threads, DnnlPrimitiveDesc desc,
                              const std::vector<DnnlArgument>& arguments);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_GEMM_DNNL_HANDLES_H_
