// SPDX-License-Identifier: Apache-2.0
#include "nccl/exchange.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cstring>
#include "standin.h"

namespace standin_nccl {
namespace {

// By way of float, in which the real one adds half types.
template <typename T>
double Widen(T value) {
  return static_cast<double>(value);
}
template <>
double Widen(__half value) {
  return __half2float(value);
}
template <>
double Widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <typename T>
T Narrow(double value) {
  return static_cast<T>(value);
}
template <>
__half Narrow(double value) {
  return __float2half(static_cast<float>(value));
}
template <>
__nv_bfloat16 Narrow(double value) {
  return __float2bfloat16(static_cast<float>(value));
}

template <typename T>
T Reduce(T a, T b, ncclRedOp_t op) {
  if (op == ncclSum) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // sums wrap
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return Narrow<T>(Widen(a) + Widen(b));
    }
  }
  const bool takes_b = op == ncclMax ? Widen(b) > Widen(a) : Widen(b) < Widen(a);
  return takes_b || Widen(b) != Widen(b) ? b : a;
}

template <typename T>
void ReduceInto(std::vector<std::byte>& sums, const std::vector<std::byte>& more, ncclRedOp_t op) {
  for (std::size_t at = 0; at + sizeof(T) <= sums.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, &sums[at], sizeof(T));
    std::memcpy(&b, &more[at], sizeof(T));
    a = Reduce(a, b, op);
    std::memcpy(&sums[at], &a, sizeof(T));
  }
}

void ReduceInto(std::vector<std::byte>& sums, const std::vector<std::byte>& more,
                ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8: return ReduceInto<std::int8_t>(sums, more, op);
    case ncclUint8: return ReduceInto<std::uint8_t>(sums, more, op);
    case ncclInt32: return ReduceInto<std::int32_t>(sums, more, op);
    case ncclUint32: return ReduceInto<std::uint32_t>(sums, more, op);
    case ncclInt64: return ReduceInto<std::int64_t>(sums, more, op);
    case ncclUint64: return ReduceInto<std::uint64_t>(sums, more, op);
    case ncclFloat16: return ReduceInto<__half>(sums, more, op);
    case ncclFloat64: return ReduceInto<double>(sums, more, op);
    case ncclBfloat16: return ReduceInto<__nv_bfloat16>(sums, more, op);
    default: return ReduceInto<float>(sums, more, op);
  }
}

}  // namespace

bool IsPairwise(const Part& part) {
  return part.kind == Part::Kind::kSend || part.kind == Part::Kind::kReceive;
}

std::size_t Bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

std::size_t InputBytes(const Part& part, int ranks) {
  const std::size_t bytes = part.count * Bytes(part.type);
  if (part.kind == Part::Kind::kReceive) return 0;
  return part.kind == Part::Kind::kReduceScatter ? bytes * static_cast<std::size_t>(ranks) : bytes;
}

std::size_t OutputBytes(const Part& part, int ranks) {
  const std::size_t bytes = part.count * Bytes(part.type);
  if (part.kind == Part::Kind::kSend) return 0;
  return part.kind == Part::Kind::kAllGather ? bytes * static_cast<std::size_t>(ranks) : bytes;
}

std::string Describe(const Part& part) {
  static constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                           "ncclBroadcast"};
  std::string text = std::to_string(part.count) + " elements of type " + std::to_string(part.type);
  if (IsPairwise(part)) return text;
  text = kNames[static_cast<int>(part.kind)] + std::string(" of ") + text;
  if (part.kind == Part::Kind::kBroadcast) return text + " from " + std::to_string(part.peer);
  return part.kind == Part::Kind::kAllGather ? text : text + ", op " + std::to_string(part.op);
}

Group::Key Group::KeyOf(int rank, const Part& part) {
  const bool sends = part.kind == Part::Kind::kSend;
  return {sends ? std::pair(rank, part.peer) : std::pair(part.peer, rank), part.number};
}

void Group::Arrive(int rank, const Part& part) {
  const auto* begin = static_cast<const std::byte*>(part.input);
  const std::size_t bytes = InputBytes(part, ranks);
  std::string* described = nullptr;
  if (IsPairwise(part)) {
    Message& message = messages_[KeyOf(rank, part)];
    described = &message.described;
    if (part.kind == Part::Kind::kSend) {
      message.data.assign(begin, begin + bytes);
      message.sent = true;
    } else {
      message.awaited = true;
    }
  } else {
    Meeting& meeting = meetings_[part.number];
    described = &meeting.described;
    meeting.inputs.emplace(rank, Bytes(begin, begin + bytes));
  }
  if (described->empty()) *described = Describe(part);
  if (*described != Describe(part)) {
    const std::string text = "ranks of a communicator differ: " + Describe(part) + " on rank " +
                             std::to_string(rank) + ", " + *described + " on another";
    standin_add_report(text.c_str());
    differs_ = true;
  }
}

bool Group::IsWhole(int rank, const Part& part) const {
  if (differs_) return false;
  if (IsPairwise(part)) {
    const Message& message = messages_.at(KeyOf(rank, part));
    return message.sent && message.awaited;
  }
  return meetings_.at(part.number).inputs.size() == static_cast<std::size_t>(ranks);
}

void Group::Finish(int rank, const Part& part) {
  if (part.kind == Part::Kind::kSend) return;
  if (part.kind == Part::Kind::kReceive) {
    const Bytes& data = messages_.at(KeyOf(rank, part)).data;
    std::copy(data.begin(), data.end(), static_cast<std::byte*>(part.output));
    return;
  }
  Meeting& meeting = meetings_.at(part.number);
  Bytes result;
  if (part.kind == Part::Kind::kBroadcast) {
    result = meeting.inputs.at(part.peer);
  } else if (part.kind == Part::Kind::kAllGather) {
    for (const auto& [from, data] : meeting.inputs) {
      result.insert(result.end(), data.begin(), data.end());
    }
  } else {
    result = meeting.inputs.at(0);
    for (int from = 1; from < ranks; ++from) {
      ReduceInto(result, meeting.inputs.at(from), part.type, part.op);
    }
  }
  const bool scatters = part.kind == Part::Kind::kReduceScatter;
  const std::size_t bytes = OutputBytes(part, ranks);
  const auto first = result.begin() + static_cast<std::ptrdiff_t>(
                                          scatters ? bytes * static_cast<std::size_t>(rank) : 0);
  std::copy(first, first + static_cast<std::ptrdiff_t>(bytes),
            static_cast<std::byte*>(part.output));
  if (++meeting.finished == ranks) meetings_.erase(part.number);
}

}  // namespace standin_nccl
