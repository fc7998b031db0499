// SPDX-License-Identifier: Apache-2.0
// Ops that only move elements (core/kernels/walks/moves.h), by one kernel: a strided copy.
#include "core/kernels/cuda/strided_copy.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/moves.h"
#include "core/ops/movement/shape_of.h"

namespace caesura {
namespace {

Status CreateMoves(KernelInfo& info, const CudaDevicePtr& device,
                   Result<Moves> (*moves_of)(KernelInfo&)) {
  ASSIGN_OR_RETURN(const Moves moves, moves_of(info));
  struct Copy {
    int input, output;
    CudaStridedCopy copy;
  };
  std::vector<Copy> copies;
  for (const Move& move : moves) {
    ASSIGN_OR_RETURN(
        CudaStridedCopy copy,
        CudaStridedCopy::Make(info, device, DTypeSize(info.InputDType(move.input)), move.box));
    copies.push_back({move.input, move.output, std::move(copy)});
  }
  info.SetCompute([copies = std::move(copies)](KernelContext& context) -> Status {
    for (const Copy& move : copies) {
      void* to = context.Output<void>(move.output);
      if (to != nullptr) RETURN_IF_ERROR(move.copy.Run(context.Input<void>(move.input), to));
    }
    return {};
  });
  return {};
}

}  // namespace

void RegisterCudaMovement(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, Result<Moves> (*moves_of)(KernelInfo&), KernelDef def) {
    def.op_type = op;
    def.types = kFixedTypes;
    def.create = [=](KernelInfo& info) { return CreateMoves(info, device, moves_of); };
    registry.Add(std::move(def));
  };
  RegisterShapes(registry);
  const KernelDef view = {.host_inputs = {1}, .aliases = {View(0, 0)}, .strided_inputs = {0}};
  add("Reshape", ReshapeMoves, view);
  add("Flatten", FlattenMoves, view);
  add("Detach", DetachMoves,
      {.domain = kCaesuraDomain, .aliases = {View(0, 0)}, .strided_inputs = {0}});
  add("Squeeze", SqueezeMoves, view);
  add("Unsqueeze", UnsqueezeMoves, view);
  add("Transpose", TransposeMoves, {.strided_inputs = {0}});
  add("Expand", ExpandMoves, {.host_inputs = {1}});
  add("Tile", TileMoves, {.host_inputs = {1}});
  add("DepthToSpace", DepthToSpaceMoves, {});
  add("SpaceToDepth", SpaceToDepthMoves, {});
  add("Concat", ConcatMoves, {.strided_inputs = {-1}});
  add("Split", SplitMoves, {.host_inputs = {1}, .strided_inputs = {0}});
  add("Slice", SliceMoves, {.host_inputs = {-2}});
}

}  // namespace caesura
