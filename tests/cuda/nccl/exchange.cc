// SPDX-License-Identifier: Apache-2.0
#include "nccl/exchange.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
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
void ReduceInto(Bytes& sums, const Bytes& more, ncclRedOp_t op) {
  for (std::size_t at = 0; at + sizeof(T) <= sums.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, &sums[at], sizeof(T));
    std::memcpy(&b, &more[at], sizeof(T));
    a = Reduce(a, b, op);
    std::memcpy(&sums[at], &a, sizeof(T));
  }
}

void ReduceInto(Bytes& sums, const Bytes& more, ncclDataType_t type, ncclRedOp_t op) {
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

std::size_t SizeOf(ncclDataType_t type) {
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
  const std::size_t bytes = part.count * SizeOf(part.type);
  if (part.kind == Part::Kind::kReceive) return 0;
  return part.kind == Part::Kind::kReduceScatter ? bytes * static_cast<std::size_t>(ranks) : bytes;
}

std::size_t OutputBytes(const Part& part, int ranks) {
  const std::size_t bytes = part.count * SizeOf(part.type);
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

Bytes Combine(const Part& part, int rank, const std::vector<Bytes>& inputs) {
  Bytes result;
  if (part.kind == Part::Kind::kBroadcast) return inputs[static_cast<std::size_t>(part.peer)];
  if (part.kind == Part::Kind::kAllGather) {
    for (const Bytes& input : inputs) result.insert(result.end(), input.begin(), input.end());
    return result;
  }
  result = inputs[0];
  for (std::size_t from = 1; from < inputs.size(); ++from) {
    ReduceInto(result, inputs[from], part.type, part.op);
  }
  if (part.kind == Part::Kind::kAllReduce) return result;
  const std::size_t bytes = OutputBytes(part, static_cast<int>(inputs.size()));
  const auto first = result.begin() + static_cast<std::ptrdiff_t>(bytes) * rank;
  return {first, first + static_cast<std::ptrdiff_t>(bytes)};
}

void ReportDifference(int rank, const std::string& described, const std::string& of_another) {
  const std::string text = "ranks of a communicator differ: " + described + " on rank " +
                           std::to_string(rank) + ", " + of_another + " on another";
  standin_add_report(text.c_str());
}

namespace {

class ThreadGroup : public Group {
 public:
  using Group::Group;

  void Join(int) override { ++joined_; }
  bool HasAll() override { return joined_ >= ranks; }

  void Arrive(int rank, const Part& part) override {
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
      meeting.inputs.resize(static_cast<std::size_t>(ranks));
      meeting.inputs[static_cast<std::size_t>(rank)] = Bytes(begin, begin + bytes);
      ++meeting.arrived;
    }
    if (described->empty()) *described = Describe(part);
    if (*described == Describe(part)) return;
    ReportDifference(rank, Describe(part), *described);
    differs_ = true;
  }

  bool IsWhole(int rank, const Part& part) override {
    if (differs_) return false;
    if (!IsPairwise(part)) return meetings_.at(part.number).arrived == ranks;
    const Message& message = messages_.at(KeyOf(rank, part));
    return message.sent && message.awaited;
  }

  void Finish(int rank, const Part& part) override {
    if (part.kind == Part::Kind::kSend) return;
    auto* const output = static_cast<std::byte*>(part.output);
    if (part.kind == Part::Kind::kReceive) {
      const Bytes& data = messages_.at(KeyOf(rank, part)).data;
      std::copy(data.begin(), data.end(), output);
      return;
    }
    Meeting& meeting = meetings_.at(part.number);
    const Bytes result = Combine(part, rank, meeting.inputs);
    std::copy(result.begin(), result.end(), output);
    if (++meeting.finished == ranks) meetings_.erase(part.number);
  }

 private:
  struct Meeting {
    std::vector<Bytes> inputs;
    std::string described;
    int arrived = 0, finished = 0;
  };
  /// By sender, receiver, number: what was sent; whether the receiver's stream has come to it.
  struct Message {
    bool sent = false, awaited = false;
    Bytes data;
    std::string described;
  };
  using Key = std::pair<std::pair<int, int>, std::uint64_t>;
  static Key KeyOf(int rank, const Part& part) {
    const bool sends = part.kind == Part::Kind::kSend;
    return {sends ? std::pair(rank, part.peer) : std::pair(part.peer, rank), part.number};
  }

  int joined_ = 0;
  bool differs_ = false;
  std::map<std::uint64_t, Meeting> meetings_;
  std::map<Key, Message> messages_;
};

}  // namespace

std::shared_ptr<Group> GroupOfThreads(int ranks) { return std::make_shared<ThreadGroup>(ranks); }

}  // namespace standin_nccl
