// SPDX-License-Identifier: Apache-2.0
// Outputs that are not dense: where matrix products of a device are several times as fast on rows
// that begin at multiples of 16 bytes (cuBLASLt on 50,257 columns takes six times as long as on
// 50,304), large values are laid out with a gap after each row.
#include <algorithm>
#include <numeric>

#include "core/kernels/kernel_registry.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {
namespace {

// A smaller value is no loss worth a second layout.
constexpr size_t kLarge = size_t{1} << 20;
// Rows begin at multiples of this many bytes: a whole line of a GPU's cache.
constexpr size_t kRowAlignment = 128;
constexpr size_t kNeededAlignment = 16;

// The readers of a value, and gaps between its rows. Readers that look at the same bytes (Reshape)
// do as their own readers do.
struct Reading {
  bool takes = true;   // all of them take gaps
  bool gains = false;  // one of them is faster
};

Reading ReadingOf(const PlanDraft& plan, const Value* value) {
  Reading out{ReadersTakeStrides(plan, value)};
  auto readers = plan.readers.find(value);
  if (!out.takes || readers == plan.readers.end()) return out;
  for (const Reader& reader : readers->second) {
    const ExecutionProvider* provider = plan.placement->ProviderOf(*reader.node);
    for (const KernelDef* def : provider->kernels().Find(*reader.node)) {
      if (KernelDef::Lists(def->unread_inputs, reader.input)) continue;
      out.gains |= def->pads_rows;
      const bool views =
          std::any_of(def->aliases.begin(), def->aliases.end(),
                      [](const Alias& alias) { return alias.kind == Alias::Kind::kView; });
      // Others (Transpose) have their input written as they want it.
      if (!views) out.takes &= def->pads_rows || !def->strided_outputs.empty();
      if (!views) continue;
      const Reading through = ReadingOf(plan, reader.node->output(0));
      out.takes &= through.takes;
      out.gains |= through.gains;
    }
  }
  return out;
}

// Rows with gaps, or dense.
Layout PaddedRows(const Shape& shape, DType dtype) {
  const size_t size = DTypeSize(dtype);
  if (shape.rank() < 2 || BytesOf(shape, dtype) < kLarge) return {};
  const int64_t columns = shape[shape.rank() - 1];
  if (static_cast<size_t>(columns) * size % kNeededAlignment == 0) return {};
  const auto unit = static_cast<int64_t>(kRowAlignment / size);
  Layout out{std::vector<int64_t>(shape.rank(), 1), 0};
  int64_t pitch = (columns + unit - 1) / unit * unit;
  for (int d = shape.rank() - 2; d >= 0; --d) {
    out.strides[d] = pitch;
    pitch *= shape[d];
  }
  return out;
}

// The layout of an input that the output may overwrite, where the input has gaps.
Layout LayoutOfReused(const PlanDraft& plan, const NodeDraft& draft, const KernelDef& def,
                      int output, const OutputInfo& decided) {
  for (const Alias& alias : def.aliases) {
    if (alias.kind != Alias::Kind::kMayReuse || alias.output != output) continue;
    const uint32_t id = draft.inputs[alias.input];
    if (id == 0) continue;
    const ValueDraft& input = plan.values[id];
    if (input.shape == decided.shape && input.dtype == decided.dtype) return input.layout;
  }
  return {};
}

}  // namespace

size_t BytesUnder(const Layout& layout, const Shape& shape, DType dtype) {
  if (layout.dense() || shape.elements() == 0) return BytesOf(shape, dtype);
  int64_t last = layout.offset;
  for (int d = 0; d < shape.rank(); ++d) last += (shape[d] - 1) * layout.strides[d];
  return static_cast<size_t>(last + 1) * DTypeSize(dtype);
}

std::vector<Layout> ChooseLayouts(const PlanDraft& plan, const NodeDraft& draft,
                                  const KernelInfo& info, const KernelDef& def) {
  std::vector<Layout> out(draft.outputs.size());
  if (draft.provider->device().is_host() || !RunsOnPlacedProvider(plan, draft)) return out;
  for (size_t i = 0; i < out.size(); ++i) {
    const OutputInfo& decided = info.outputs()[i];
    const uint32_t id = draft.outputs[i];
    if (id == 0 || decided.kind != OutputInfo::Kind::kPlanned ||
        !KernelDef::Lists(def.strided_outputs, static_cast<int>(i)))
      continue;
    const Reading reading = ReadingOf(plan, plan.values[id].value);
    if (!reading.takes) continue;
    out[i] = LayoutOfReused(plan, draft, def, static_cast<int>(i), decided);
    if (out[i].dense() && (def.pads_rows || reading.gains))
      out[i] = PaddedRows(decided.shape, decided.dtype);
  }
  return out;
}

}  // namespace caesura
