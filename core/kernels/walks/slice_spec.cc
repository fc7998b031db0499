// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/walks/slice_spec.h"

#include <algorithm>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

struct AxisSlice {
  int64_t start;
  int64_t count;
};

// The clamping of Slice-13's text: bounds count from the end when negative and stop at the edges;
// an empty range gives count 0. Unlike in NumPy, a start before the axis is the first element for a
// negative step too. The texts of 10 and 11 say nothing of it; onnxruntime takes it so in all.
AxisSlice ClampSlice(int64_t start, int64_t end, int64_t step, int64_t dim) {
  if (dim == 0) return {0, 0};
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? dim : dim - 1;
  start = std::clamp<int64_t>(start < 0 ? start + dim : start, 0, highest);
  end = std::clamp(end < 0 ? end + dim : end, lowest, highest);
  // Unsigned, so that the magnitude of the most negative step exists.
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const int64_t length = step > 0 ? end - start : start - end;
  if (length <= 0) return {0, 0};
  return {start, 1 + static_cast<int64_t>(static_cast<uint64_t>(length - 1) / stride)};
}

}  // namespace

Result<SliceSpec> ResolveSlice(const KernelInfo& info, const Shape& shape, int first) {
  const std::vector<int64_t> starts = info.HostInts(first), ends = info.HostInts(first + 1);
  std::vector<int64_t> axes = info.HostInts(first + 2), steps = info.HostInts(first + 3);
  if (!info.HasInput(first + 2)) {
    axes.resize(starts.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  if (!info.HasInput(first + 3)) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() ||
      steps.size() != starts.size()) {
    return info.Invalid("starts, ends, axes and steps: expected one length, got " +
                        std::to_string(starts.size()) + ", " + std::to_string(ends.size()) + ", " +
                        std::to_string(axes.size()) + " and " + std::to_string(steps.size()));
  }
  ASSIGN_OR_RETURN(const std::vector<int> checked, CheckAxes(info, axes, shape.rank()));
  SliceSpec spec{shape, 0, shape.Strides()};
  for (size_t i = 0; i < checked.size(); ++i) {
    const int a = checked[i];
    if (steps[i] == 0) return info.Invalid("steps: expected no zero");
    const AxisSlice slice = ClampSlice(starts[i], ends[i], steps[i], shape[a]);
    spec.shape[a] = slice.count;
    spec.offset += slice.start * spec.strides[a];
    // A step beyond the axis is never taken; kept small so that the product cannot overflow.
    spec.strides[a] *= slice.count > 1 ? steps[i] : 1;
  }
  return spec;
}

}  // namespace caesura
