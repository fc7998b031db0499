// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/perform_collective.h"

#include <cassert>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

using Given = std::span<const Collective>;

template <typename T>
void ReduceInto(ReduceOp op, std::span<const void* const> inputs, int64_t count, T* out) {
  using Wide = std::conditional_t<kFloatTypes.Contains(DTypeOf<T>::value), double, T>;
  const auto input = [&](size_t rank) { return static_cast<const T*>(inputs[rank]); };
  if (op == ReduceOp::kSum && inputs.size() == 2) {
    const T *first = input(0), *second = input(1);
    for (int64_t i = 0; i < count; ++i)
      out[i] = static_cast<T>(
          static_cast<Wide>(static_cast<Wide>(first[i]) + static_cast<Wide>(second[i])));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    Wide value = static_cast<Wide>(input(0)[i]);
    for (size_t r = 1; r < inputs.size(); ++r) {
      const Wide other = static_cast<Wide>(input(r)[i]);
      switch (op) {
        case ReduceOp::kSum: value = static_cast<Wide>(value + other); break;
        case ReduceOp::kMax: value = other > value || other != other ? other : value; break;
        case ReduceOp::kMin: value = other < value || other != other ? other : value; break;
      }
    }
    out[i] = static_cast<T>(value);
  }
}

Status CheckAlike(Given given) {
  const Collective& first = given.front();
  for (size_t r = 1; r < given.size(); ++r) {
    const Collective& other = given[r];
    const bool pair = first.kind == Collective::Kind::kSend;
    const bool alike = (pair || (first.kind == other.kind && first.peer == other.peer)) &&
                       first.dtype == other.dtype && first.count == other.count &&
                       first.op == other.op;
    if (!alike)
      return RankFailure("ranks do different things: " + first.ToString() + " on rank 0, " +
                         other.ToString() + " on rank " + std::to_string(r));
  }
  return {};
}

void Reduce(Given given, size_t part) {
  const Collective& first = given.front();
  const bool scatters = first.kind == Collective::Kind::kReduceScatter;
  const auto parts = scatters ? given.size() : 1;
  std::vector<char> reduced(part * parts);
  std::vector<const void*> inputs;
  for (const Collective& one : given) inputs.push_back(one.input);
  ReduceInOrder(first.dtype, first.op, inputs, first.count * static_cast<int64_t>(parts),
                reduced.data());
  for (size_t r = 0; r < given.size(); ++r)
    std::memcpy(given[r].output, reduced.data() + (scatters ? r * part : 0), part);
}

// all_gather and all_to_all, by a copy of all inputs: outputs may lie on them.
void Move(Given given, size_t part) {
  const size_t size = given.size();
  const bool gathers = given.front().kind == Collective::Kind::kAllGather;
  const size_t bytes = gathers ? part : part * size;
  std::vector<char> inputs(bytes * size);
  for (size_t r = 0; r < size; ++r) std::memcpy(inputs.data() + r * bytes, given[r].input, bytes);
  for (size_t r = 0; r < size; ++r) {
    char* out = static_cast<char*>(given[r].output);
    for (size_t s = 0; s < size; ++s)
      std::memcpy(out + s * part, inputs.data() + s * bytes + (gathers ? 0 : r * part), part);
  }
}

}  // namespace

void ReduceInOrder(DType dtype, ReduceOp op, std::span<const void* const> inputs, int64_t count,
                   void* out) {
  assert(!inputs.empty() && kNumericTypes.Contains(dtype));
  DispatchNumeric(dtype, [&](auto tag) {
    ReduceInto(op, inputs, count, static_cast<typename decltype(tag)::type*>(out));
  });
}

Status PerformCollective(std::span<const Collective> given) {
  using Kind = Collective::Kind;
  assert(!given.empty());
  RETURN_IF_ERROR(CheckAlike(given));
  const Collective& first = given.front();
  const size_t part = static_cast<size_t>(first.count) * DTypeSize(first.dtype);
  if (part == 0) return {};
  switch (first.kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter: Reduce(given, part); break;
    case Kind::kBroadcast:
      for (const Collective& one : given)
        std::memmove(one.output, given[static_cast<size_t>(first.peer)].input, part);
      break;
    case Kind::kSend: std::memcpy(given[1].output, first.input, part); break;
    default: Move(given, part); break;
  }
  return {};
}

}  // namespace caesura
