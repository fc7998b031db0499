// SPDX-License-Identifier: Apache-2.0
#include "core/ops/reduction/reduction_spec.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/odometer.h"

namespace caesura {
namespace {

struct MergedAxis {
  int64_t extent, stride;
  bool reduced;
};

// Axes of extent 1 vanish; neighbours of one kind become one axis.
std::vector<MergedAxis> MergeAxes(const Shape& shape, const std::vector<bool>& reduced) {
  std::vector<MergedAxis> out;
  const std::vector<int64_t> strides = shape.Strides();
  for (int a = 0; a < shape.rank(); ++a) {
    if (shape[a] == 1) continue;
    if (!out.empty() && out.back().reduced == reduced[a]) {
      out.back().extent *= shape[a];
      out.back().stride = strides[a];
    } else {
      out.push_back({shape[a], strides[a], reduced[a]});
    }
  }
  return out;
}

}  // namespace

ReductionSpec MakeReductionPlan(const Shape& shape, const std::vector<bool>& reduced) {
  constexpr int64_t kItemsWanted = 64, kChunkWork = 32768;
  ReductionSpec plan;
  std::vector<MergedAxis> axes = MergeAxes(shape, reduced);
  for (const MergedAxis& axis : axes) (axis.reduced ? plan.count : plan.outputs) *= axis.extent;
  if (!axes.empty()) {
    plan.inner_reduced = axes.back().reduced;
    plan.inner = axes.back().extent;
    axes.pop_back();
  }
  for (const MergedAxis& axis : axes) {
    (axis.reduced ? plan.reduced_extents : plan.kept_extents).push_back(axis.extent);
    (axis.reduced ? plan.reduced_strides : plan.kept_strides).push_back(axis.stride);
    (axis.reduced ? plan.reduced_cells : plan.kept_cells) *= axis.extent;
  }
  if (!plan.inner_reduced) plan.column_blocks = (plan.inner + kColumnBlock - 1) / kColumnBlock;
  const int64_t items = std::max<int64_t>(1, plan.items());
  if (items < kItemsWanted) {
    const int64_t work = plan.outputs * plan.count / items;
    const int64_t wanted = std::min(kItemsWanted / items, work / kChunkWork);
    plan.chunks = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, plan.chunk_units()));
  }
  return plan;
}

Result<std::vector<bool>> ReducedAxes(const KernelInfo& info, const Shape& shape, int axes_input) {
  if (shape.rank() > kMaxWalkAxes) return info.Refuse("takes no tensor of more than 32 axes");
  const std::vector<int64_t> listed = info.HostInts(axes_input);
  const bool noop = info.Attr<int64_t>("noop_with_empty_axes", 0) != 0;
  std::vector<bool> mask(shape.rank(), listed.empty() && !noop);
  ASSIGN_OR_RETURN(const std::vector<int> axes, CheckAxes(info, listed, shape.rank()));
  for (int axis : axes) mask[axis] = true;
  return mask;
}

Shape ReducedShape(const Shape& shape, const std::vector<bool>& reduced, bool keepdims) {
  std::vector<int64_t> dims;
  for (int a = 0; a < shape.rank(); ++a) {
    if (!reduced[a]) dims.push_back(shape[a]);
    if (reduced[a] && keepdims) dims.push_back(1);
  }
  return Shape(dims);
}

}  // namespace caesura
