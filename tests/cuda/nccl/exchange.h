// SPDX-License-Identifier: Apache-2.0
// The exchange between the ranks of one stand-in communicator.
#pragma once
#include <nccl.h>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace standin_nccl {

/// One rank's part in a collective, or one end of a send.
struct Part {
  enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };
  Kind kind = Kind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // as in the call
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;
  std::uint64_t number = 0;  // of this rank's collectives; of this pair's sends or receives
};
bool IsPairwise(const Part& part);
std::size_t Bytes(ncclDataType_t type);  // 0: no such type
std::size_t InputBytes(const Part& part, int ranks);
std::size_t OutputBytes(const Part& part, int ranks);
/// The part of a call that must be alike on all ranks.
std::string Describe(const Part& part);

/// Methods: under the driver's lock.
struct Group {
  int ranks = 0;
  int joined = 0;
  using Bytes = std::vector<std::byte>;

  /// This rank's stream has come to the part: its input is copied. If it differs from what other
  /// ranks do, that is reported, and nothing becomes whole any more.
  void Arrive(int rank, const Part& part);
  /// All that the part needs of the others is there.
  bool IsWhole(int rank, const Part& part) const;
  /// Writes the output; REQUIRES: IsWhole.
  void Finish(int rank, const Part& part);

 private:
  bool differs_ = false;
  struct Meeting {
    std::map<int, Bytes> inputs;
    std::string described;
    int finished = 0;
  };
  std::map<std::uint64_t, Meeting> meetings_;
  /// By sender, receiver, number: what was sent; whether the receiver's stream has come to it.
  struct Message {
    bool sent = false, awaited = false;
    Bytes data;
    std::string described;
  };
  using Key = std::pair<std::pair<int, int>, std::uint64_t>;
  static Key KeyOf(int rank, const Part& part);
  std::map<Key, Message> messages_;
};

}  // namespace standin_nccl
