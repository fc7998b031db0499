// SPDX-License-Identifier: Apache-2.0
// Concrete shapes: every dim known, row-major, contiguous.
#ifndef CAESURA_CORE_TENSOR_SHAPE_H_
#define CAESURA_CORE_TENSOR_SHAPE_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/dtype.h"

namespace caesura {

// The dims of a tensor, outermost first. Thread safety: as a std::vector.
class Shape {
 public:
  Shape() = default;  // a scalar
  Shape(std::initializer_list<int64_t> dims) { Set(dims.begin(), dims.end()); }
  explicit Shape(const std::vector<int64_t>& dims) { Set(dims.data(), dims.data() + dims.size()); }

  int rank() const { return more_.empty() ? rank_ : static_cast<int>(more_.size()); }
  int64_t operator[](int axis) const { return begin()[axis]; }
  int64_t& operator[](int axis) { return more_.empty() ? few_[axis] : more_[axis]; }
  std::vector<int64_t> dims() const { return {begin(), end()}; }
  const int64_t* begin() const { return more_.empty() ? few_ : more_.data(); }
  const int64_t* end() const { return begin() + rank(); }

  // Product of all dims; 1 for a scalar. Shapes made by CheckedShape never overflow it.
  int64_t elements() const { return Elements(0, rank()); }
  // Product of dims [first, last).
  int64_t Elements(int first, int last) const;
  // Row-major strides in elements.
  std::vector<int64_t> Strides() const;

  bool operator==(const Shape& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }
  // "[2, 3]"; a scalar is "[]".
  std::string ToString() const;

 private:
  static constexpr int kFew =
      5;  // most tensors have no more: plans are full of shapes, which then need no memory

  void Set(const int64_t* first, const int64_t* last) {
    if (last - first > kFew) {
      more_.assign(first, last);
    } else {
      rank_ = static_cast<int>(last - first);
      std::copy(first, last, few_);
    }
  }

  int64_t few_[kFew] = {};
  int rank_ = 0;
  std::vector<int64_t> more_;  // all dims where they are more than kFew
};

// Refuses negative dims and products (in bytes too) beyond 2^62: for dims that come from outside.
Result<Shape> CheckedShape(std::vector<int64_t> dims, DType dtype);

// Numpy/ONNX multidirectional broadcasting of two shapes; fails with both shapes named.
Result<Shape> BroadcastShape(const Shape& a, const Shape& b);

// axis in [-rank, rank) to [0, rank); fails otherwise.
Result<int> NormalizeAxis(int64_t axis, int rank);

}  // namespace caesura

#endif  // CAESURA_CORE_TENSOR_SHAPE_H_
