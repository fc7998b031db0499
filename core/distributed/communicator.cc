// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/communicator.h"

#include <zlib.h>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

// The same words of two ranks have two checksums.
int64_t Checksum(std::span<const int64_t> words, int rank) {
  const uLong seed = crc32(0, reinterpret_cast<const Bytef*>(&rank), sizeof(rank));
  if (words.empty()) return static_cast<int64_t>(seed);
  return static_cast<int64_t>(
      crc32_z(seed, reinterpret_cast<const Bytef*>(words.data()), words.size_bytes()));
}

}  // namespace

std::string Collective::ToString() const {
  static constexpr const char* kKinds[] = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "receive"};
  static constexpr const char* kOps[] = {" (sum)", " (max)", " (min)"};
  const bool reduces = kind == Kind::kAllReduce || kind == Kind::kReduceScatter;
  std::string text = std::string(kKinds[static_cast<int>(kind)]) + " of " + std::to_string(count) +
                     " " + DTypeName(dtype);
  if (reduces) text += kOps[static_cast<int>(op)];
  if (kind == Kind::kBroadcast || kind == Kind::kReceive) text += " from " + std::to_string(peer);
  if (kind == Kind::kSend) text += " to " + std::to_string(peer);
  return text;
}

Status CheckCollective(const Collective& collective, int size) {
  using Kind = Collective::Kind;
  const std::string text = collective.ToString();
  if (collective.count < 0) return InvalidArgument(text + ": the count is below 0");
  if (!kFixedTypes.Contains(collective.dtype))
    return InvalidArgument(text + ": expected elements of a fixed size");
  const bool reduces =
      collective.kind == Kind::kAllReduce || collective.kind == Kind::kReduceScatter;
  if (reduces && !kNumericTypes.Contains(collective.dtype))
    return InvalidArgument(text + ": expected one of " + kNumericTypes.ToString());
  if (collective.peer < 0 || collective.peer >= size)
    return InvalidArgument(text + ": there are " + std::to_string(size) + " ranks");
  const bool has_input = collective.input != nullptr || collective.kind == Kind::kReceive;
  const bool has_output = collective.output != nullptr || collective.kind == Kind::kSend;
  if (collective.count > 0 && (!has_input || !has_output))
    return InvalidArgument(text + ": its memory is missing");
  return {};
}

Result<std::vector<int64_t>> Communicator::Gather(std::span<const int64_t> words,
                                                  Clock::time_point deadline) {
  std::vector<int64_t> own(words.begin(), words.end());
  own.push_back(Checksum(words, rank()));
  ASSIGN_OR_RETURN(const std::vector<int64_t> sent, GatherWords(own, deadline));
  const bool is_whole = sent.size() == own.size() * static_cast<size_t>(size());
  std::vector<int64_t> all;
  std::string damaged;
  for (int r = 0; r < size(); ++r) {
    const int64_t* first = sent.data() + (is_whole ? own.size() * static_cast<size_t>(r) : 0);
    const std::span of_rank(first, is_whole ? words.size() : 0);
    if (!is_whole || first[words.size()] != Checksum(of_rank, r))
      damaged += (damaged.empty() ? "" : ", ") + std::to_string(r);
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  if (damaged.empty()) return all;
  const Status status =
      RankFailure("the words of rank " + damaged + " have not arrived as they were sent (rank " +
                  std::to_string(rank()) + " of " + name() + " says so)");
  Abort(status.message());
  return status;
}

Result<std::vector<int64_t>> Communicator::GatherWords(std::span<const int64_t> words,
                                                       Clock::time_point deadline) {
  std::vector<int64_t> all(words.size() * static_cast<size_t>(size()));
  ASSIGN_OR_RETURN(const std::unique_ptr<Work> work,
                   Start(Collective::AllGather(DType::kInt64, words.data(), all.data(),
                                               static_cast<int64_t>(words.size()))));
  const Status status = work->Wait(deadline);
  if (status.ok()) return all;
  Abort(status.message());  // `all` and `words` end here
  return status;
}

}  // namespace caesura
