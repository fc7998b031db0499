// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/row_op.h"

#include <algorithm>

#include "core/graph/graph.h"
#include "core/graph/op_def.h"
#include "graph_transforms/constant_ints.h"
#include "graph_transforms/same_dims.h"

namespace caesura {
namespace {

// Reduces only the last axis, and keeps it as one.
bool ReducesRow(const Node& node, int64_t rank) {
  const std::optional<int64_t> axis = ConstantInt(node.input(1));
  return axis && node.Attr<int64_t>("keepdims", 1) == 1 && (*axis == -1 || *axis == rank - 1);
}

using Dims = std::vector<Dim>;

bool HasNone(const Dims& dims) {
  return std::any_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.value == 0; });
}

// Null where they are not known, or say that there is nothing: tiles have elements.
const Dims* FilledDimsOf(const Value* value) {
  const bool known = value != nullptr && value->type().is_tensor() && value->type().shape;
  return known && !HasNone(*value->type().shape) ? &*value->type().shape : nullptr;
}

Dims RowsOf(const Dims& dims) { return Dims(dims.begin(), dims.end() - 1); }

// A tensor that goes with such rows: it has them, or repeats over some of them.
bool GoesWith(const Dims& dims, const Dims& rows) {
  const int lead = static_cast<int>(rows.size()) + 1 - static_cast<int>(dims.size());
  if (lead < 0) return false;
  for (size_t d = 0; d + 1 < dims.size(); ++d) {
    if (dims[d].value != 1 && !SameDim(dims[d], rows[lead + d])) return false;
  }
  return true;
}

}  // namespace

std::optional<RowOp> AsRowOp(const Node& node, bool for_device) {
  const OpDef& traits = OpDefOf(node);
  const bool sums_rows = traits.rows == OpDef::Rows::kSums;
  const bool reduces = traits.rows == OpDef::Rows::kReduces;
  const bool elementwise = traits.elementwise || (for_device && traits.device_rows);
  if (traits.rows == OpDef::Rows::kNone && !elementwise) return std::nullopt;
  RowOp op;
  op.columns = traits.row_sums;
  const Dims* whole = FilledDimsOf(sums_rows || reduces ? node.input(0) : node.output(0));
  if (whole == nullptr || whole->size() < 2) return std::nullopt;
  op.rows = RowsOf(*whole);
  if (!GoesWith(*whole, op.rows)) return std::nullopt;  // a dim without a name is no row's
  const auto rank = static_cast<int64_t>(whole->size());
  if (traits.rows == OpDef::Rows::kAlongAxis) {
    const int64_t axis = node.Attr<int64_t>("axis", traits.row_axis);
    if (axis != -1 && axis != rank - 1) return std::nullopt;
  }
  if (reduces && !ReducesRow(node, rank)) return std::nullopt;
  const bool splits = node.Is("Split");
  if (sums_rows) {
    const Dims* sum = FilledDimsOf(node.output(0));
    if (sum == nullptr || sum->size() != 1 || !SameDim(sum->front(), whole->back()))
      return std::nullopt;
  }
  const bool reads_shape = sums_rows || reduces || splits;  // input 1
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    if (node.inputs()[i] == nullptr || (reads_shape && i == 1)) continue;
    const Dims* dims = FilledDimsOf(node.inputs()[i]);
    if (node.inputs()[i]->dtype() == DType::kString) return std::nullopt;
    if (dims == nullptr || !GoesWith(*dims, op.rows)) return std::nullopt;
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const bool column = std::count(op.columns.begin(), op.columns.end(), static_cast<int>(i)) > 0;
    if (node.outputs()[i] == nullptr || column) continue;
    const Dims* dims = FilledDimsOf(node.outputs()[i]);
    if (dims == nullptr || dims->size() != whole->size() || !SameDims(RowsOf(*dims), op.rows))
      return std::nullopt;
    if (splits && !dims->back().known()) return std::nullopt;  // parts are known only at run time
  }
  return op;
}

}  // namespace caesura
