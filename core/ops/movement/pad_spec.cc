// SPDX-License-Identifier: Apache-2.0
#include "core/ops/movement/pad_spec.h"

#include <algorithm>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// Kernels build index tables while planning: beyond this an axis is taken for a mistake.
constexpr int64_t kLongestTable = int64_t{1} << 28;

}  // namespace

Result<PadAmounts> ReadPadAmounts(const KernelInfo& info, const Shape& shape, int pads, int axes) {
  std::vector<int64_t> listed = info.HostInts(axes);
  if (!info.HasInput(axes)) {
    listed.resize(shape.rank());
    std::iota(listed.begin(), listed.end(), 0);
  }
  ASSIGN_OR_RETURN(const std::vector<int> checked, CheckAxes(info, listed, shape.rank()));
  const std::vector<int64_t> amounts = info.HostInts(pads);
  if (amounts.size() != 2 * checked.size()) {
    return info.Invalid("pads: expected " + std::to_string(2 * checked.size()) + " values, got " +
                        std::to_string(amounts.size()));
  }
  std::vector<int64_t> before(shape.rank(), 0), dims = shape.dims();
  for (size_t i = 0; i < checked.size(); ++i) {
    const int64_t after = amounts[checked.size() + i];
    int64_t& dim = dims[checked[i]];
    before[checked[i]] = amounts[i];
    if (__builtin_add_overflow(dim, amounts[i], &dim) || __builtin_add_overflow(dim, after, &dim) ||
        dim > kLongestTable) {
      return info.Invalid("pads: the values are too large");
    }
  }
  ASSIGN_OR_RETURN(Shape padded, CheckDims(info, std::move(dims), info.InputDType(0)));
  return PadAmounts{std::move(before), std::move(padded)};
}

StridedBox PadBox(const Shape& shape, const PadAmounts& amounts) {
  StridedBox box;
  box.src_strides = shape.Strides();
  box.dst_strides = amounts.padded.Strides();
  for (int a = 0; a < shape.rank(); ++a) {
    const int64_t before = amounts.before[a], first = std::max<int64_t>(0, -before);
    const int64_t end = std::min(shape[a], amounts.padded[a] - before);
    box.extents.push_back(std::max<int64_t>(0, end - first));
    if (end <= first) continue;
    box.src_offset += first * box.src_strides[a];
    box.dst_offset += std::max<int64_t>(0, before) * box.dst_strides[a];
  }
  return box;
}

}  // namespace caesura
