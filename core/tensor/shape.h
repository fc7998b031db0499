// SPDX-License-Identifier: Apache-2.0
// Concrete shapes: every dim known, row-major, contiguous.
#ifndef CAESURA_CORE_TENSOR_SHAPE_H_
#define CAESURA_CORE_TENSOR_SHAPE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/dtype.h"

namespace caesura {

class Shape {
 public:
  Shape() = default;  // a scalar
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t& operator[](int axis) { return dims_[axis]; }
  const std::vector<int64_t>& dims() const { return dims_; }
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }

  // Product of all dims; 1 for a scalar. Shapes made by CheckedShape never overflow it.
  int64_t elements() const { return Elements(0, rank()); }
  // Product of dims [first, last).
  int64_t Elements(int first, int last) const;
  // Row-major strides in elements.
  std::vector<int64_t> Strides() const;

  bool operator==(const Shape& other) const { return dims_ == other.dims_; }
  bool operator!=(const Shape& other) const { return dims_ != other.dims_; }
  // "[2, 3]"; a scalar is "[]".
  std::string ToString() const;

 private:
  std::vector<int64_t> dims_;
};

// Refuses negative dims and products (in bytes too) beyond 2^62: for dims that come from outside.
Result<Shape> CheckedShape(std::vector<int64_t> dims, DType dtype);

// Numpy/ONNX multidirectional broadcasting of two shapes; fails with both shapes named.
Result<Shape> BroadcastShape(const Shape& a, const Shape& b);

// axis in [-rank, rank) to [0, rank); fails otherwise.
Result<int> NormalizeAxis(int64_t axis, int rank);

}  // namespace caesura

#endif  // CAESURA_CORE_TENSOR_SHAPE_H_
