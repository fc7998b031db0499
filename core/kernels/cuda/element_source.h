// SPDX-License-Identifier: Apache-2.0
// CUDA source for what an elementwise op computes of one element.
//
// Values are computed in the op's own type, halves in float; they are rounded to their type where
// they are stored, and where a cast leads to a half type and another one away from it. The
// semantics are those of the CPU's kernels (core/kernels/cpu/elementwise): a NaN goes through all
// functions, integers wrap around.
#ifndef CAESURA_CORE_KERNELS_CUDA_ELEMENT_SOURCE_H_
#define CAESURA_CORE_KERNELS_CUDA_ELEMENT_SOURCE_H_

#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/tensor/dtype.h"

namespace caesura {

// float32, float64, float16, bfloat16, integers of all widths, bool.
inline constexpr DTypeSet kCudaTypes = kNumericTypes | DTypeSet{DType::kBool};

inline bool IsHalf(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// The names of an element's type in memory ("bf16") and in a thread ("float").
const char* CudaStorageType(DType dtype);
const char* CudaComputeType(DType dtype);
// The alignment of an address at which LoadVector and StoreVector of the prelude move that many
// elements as a whole.
size_t CudaVectorAlignment(DType dtype, int64_t elements);
// `value` as a literal of the dtype's compute type, with all its bits.
std::string CudaLiteral(DType dtype, double value);

// The expression of the node's output 0 from those of its inputs (compute types; empty where an
// input is absent). Nothing where the op, or the op on these types, has no CUDA source.
std::optional<std::string> CudaElementExpression(const Node& node,
                                                 const std::vector<DType>& input_dtypes,
                                                 DType output_dtype,
                                                 const std::vector<std::string>& inputs);

// The elementwise ops that have a source, "domain::op_type", with the dtypes of their inputs.
struct CudaElementOp {
  const char* op_type;
  const char* domain;
  DTypeSet types;
};
const std::vector<CudaElementOp>& CudaElementOps();

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_ELEMENT_SOURCE_H_
