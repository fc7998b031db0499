// SPDX-License-Identifier: Apache-2.0
// Checks that many factories make, with the node named in the error.
#ifndef CAESURA_CORE_KERNELS_FACTORY_CHECKS_H_
#define CAESURA_CORE_KERNELS_FACTORY_CHECKS_H_

#include <string>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura {

// CheckedShape for an output.
inline Result<Shape> CheckDims(const KernelInfo& info, std::vector<int64_t> dims, DType dtype) {
  Result<Shape> shape = CheckedShape(std::move(dims), dtype);
  if (!shape.ok()) return info.Invalid(shape.status().message());
  return shape;
}

// Axis in [-rank, rank) to [0, rank).
inline Result<int> CheckAxis(const KernelInfo& info, int64_t axis, int rank) {
  Result<int> out = NormalizeAxis(axis, rank);
  if (!out.ok()) return info.Invalid(out.status().message());
  return out;
}

// CheckAxis for each; a repeated axis is refused.
inline Result<std::vector<int>> CheckAxes(const KernelInfo& info, const std::vector<int64_t>& axes,
                                          int rank) {
  std::vector<bool> seen(rank, false);
  std::vector<int> out;
  for (int64_t axis : axes) {
    Result<int> checked = CheckAxis(info, axis, rank);
    if (!checked.ok()) return checked.status();
    if (seen[*checked]) return info.Invalid("axes: " + std::to_string(axis) + " is given twice");
    seen[*checked] = true;
    out.push_back(*checked);
  }
  return out;
}

inline Status CheckRank(const KernelInfo& info, int input, int rank) {
  if (info.InputShape(input).rank() == rank) return {};
  return info.Invalid("input " + std::to_string(input) + ": expected rank " + std::to_string(rank) +
                      ", got " + info.InputShape(input).ToString());
}

inline Status CheckDType(const KernelInfo& info, int input, DTypeSet expected) {
  if (expected.Contains(info.InputDType(input))) return {};
  return info.Invalid("input " + std::to_string(input) + ": expected " + expected.ToString() +
                      ", got " + DTypeName(info.InputDType(input)));
}

// The value of a host input of numbers as doubles; empty when absent.
inline std::vector<double> HostDoubles(const KernelInfo& info, int input) {
  const Tensor* value = info.InputValue(input);
  return value == nullptr ? std::vector<double>() : value->ToVector<double>();
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_FACTORY_CHECKS_H_
