// SPDX-License-Identifier: Apache-2.0
#include "core/ops/attention/cuda_attention_fused.h"

#include <array>

#include "core/ops/attention/cuda_attention_graph.h"
#include "core/kernels/cuda/booked_plan.h"

namespace caesura {
namespace {

// True if cuDNN is there and might take this.
bool MayFuse(const CudaDevice& device, const KernelInfo& info, const AttentionSpec& s) {
  return device.dnn() != nullptr && WhyNoAttentionGraph(s, info.InputDType(0)).empty();
}

// The first element of a tensor of this layout.
void* Begin(const void* at, const HeadLayout& layout) {
  return const_cast<uint16_t*>(static_cast<const uint16_t*>(at) + layout.offset);
}

}  // namespace

bool SetFusedAttention(KernelInfo& info, const CudaDevicePtr& device, const AttentionSpec& s) {
  if (!MayFuse(*device, info, s)) return false;
  const bool lse = info.HasOutput(4);
  const auto plan =
      BookedPlan::Book(info, device, AttentionGraph(*device->dnn(), s, info.InputDType(0), lse));
  if (!plan.ok()) return false;
  info.SetCompute([=, plan = *plan](KernelContext& context) {
    std::vector<void*> tensors = {Begin(context.Input<void>(0), s.q),
                                  Begin(context.Input<void>(1), s.k),
                                  Begin(context.Input<void>(2), s.v), context.Output<void>(0)};
    if (lse) tensors.push_back(context.Output<void>(4));
    return plan.Run(context, tensors);
  });
  return true;
}

bool SetFusedAttentionGradient(KernelInfo& info, const CudaDevicePtr& device,
                               const AttentionSpec& s) {
  // Plans that always give the same bits have been seen for this chip.
  if (!MayFuse(*device, info, s) || device->architecture() != "sm_90") return false;
  if (!info.HasInput(5) || !info.HasInput(6)) return false;
  auto dense = [&](int input, const HeadLayout& x) {
    return HeadsOf(info.InputShape(input), {}, x.heads);
  };
  const auto plan =
      BookedPlan::Book(info, device,
                       AttentionGradientGraph(*device->dnn(), s, info.InputDType(0),
                                              {dense(1, s.q), dense(2, s.k), dense(3, s.v)}));
  if (!plan.ok()) return false;
  const size_t sums =
      info.BookScratch(static_cast<size_t>(s.batch * s.q.heads * s.queries()) * sizeof(float));
  std::array<size_t, 3> unwanted = {};
  for (int i = 0; i < 3; ++i) {
    if (!info.HasOutput(i))
      unwanted[i] = info.BookScratch(static_cast<size_t>(info.InputShape(i + 1).elements()) * 2);
  }
  info.SetCompute([=, plan = *plan](KernelContext& context) {
    std::vector<void*> tensors = {
        Begin(context.Input<void>(0), s.y), Begin(context.Input<void>(1), s.q),
        Begin(context.Input<void>(2), s.k), Begin(context.Input<void>(3), s.v),
        Begin(context.Input<void>(5), s.y), const_cast<void*>(context.Input<void>(6)),
        context.Scratch<void>(sums)};
    for (int i = 0; i < 3; ++i) {
      void* out = context.Output<void>(i);
      tensors.push_back(out != nullptr ? out : context.Scratch<void>(unwanted[i]));
    }
    return plan.Run(context, tensors);
  });
  return true;
}

}  // namespace caesura
