// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/adapters/through_dense.h"

#include <cassert>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/inner_arguments.h"
#include "core/kernels/walks/strided_copy.h"

namespace caesura {
namespace {

struct DenseCopy {
  int input;
  size_t scratch;
  StridedCopy copy;
};

// All that the compute function needs.
struct DenseSpec {
  ComputeFunction inner;
  size_t scratch;  // of the inner kernel
  int inputs, outputs;
  std::vector<DenseCopy> copies;
};

Status ComputeDense(const DenseSpec& plan, KernelContext& context) {
  InnerArguments arguments(context, plan.inputs, plan.outputs);
  for (const DenseCopy& c : plan.copies) {
    void* dense = context.Scratch<void>(c.scratch);
    c.copy.Run(arguments.input(c.input), dense);
    arguments.input(c.input) = dense;
  }
  KernelContext dense = arguments.Context(context.Scratch<void>(plan.scratch));
  return plan.inner(dense);
}

}  // namespace

Status CreateThroughDense(KernelInfo& info, KernelFactory factory) {
  DenseSpec plan{{}, 0, info.input_count(), info.output_count(), {}};
  if (plan.inputs + plan.outputs > InnerArguments::kMax)
    return info.Refuse("too many inputs to copy");
  for (int i = 0; i < plan.outputs; ++i) {
    if (!info.OutputLayout(i).dense()) return info.Refuse("outputs are written dense");
  }
  std::vector<InputInfo> inputs;
  for (int i = 0; i < plan.inputs; ++i) {
    inputs.push_back(info.input(i));
    InputInfo& input = inputs.back();
    if (!input.present || input.layout.dense()) continue;
    const StridedBox box = {.extents = input.shape.dims(),
                            .src_strides = StridesOf(input.shape, input.layout),
                            .dst_strides = input.shape.Strides(),
                            .src_offset = input.layout.offset};
    ASSIGN_OR_RETURN(StridedCopy copy, StridedCopy::Make(info, input.dtype, box));
    const size_t scratch =
        info.BookScratch(static_cast<size_t>(input.shape.elements()) * DTypeSize(input.dtype));
    plan.copies.push_back({i, scratch, std::move(copy)});
    input.layout = {};
  }
  if (plan.copies.empty()) return factory(info);
  KernelInfo inner(info.node(), std::move(inputs), info.threads());
  RETURN_IF_ERROR(factory(inner));
  for (int i = 0; i < plan.outputs; ++i) {
    const OutputInfo& output = inner.outputs()[i];
    assert(output.kind != OutputInfo::Kind::kSizedInCompute);
    if (output.kind == OutputInfo::Kind::kPlanned) info.SetOutput(i, output.dtype, output.shape);
  }
  plan.scratch = info.BookScratch(inner.scratch_bytes());
  plan.inner = inner.TakeCompute();
  info.SetCompute(
      [plan = std::move(plan)](KernelContext& context) { return ComputeDense(plan, context); });
  return {};
}

}  // namespace caesura
