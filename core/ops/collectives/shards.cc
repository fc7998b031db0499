// SPDX-License-Identifier: Apache-2.0
#include "core/ops/collectives/shards.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/distributed/bucket_layout.h"
#include "core/distributed/run_collectives.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/collectives/collectives.h"
#include "core/tensor/tensor.h"

namespace caesura {
namespace {

// The bucket of the inputs [first, end).
Result<BucketLayout> LayoutOf(const KernelInfo& info, int first) {
  std::vector<int64_t> elements;
  for (int i = first; i < info.input_count(); ++i) {
    if (!info.HasInput(i) || !info.input(i).is_tensor || info.InputDType(i) != info.InputDType(0))
      return info.Invalid("its tensors must have one dtype");
    elements.push_back(info.InputShape(i).elements());
  }
  const auto ranks = info.Attr<int64_t>("ranks", 0);
  if (ranks < 1 || elements.empty())
    return info.Invalid("needs a tensor and an attribute ranks of 1 or more");
  return BucketLayout(std::move(elements), info.InputDType(0), static_cast<int>(ranks));
}

// Puts the inputs into the block, with zeros between them.
Status FillBlock(KernelContext& context, const BucketLayout& layout, size_t size) {
  const int count = layout.tensors();
  char* block = context.Output<char>(1);
  for (int i = 0; i < count; ++i) {
    char* to = block + size * layout.offset(i);
    const size_t bytes = size * layout.elements(i);
    if (to != context.Output<char>(1 + i)) return Internal("its outputs do not lie in one block");
    if (to != context.Input<char>(i)) std::memcpy(to, context.Input<char>(i), bytes);
    const int64_t next = i + 1 < count ? layout.offset(i + 1) : layout.padding_offset();
    std::memset(to + bytes, 0, size * next - size * layout.offset(i) - bytes);
  }
  char* padding = block + size * layout.padding_offset();
  if (padding != context.Output<char>(1 + count))
    return Internal("its padding does not lie in the block");
  std::memset(padding, 0, size * (layout.all() - layout.padding_offset()));
  return {};
}

// Outputs: the rank's part (`ordered`: room for the part as each rank has it); then the tensors and
// the padding, in one block, which the op that waits asks for.
Status CreateBlockStart(KernelInfo& info, bool ordered) {
  ASSIGN_OR_RETURN(const BucketLayout layout, LayoutOf(info, 0));
  const DType dtype = info.InputDType(0);
  const int count = layout.tensors();
  info.SetOutput(0, dtype, Shape{ordered ? layout.all() : layout.part()});
  for (int i = 0; i < count; ++i) {
    info.SetOutput(1 + i, dtype, info.InputShape(i));
    info.SetMayReuse(i, 1 + i);
  }
  info.SetOutput(1 + count, dtype, Shape{layout.all() - layout.padding_offset()});
  info.SetCompute([=, number = info.Attr<int64_t>("number", 0),
                   row = info.Attr<int64_t>("row", -1)](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context, layout.ranks()));
    RETURN_IF_ERROR(FillBlock(context, layout, DTypeSize(dtype)));
    void *block = context.Output<void>(1), *parts = context.Output<void>(0);
    RETURN_IF_ERROR(
        collectives->Start(number,
                           ordered ? Collective::AllToAll(dtype, block, parts, layout.part())
                                   : Collective::ReduceScatter(dtype, block, parts, layout.part()),
                           row));
    if (!collectives->used(row)) std::memset(parts, 0, DTypeSize(dtype) * layout.part());
    return {};
  });
  return {};
}

Status CreateReduceScatterWait(KernelInfo& info) {
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  info.SetInPlace(0, 0);
  const auto ranks = static_cast<int>(info.Attr<int64_t>("ranks", 0));
  info.SetCompute([=, number = info.Attr<int64_t>("number", 0)](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context, ranks));
    return collectives->Wait(number);
  });
  return {};
}

// Sums `count` parts of `size` elements into the first one: neighbours first, then the sums of
// neighbours, and so on.
template <typename T>
void SumInPairs(T* parts, int count, int64_t size) {
  for (int stride = 1; stride < count; stride *= 2) {
    for (int p = 0; p + stride < count; p += 2 * stride) {
      T* to = parts + p * size;
      const T* from = parts + (p + stride) * size;
      for (int64_t i = 0; i < size; ++i) {
        to[i] = static_cast<T>(static_cast<Accumulator<T>>(to[i]) +
                               static_cast<Accumulator<T>>(from[i]));
      }
    }
  }
}

