// SPDX-License-Identifier: Apache-2.0
// Layout: where the elements of a tensor lie in a buffer, when they are not simply one after the
// other.
#ifndef CAESURA_CORE_TENSOR_LAYOUT_H_
#define CAESURA_CORE_TENSOR_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/tensor/shape.h"

namespace caesura {

// In elements, one stride a dim; 0 repeats. No strides and no offset: dense, row-major from the
// buffer's start.
struct Layout {
  std::vector<int64_t> strides;
  int64_t offset = 0;

  bool dense() const { return strides.empty() && offset == 0; }
  bool operator==(const Layout& other) const {
    return strides == other.strides && offset == other.offset;
  }
};

// The strides of `shape` under `layout`, also where it is dense.
std::vector<int64_t> StridesOf(const Shape& shape, const Layout& layout);

// `layout`, or the dense one where it says the same.
Layout Simplified(const Shape& shape, Layout layout);

// Dim i of the result is dim permutation[i] of `shape`.
Layout Permuted(const Shape& shape, const Layout& layout, const std::vector<int64_t>& permutation);

// The layout of `to`, of as many elements as `from`, in the same bytes; nothing where no strides
// can say it.
std::optional<Layout> Reshaped(const Shape& from, const Layout& layout, const Shape& to);

// Writes the elements at `from`, of 1, 2, 4, 8 or 16 bytes each, to `to` in row-major order.
void CopyDense(const void* from, const Shape& shape, const Layout& layout, size_t element_bytes,
               void* to);

// The other way: `from` is in row-major order, the elements at `to` lie as `layout` says.
void CopyToLayout(const void* from, const Shape& shape, const Layout& layout, size_t element_bytes,
                  void* to);

}  // namespace caesura

#endif  // CAESURA_CORE_TENSOR_LAYOUT_H_
