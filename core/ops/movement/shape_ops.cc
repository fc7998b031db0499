// SPDX-License-Identifier: Apache-2.0
// Ops on shapes: Shape and Size; and the views Reshape, Flatten, Squeeze, Unsqueeze.
#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/strided_copy.h"
#include "core/kernels/kernel.h"
#include "core/ops/movement/shape_of.h"

namespace caesura {
namespace {

// The output is the input under another shape of as many elements. A dense input is copied whole.
template <Result<Moves> (*moves_of)(KernelInfo&)>
Status CreateView(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Moves moves, moves_of(info));
  if (!info.input(0).layout.dense()) return SetMoves(info, moves);
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements();
  info.SetCompute([dtype, count, threads = info.threads()](KernelContext& context) {
    const void* from = context.Input<void>(0);
    void* to = context.Output<void>(0);
    if (from != to) ParallelCopy(dtype, from, to, count, threads);
  });
  return {};
}

}  // namespace

void RegisterShapeOps(KernelRegistry& registry) {
  RegisterShapes(registry);
  registry.Add({.op_type = "Reshape",
                .host_inputs = {1},
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateView<ReshapeMoves>});
  registry.Add({.op_type = "Flatten",
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateView<FlattenMoves>});
  registry.Add({.op_type = "Squeeze",
                .host_inputs = {1},
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateView<SqueezeMoves>});
  registry.Add({.op_type = "Unsqueeze",
                .host_inputs = {1},
                .aliases = {View(0, 0)},
                .strided_inputs = {0},
                .create = CreateView<UnsqueezeMoves>});
}

}  // namespace caesura
