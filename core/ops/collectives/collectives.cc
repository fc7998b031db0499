// SPDX-License-Identifier: Apache-2.0
#include "core/ops/collectives/collectives.h"

#include <cstring>

#include <string>
#include <vector>

#include "core/base/status_macros.h"
#include "core/distributed/run_collectives.h"
#include "core/kernels/kernel_registry.h"
#include "core/tensor/tensor.h"

namespace caesura {

Result<RunCollectives*> CollectivesOf(const KernelContext& context, int ranks) {
  RunCollectives* collectives = context.collectives();
  if (collectives == nullptr)
    return InvalidArgument("the run has no communicator (RunOptions::collectives)");
  if (ranks == 0 || collectives->size() == ranks) return collectives;
  return InvalidArgument("the step was planned for " + std::to_string(ranks) +
                         " ranks, and the run has " + std::to_string(collectives->size()));
}

namespace {

Status DecideOutputs(KernelInfo& info) {
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i) || !info.input(i).is_tensor || info.InputDType(i) != info.InputDType(0))
      return info.Invalid("its tensors must have one dtype");
    info.SetOutput(i, info.InputDType(i), info.InputShape(i));
  }
  return {};
}

// The outputs lie in one block, which CollectiveWait asks for: the collective is over the block.
Status CreateCollectiveStart(KernelInfo& info, const CopyBytes& copy) {
  RETURN_IF_ERROR(DecideOutputs(info));
  const auto kind = info.Attr<std::string>("kind", "all_reduce");
  if (kind != "all_reduce" && kind != "broadcast")
    return info.Invalid("kind must be all_reduce or broadcast, not '" + kind + "'");
  const int count = info.input_count();
  const DType dtype = info.InputDType(0);
  std::vector<size_t> bytes, offsets;
  size_t end = 0;
  for (int i = 0; i < count; ++i) {
    info.SetMayReuse(i, i);
    offsets.push_back((end + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment);
    bytes.push_back(static_cast<size_t>(info.InputShape(i).elements()) * DTypeSize(dtype));
    end = offsets.back() + bytes.back();
  }
  const auto elements = static_cast<int64_t>(end / DTypeSize(dtype));
  info.SetCompute([=, number = info.Attr<int64_t>("number", 0), row = info.Attr<int64_t>("row", -1),
                   broadcasts = kind == "broadcast"](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context));
    char* block = context.Output<char>(0);
    for (int i = 0; i < count; ++i) {
      const char* from = context.Input<char>(i);
      char* to = context.Output<char>(i);
      if (to != block + offsets[i]) return Internal("its outputs do not lie in one block");
      if (to != from) RETURN_IF_ERROR(copy(to, from, bytes[i]));
    }
    Collective collective = broadcasts ? Collective::Broadcast(dtype, block, elements)
                                       : Collective::AllReduce(dtype, block, elements);
    collective.stream = context.device_stream();
    return collectives->Start(number, collective, row);
  });
  return {};
}

Status CreateCollectiveWait(KernelInfo& info) {
  RETURN_IF_ERROR(DecideOutputs(info));
  for (int i = 0; i < info.input_count(); ++i) info.SetInPlace(i, i);
  info.SetCompute([number = info.Attr<int64_t>("number", 0)](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context));
    return collectives->Wait(number);
  });
  return {};
}

Status CreateAgreeToCommit(KernelInfo& info, const CopyBytes& copy) {
  const DType dtype = info.InputDType(0);
  const size_t bytes = static_cast<size_t>(info.InputShape(0).elements()) * DTypeSize(dtype);
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([=](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context));
    RETURN_IF_ERROR(collectives->Agree());
    return copy(context.Output<void>(0), context.Input<void>(0), bytes);
  });
  return {};
}

Status CreateValueIfUsed(KernelInfo& info, const CopyBytes& copy) {
  const DType dtype = info.InputDType(0);
  if (info.InputDType(1) != dtype || info.InputShape(1) != info.InputShape(0))
    return info.Invalid("its first two inputs must have one type");
  const size_t bytes = static_cast<size_t>(info.InputShape(0).elements()) * DTypeSize(dtype);
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([=, row = info.Attr<int64_t>("row", -1)](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(const RunCollectives* const collectives, CollectivesOf(context));
    const int chosen = collectives->used(row) ? 0 : 1;
    return copy(context.Output<void>(0), context.Input<void>(chosen), bytes);
  });
  return {};
}

}  // namespace

void AddCollectives(KernelRegistry& registry, const CopyBytes& copy) {
  registry.Add({.op_type = "CollectiveStart",
                .domain = kCaesuraDomain,
                .types = kFixedTypes,
                .deterministic = false,
                .create = [copy](KernelInfo& info) { return CreateCollectiveStart(info, copy); }});
  registry.Add({.op_type = "CollectiveWait",
                .domain = kCaesuraDomain,
                .types = kFixedTypes,
                .contiguous_inputs = {-1},
                .contiguous_alignment = kBufferAlignment,
                .deterministic = false,
                .create = CreateCollectiveWait});
  registry.Add({.op_type = "AgreeToCommit",
                .domain = kCaesuraDomain,
                .types = kFixedTypes,
                .unread_inputs = {-2},
                .deterministic = false,
                .create = [copy](KernelInfo& info) { return CreateAgreeToCommit(info, copy); }});
  registry.Add({.op_type = "ValueIfUsed",
                .domain = kCaesuraDomain,
                .types = kFixedTypes,
                .unread_inputs = {2},
                .deterministic = false,
                .create = [copy](KernelInfo& info) { return CreateValueIfUsed(info, copy); }});
}

void RegisterCollectives(KernelRegistry& registry) {
  AddCollectives(registry, [](void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return Status();
  });
}

}  // namespace caesura
