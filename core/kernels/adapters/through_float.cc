// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/adapters/through_float.h"

#include "core/base/status_macros.h"
#include "core/kernels/adapters/inner_arguments.h"
#include "core/kernels/simd/parallel.h"

namespace caesura {
namespace {

// An input or output that is converted: its place among the node's, its size, and where its float32
// form lies.
struct Conversion {
  int index;
  int64_t count;
  size_t scratch;
};

bool IsHalf(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

template <typename From, typename To>
void Convert(int threads, int64_t count, const From* from, To* to) {
  ParallelFor(threads, count, kParallelGrain, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] = To(float(from[i]));
  });
}

// All that the compute function needs.
struct FloatSpec {
  ComputeFunction inner;
  size_t scratch;  // of the inner kernel
  int inputs, outputs, threads;
  std::vector<Conversion> widened, narrowed;
};

template <typename Half>
Status ComputeInFloat(const FloatSpec& plan, KernelContext& context) {
  InnerArguments arguments(context, plan.inputs, plan.outputs);
  for (const Conversion& c : plan.widened) {
    float* wide = context.Scratch<float>(c.scratch);
    Convert(plan.threads, c.count, static_cast<const Half*>(arguments.input(c.index)), wide);
    arguments.input(c.index) = wide;
  }
  for (const Conversion& c : plan.narrowed)
    arguments.output(c.index) = context.Scratch<float>(c.scratch);
  KernelContext wide = arguments.Context(context.Scratch<void>(plan.scratch));
  RETURN_IF_ERROR(plan.inner(wide));
  for (const Conversion& c : plan.narrowed) {
    Convert(plan.threads, c.count, context.Scratch<float>(c.scratch),
            context.Output<Half>(c.index));
  }
  return {};
}

}  // namespace

Status CreateThroughFloat(KernelInfo& info, KernelFactory factory) {
  DType half = DType::kUndefined;
  FloatSpec plan{{}, 0, info.input_count(), info.output_count(), info.threads(), {}, {}};
  if (plan.inputs + plan.outputs > InnerArguments::kMax)
    return info.Refuse("too many inputs to run through float32");
  std::vector<InputInfo> inputs;
  for (int i = 0; i < plan.inputs; ++i) {
    inputs.push_back(info.input(i));
    InputInfo& input = inputs.back();
    if (!input.present || !IsHalf(input.dtype)) continue;
    if (half != DType::kUndefined && half != input.dtype)
      return info.Refuse("float16 and bfloat16 inputs mixed");
    half = input.dtype;
    input.dtype = DType::kFloat32;
    input.value = nullptr;
    plan.widened.push_back({i, input.shape.elements(), 0});
  }
  if (half == DType::kUndefined) return info.Refuse("no half-precision input");
  KernelInfo inner(info.node(), std::move(inputs), info.threads());
  RETURN_IF_ERROR(factory(inner));
  const bool asked = info.Attr<int64_t>("dtype", 0) == static_cast<int64_t>(DType::kFloat32);
  for (Conversion& c : plan.widened) c.scratch = info.BookScratch(c.count * sizeof(float));
  for (int i = 0; i < plan.outputs; ++i) {
    const OutputInfo& output = inner.outputs()[i];
    if (output.kind == OutputInfo::Kind::kSizedInCompute)
      return info.Refuse("an output is sized at run time");
    if (output.kind != OutputInfo::Kind::kPlanned) continue;
    const bool narrow = output.dtype == DType::kFloat32 && !asked;
    info.SetOutput(i, narrow ? half : output.dtype, output.shape);
    if (!narrow || !info.HasOutput(i)) continue;
    const int64_t count = output.shape.elements();
    plan.narrowed.push_back({i, count, info.BookScratch(count * sizeof(float))});
  }
  plan.scratch = info.BookScratch(inner.scratch_bytes());
  plan.inner = inner.TakeCompute();
  if (half == DType::kFloat16) {
    info.SetCompute([plan = std::move(plan)](KernelContext& context) {
      return ComputeInFloat<Float16>(plan, context);
    });
  } else {
    info.SetCompute([plan = std::move(plan)](KernelContext& context) {
      return ComputeInFloat<BFloat16>(plan, context);
    });
  }
  return {};
}

}  // namespace caesura
