// SPDX-License-Identifier: Apache-2.0
// How a reduction walks its input: axes of one kind merged, the innermost one a plain loop, the
// work cut into items. All of it depends on the shape alone, so a result does not depend on the
// number of threads.
#ifndef CAESURA_CORE_OPS_REDUCTION_REDUCTION_PLAN_H_
#define CAESURA_CORE_OPS_REDUCTION_REDUCTION_PLAN_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/kernel.h"

namespace caesura {

struct ReductionSpec {
  // Axes outside of the inner one, with their strides in the input.
  std::vector<int64_t> kept_extents, kept_strides;
  std::vector<int64_t> reduced_extents, reduced_strides;
  int64_t kept_cells = 1, reduced_cells = 1;  // products of the extents
  bool inner_reduced = false;
  int64_t inner = 1;    // extent of the innermost axis
  int64_t outputs = 1;  // elements of the result
  int64_t count = 1;    // elements under each of them
  // An item is one kept cell and, when the inner axis is kept, a block of at most kColumnBlock of
  // its columns; each is worked off in `chunks` parts, whose results are merged in order.
  int64_t column_blocks = 1;
  int64_t chunks = 1;

  int64_t items() const { return kept_cells * column_blocks; }
  // The axis that the chunks divide: the inner one when nothing else is reduced, otherwise the
  // outer reduced cells.
  bool chunks_inner() const { return inner_reduced && reduced_cells == 1; }
  int64_t chunk_units() const { return chunks_inner() ? inner : reduced_cells; }
};

inline constexpr int64_t kColumnBlock = 256;

ReductionSpec MakeReductionPlan(const Shape& shape, const std::vector<bool>& reduced);

// A Reduce op's axes (host input 1 unless said) as a mask over the axes of input `data`: all of
// them when none are given, or none of them with noop_with_empty_axes.
Result<std::vector<bool>> ReducedAxes(const KernelInfo& info, const Shape& shape,
                                      int axes_input = 1);

// The shape without the reduced axes, or with 1 in their place.
Shape ReducedShape(const Shape& shape, const std::vector<bool>& reduced, bool keepdims);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_REDUCTION_REDUCTION_PLAN_H_
