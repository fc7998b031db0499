// SPDX-License-Identifier: Apache-2.0
// The places of several operands' elements, as a kernel walks a box of them: dims, and the
// strides of each operand along them. Dims of one are dropped, and neighbours that all operands
// walk alike are merged, so that the dense case has one dim.
#ifndef CAESURA_CORE_KERNELS_CUDA_STRIDED_WALK_H_
#define CAESURA_CORE_KERNELS_CUDA_STRIDED_WALK_H_

#include <cstdint>
#include <string>
#include <vector>

namespace caesura {

struct StridedWalk {
  std::vector<int64_t> dims;                  // outermost first; at least one
  std::vector<std::vector<int64_t>> strides;  // by operand, along the dims; in elements
  int64_t elements = 1;

  // `strides`: of each operand along `dims`.
  static StridedWalk Make(const std::vector<int64_t>& dims,
                          const std::vector<std::vector<int64_t>>& strides);

  // True where a kernel may take that many elements at once: those of each operand lie side by
  // side, from a multiple of that many on, or are one and the same. What is left at the end of
  // dense operands it takes one by one.
  bool HasVectors(int64_t elements) const;
  // True where the operand's elements repeat along the innermost dim.
  bool Repeats(size_t operand) const { return strides[operand].back() == 0; }
  // True where the operand's elements lie one after the other.
  bool IsDense(size_t operand) const { return dims.size() == 1 && strides[operand][0] == 1; }
  // The contents of the kernel's parameter `walk`: the dims, then the strides of each operand.
  std::vector<int64_t> Numbers() const;
  // "struct Walk { i64 at[12]; };"
  std::string Struct(const std::string& name = "Walk") const;
  // Statements that declare `offset0`, `offset1` and so on for element `i`, by the numbers of
  // `walk`. Other names for all three, for a second walk in one kernel.
  std::string Offsets(const std::string& index = "i", const std::string& walk = "walk",
                      const std::string& offset = "offset") const;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_STRIDED_WALK_H_
