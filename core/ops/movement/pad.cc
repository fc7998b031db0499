// SPDX-License-Identifier: Apache-2.0
// Pad in its four modes.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/movement/pad_maps.h"
#include "core/kernels/kernel.h"
#include "core/ops/movement/pad_spec.h"

namespace caesura {
namespace {

enum class PadMode { kConstant, kReflect, kEdge, kWrap };

Result<PadMode> ReadMode(const KernelInfo& info) {
  const std::string mode = info.Attr<std::string>("mode", "constant");
  if (mode == "constant") return PadMode::kConstant;
  if (mode == "reflect") return PadMode::kReflect;
  if (mode == "edge") return PadMode::kEdge;
  if (mode == "wrap") return PadMode::kWrap;
  return info.Invalid("mode: expected constant, reflect, edge or wrap, got " + mode);
}

// Where index i, counted from the first of `count` elements and possibly outside of them, takes its
// value from.
int64_t SourceIndex(PadMode mode, int64_t i, int64_t count) {
  if (i >= 0 && i < count) return i;
  switch (mode) {
    case PadMode::kConstant: return kFillIndex;
    case PadMode::kEdge: return i < 0 ? 0 : count - 1;
    case PadMode::kWrap: return (i % count + count) % count;
    case PadMode::kReflect: break;
  }
  // Mirrored at the first and the last element, over and over: a period of 2 * (count - 1).
  const int64_t period = std::max<int64_t>(1, 2 * (count - 1));
  const int64_t phase = (i % period + period) % period;
  return phase < count ? phase : period - phase;
}

}  // namespace

Result<std::vector<AxisMap>> ResolvePad(const KernelInfo& info, const Shape& shape, int pads,
                                        int axes) {
  ASSIGN_OR_RETURN(const PadMode mode, ReadMode(info));
  ASSIGN_OR_RETURN(const PadAmounts amounts, ReadPadAmounts(info, shape, pads, axes));
  std::vector<AxisMap> maps(shape.rank());
  for (int a = 0; a < shape.rank(); ++a) {
    const int64_t before = amounts.before[a], extent = amounts.padded[a];
    const int64_t first =
        std::max<int64_t>(0, -before);  // of the elements that negative pads leave
    const int64_t count = std::min(shape[a], extent - before) - first;
    if (count <= 0 && extent > 0 && mode != PadMode::kConstant) {
      return info.Invalid("axis " + std::to_string(a) + " has no element to pad from");
    }
    maps[a].reserve(extent);
    for (int64_t i = 0; i < extent; ++i) {
      const int64_t source = SourceIndex(mode, i - std::max<int64_t>(0, before), count);
      maps[a].push_back(source < 0 ? kFillIndex : source + first);
    }
  }
  return maps;
}

namespace {

Status CreatePad(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(std::vector<AxisMap> maps, ResolvePad(info, info.InputShape(0), 1, 3));
  if (info.HasInput(2) && (info.InputDType(2) != dtype || info.InputShape(2).elements() != 1)) {
    return info.Invalid(std::string("constant_value: expected one ") + DTypeName(dtype) + ", got " +
                        DTypeName(info.InputDType(2)) + info.InputShape(2).ToString());
  }
  std::vector<int64_t> dims;
  for (const AxisMap& map : maps) dims.push_back(static_cast<int64_t>(map.size()));
  MappedCopy copy = MappedCopy::Make(info, dtype, info.InputShape(0), std::move(maps));
  info.SetOutput(0, dtype, Shape(dims));
  info.SetCompute([copy = std::move(copy), has_value = info.HasInput(2)](KernelContext& context) {
    copy.Run(context.Input<void>(0), context.Output<void>(0),
             has_value ? context.Input<void>(2) : nullptr);
  });
  return {};
}

}  // namespace

void RegisterPad(KernelRegistry& registry) {
  registry.Add({.op_type = "Pad", .host_inputs = {1, 3}, .create = CreatePad});
}

}  // namespace caesura
