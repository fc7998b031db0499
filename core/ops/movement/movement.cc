// SPDX-License-Identifier: Apache-2.0
// Ops that are one strided copy, or one per tensor: Transpose, Expand, Tile, DepthToSpace,
// SpaceToDepth, Concat, Split (core/kernels/walks/moves.h).
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"
#include "core/kernels/walks/strided_copy.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// Small parts are copied row by row, without boxes, which take longer to make; many rows of a few
// elements are not, as a box moves them faster.
Status CreateConcat(KernelInfo& info) {
  constexpr int64_t kManyRows = 256, kLongRow = 16;
  ASSIGN_OR_RETURN(const int axis, SetConcatOutput(info));
  const DType dtype = info.InputDType(0);
  const Shape& out = info.outputs()[0].shape;
  const bool long_rows = out.Elements(0, axis) <= kManyRows ||
                         out.Elements(axis, out.rank()) >= kLongRow * info.input_count();
  bool in_rows = dtype != DType::kString && long_rows &&
                 (info.threads() == 1 || out.elements() <= 8 * kParallelGrain);
  for (int i = 0; i < info.input_count(); ++i) in_rows = in_rows && info.input(i).layout.dense();
  if (in_rows) {
    std::vector<size_t> bytes(info.input_count());
    for (int i = 0; i < info.input_count(); ++i) {
      bytes[i] =
          static_cast<size_t>(info.InputShape(i).Elements(axis, out.rank())) * DTypeSize(dtype);
    }
    info.SetCompute(
        [rows = out.Elements(0, axis), bytes = std::move(bytes)](KernelContext& context) {
          char* to = context.Output<char>(0);
          for (int64_t row = 0; row < rows; ++row) {
            for (size_t i = 0; i < bytes.size(); ++i) {
              const size_t n = bytes[i];
              if (n != 0) std::memcpy(to, context.Input<char>(static_cast<int>(i)) + row * n, n);
              to += n;
            }
          }
        });
    return {};
  }
  ASSIGN_OR_RETURN(const Moves moves, ConcatMoves(info));
  return SetMoves(info, moves);
}

}  // namespace

void RegisterMovement(KernelRegistry& registry) {
  registry.Add(
      {.op_type = "Transpose", .strided_inputs = {0}, .create = CreateMoves<TransposeMoves>});
  registry.Add({.op_type = "Expand", .host_inputs = {1}, .create = CreateMoves<ExpandMoves>});
  registry.Add({.op_type = "Tile", .host_inputs = {1}, .create = CreateMoves<TileMoves>});
  registry.Add({.op_type = "DepthToSpace", .create = CreateMoves<DepthToSpaceMoves>});
  registry.Add({.op_type = "SpaceToDepth", .create = CreateMoves<SpaceToDepthMoves>});
  registry.Add({.op_type = "Concat", .strided_inputs = {-1}, .create = CreateConcat});
  registry.Add({.op_type = "Split",
                .host_inputs = {1},
                .strided_inputs = {0},
                .create = CreateMoves<SplitMoves>});
}

}  // namespace caesura
