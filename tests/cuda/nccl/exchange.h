// SPDX-License-Identifier: Apache-2.0
// The exchange between the ranks of one stand-in communicator.
#pragma once
#include <nccl.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
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
std::size_t SizeOf(ncclDataType_t type);  // 0: no such type
std::size_t InputBytes(const Part& part, int ranks);
std::size_t OutputBytes(const Part& part, int ranks);
/// The part of a call that must be alike on all ranks.
std::string Describe(const Part& part);

using Bytes = std::vector<std::byte>;
/// The result of a collective on one rank. inputs: those of all ranks, in their order.
Bytes Combine(const Part& part, int rank, const std::vector<Bytes>& inputs);
/// A fault of the program under test: ranks do different things.
void ReportDifference(int rank, const std::string& described, const std::string& of_another);

/// The ranks of one communicator. Join and HasAll: one thread at a time. The others: under the
/// driver's lock.
class Group {
 public:
  explicit Group(int size) : ranks(size) {}
  virtual ~Group() = default;
  const int ranks;

  virtual void Join(int rank) = 0;
  virtual bool HasAll() = 0;

  /// This rank's stream has come to the part: its input is copied. If it differs from what other
  /// ranks do, that is reported, and nothing becomes whole any more.
  virtual void Arrive(int rank, const Part& part) = 0;
  /// All that the part needs of the others is there.
  virtual bool IsWhole(int rank, const Part& part) = 0;
  /// Writes the output; REQUIRES: IsWhole.
  virtual void Finish(int rank, const Part& part) = 0;
};

/// Ranks that are threads of this process.
std::shared_ptr<Group> GroupOfThreads(int ranks);
/// Ranks in any processes, which exchange files in this folder. It is made if it is not there, and
/// stays.
std::shared_ptr<Group> GroupInFolder(int ranks, const std::string& folder);

}  // namespace standin_nccl
