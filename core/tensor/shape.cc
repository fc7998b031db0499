// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <algorithm>

namespace caesura {

int64_t Shape::Elements(int first, int last) const {
  int64_t product = 1;
  for (int i = first; i < last; ++i) product *= (*this)[i];
  return product;
}

std::vector<int64_t> Shape::Strides() const {
  std::vector<int64_t> strides(rank(), 1);
  for (int i = rank() - 2; i >= 0; --i) strides[i] = strides[i + 1] * (*this)[i + 1];
  return strides;
}

std::string Shape::ToString() const {
  std::string out = "[";
  for (int i = 0; i < rank(); ++i) out += (i ? ", " : "") + std::to_string((*this)[i]);
  return out + "]";
}

Result<Shape> CheckedShape(std::vector<int64_t> dims, DType dtype) {
  int64_t bytes = static_cast<int64_t>(std::max<size_t>(1, DTypeSize(dtype)));
  for (int64_t dim : dims) {
    if (dim < 0) return InvalidArgument("negative dim in shape " + Shape(dims).ToString());
    // A zero dim makes the tensor empty, yet the other dims must still not overflow when multiplied
    // alone.
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes) ||
        bytes > (int64_t{1} << 62)) {
      return InvalidArgument("shape " + Shape(dims).ToString() + " of " + DTypeName(dtype) +
                             " is too large");
    }
  }
  return Shape(dims);
}

Result<Shape> BroadcastShape(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out = a.rank() == rank ? a : b;
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t da = ia < 0 ? 1 : a[ia], db = ib < 0 ? 1 : b[ib];
    if (da != db && da != 1 && db != 1) {
      return InvalidArgument("shapes " + a.ToString() + " and " + b.ToString() +
                             " do not broadcast");
    }
    out[i] = da == 1 ? db : da;
  }
  return out;
}

Result<int> NormalizeAxis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    return InvalidArgument("axis " + std::to_string(axis) + " is outside of rank " +
                           std::to_string(rank));
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

}  // namespace caesura