// Inputs: the rank's part as each rank has it, the block, which becomes the sums. The ranks give
// each other their parts of them here. Outputs: the tensors, and the parts as they are left.
Status CreateOrderedSumWait(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  const auto ranks = static_cast<int>(info.Attr<int64_t>("ranks", 0));
  if (ranks < 1) return info.Invalid("needs an attribute ranks of 1 or more");
  const int64_t part = info.InputShape(0).elements() / ranks;
  const int count = info.input_count() - 2;
  for (int i = 0; i < count; ++i) {
    info.SetOutput(i, dtype, info.InputShape(1 + i));
    info.SetInPlace(1 + i, i);
  }
  info.SetOutput(count, dtype, info.InputShape(0));
  info.SetInPlace(0, count);
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute(
        [=, number = info.Attr<int64_t>("number", 0)](KernelContext& context) -> Status {
          ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context, ranks));
          RETURN_IF_ERROR(collectives->Wait(number));
          T* parts = context.Output<T>(count);
          SumInPairs(parts, ranks, part);
          RETURN_IF_ERROR(collectives->Start(
              number, Collective::AllGather(dtype, parts, context.Output<void>(0), part)));
          return collectives->Wait(number);
        });
  });
  return {};
}

Status CreateOwnPart(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BucketLayout layout, LayoutOf(info, 0));
  const DType dtype = info.InputDType(0);
  std::vector<std::vector<BucketLayout::Piece>> pieces;
  for (int r = 0; r < layout.ranks(); ++r) pieces.push_back(layout.Pieces(r));
  info.SetOutput(0, dtype, Shape{layout.part()});
  info.SetCompute([=](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(const RunCollectives* const collectives,
                     CollectivesOf(context, layout.ranks()));
    const size_t size = DTypeSize(dtype);
    char* part = context.Output<char>(0);
    std::memset(part, 0, size * layout.part());
    for (const BucketLayout::Piece& piece : pieces[collectives->rank()]) {
      std::memcpy(part + size * piece.at, context.Input<char>(piece.tensor) + size * piece.first,
                  size * (piece.last - piece.first));
    }
    return {};
  });
  return {};
}

Status CreateAllGatherStart(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  const int64_t part = info.InputShape(0).elements();
  const auto ranks = static_cast<int>(info.Attr<int64_t>("ranks", 0));
  if (ranks < 1) return info.Invalid("needs an attribute ranks of 1 or more");
  info.SetOutput(0, dtype, Shape{part * ranks});
  info.SetCompute([=, number = info.Attr<int64_t>("number", 0),
                   row = info.Attr<int64_t>("row", -1)](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context, ranks));
    return collectives->Start(
        number, Collective::AllGather(dtype, context.Input<void>(0), context.Output<void>(0), part),
        row);
  });
  return {};
}

// Inputs: all parts, the rank's own, the tensors, which take their elements.
Status CreateAllGatherWait(KernelInfo& info) {
  constexpr int kFirst = 2;
  ASSIGN_OR_RETURN(const BucketLayout layout, LayoutOf(info, kFirst));
  const DType dtype = info.InputDType(0);
  if (info.InputShape(0).elements() != layout.all())
    return info.Invalid("what it waits for must have " + std::to_string(layout.all()) +
                        " elements");
  for (int i = 0; i < layout.tensors(); ++i) {
    info.SetOutput(i, dtype, info.InputShape(kFirst + i));
    info.SetInPlace(kFirst + i, i);
  }
  info.SetCompute([=, number = info.Attr<int64_t>("number", 0),
                   row = info.Attr<int64_t>("row", -1)](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context, layout.ranks()));
    RETURN_IF_ERROR(collectives->Wait(number));
    if (!collectives->used(row)) return {};
    const size_t size = DTypeSize(dtype);
    for (int i = 0; i < layout.tensors(); ++i) {
      std::memcpy(context.Output<char>(i), context.Input<char>(0) + size * layout.offset(i),
                  size * layout.elements(i));
    }
    return {};
  });
  return {};
}

}  // namespace

void RegisterShards(KernelRegistry& registry) {
  const auto add = [&](const char* op_type, KernelFactory create,
                       std::vector<int> contiguous_inputs = {}) {
    registry.Add({.op_type = op_type,
                  .domain = kCaesuraDomain,
                  .types = kFloatTypes,
                  .contiguous_inputs = std::move(contiguous_inputs),
                  .contiguous_alignment = kBufferAlignment,
                  .deterministic = false,
                  .create = create});
  };
  add("ReduceScatterStart",
      [](KernelInfo& info) { return CreateBlockStart(info, /*ordered=*/false); });
  add("ReduceScatterWait", CreateReduceScatterWait, {-2});
  add("OrderedSumStart", [](KernelInfo& info) { return CreateBlockStart(info, /*ordered=*/true); });
  add("OrderedSumWait", CreateOrderedSumWait, {-2});
  add("OwnPart", CreateOwnPart);
  add("AllGatherStart", CreateAllGatherStart);
  add("AllGatherWait", CreateAllGatherWait);
}

}  // namespace caesura
