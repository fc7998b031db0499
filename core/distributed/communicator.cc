// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/communicator.h"

#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <utility>

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

// `load`, then the words and their checksum.
std::vector<int64_t> WithChecksum(std::span<const int64_t> words, int rank,
                                  std::vector<int64_t> load = {}) {
  load.insert(load.end(), words.begin(), words.end());
  load.push_back(Checksum(words, rank));
  return load;
}

// The words of all ranks, of which each has sent `count` with its load and the checksum.
Result<std::vector<int64_t>> WithoutChecksums(const std::vector<int64_t>& sent, size_t count,
                                              Communicator& communicator, size_t load = 0) {
  const int size = communicator.size();
  const bool is_whole = sent.size() == count * static_cast<size_t>(size);
  std::vector<int64_t> all;
  std::string damaged;
  for (int r = 0; r < size; ++r) {
    const int64_t* first = sent.data() + (is_whole ? count * static_cast<size_t>(r) + load : 0);
    const std::span of_rank(first, is_whole ? count - load - 1 : 0);
    if (!is_whole || of_rank.data()[of_rank.size()] != Checksum(of_rank, r))
      damaged += (damaged.empty() ? "" : ", ") + std::to_string(r);
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  if (damaged.empty()) return all;
  const Status status =
      RankFailure("the words of rank " + damaged + " have not arrived as they were sent (rank " +
                  std::to_string(communicator.rank()) + " of " + communicator.name() + " says so)");
  communicator.Abort(status.message());
  return status;
}

class WordsInFlight : public Gathering {
 public:
  WordsInFlight(Communicator& communicator, std::span<const int64_t> words,
                std::vector<int64_t> load)
      : communicator_(communicator),
        load_(load.size()),
        own_(WithChecksum(words, communicator.rank(), std::move(load))),
        all_(own_.size() * static_cast<size_t>(communicator.size())) {}
  ~WordsInFlight() override {
    if (work_ != nullptr) communicator_.Abort("nobody waits for the words of all ranks");
  }

  Status Start() {
    ASSIGN_OR_RETURN(
        work_, communicator_.Start(Collective::AllGather(DType::kInt64, own_.data(), all_.data(),
                                                         static_cast<int64_t>(own_.size()))));
    return {};
  }

  Result<std::vector<int64_t>> Wait(Clock::time_point deadline) override {
    const Status status = work_->Wait(deadline);
    if (!status.ok()) communicator_.Abort(status.message());  // before the work and its memory end
    work_.reset();
    if (!status.ok()) return status;
    return WithoutChecksums(all_, own_.size(), communicator_, load_);
  }
  std::span<const int64_t> load(int rank) const override {
    return {all_.data() + own_.size() * static_cast<size_t>(rank), load_};
  }

 private:
  Communicator& communicator_;
  const size_t load_;
  const std::vector<int64_t> own_;
  std::vector<int64_t> all_;
  std::unique_ptr<Work> work_;  // null: it has ended
};

// The last word of each rank is the room that it asks for.
class MeetingInFlight : public Gathering {
 public:
  MeetingInFlight(Communicator& communicator, std::unique_ptr<Gathering> words)
      : communicator_(communicator), words_(std::move(words)) {}

  Result<std::vector<int64_t>> Wait(Clock::time_point deadline) override {
    ASSIGN_OR_RETURN(const std::vector<int64_t> all, words_->Wait(deadline));
    const size_t count = all.size() / static_cast<size_t>(communicator_.size());
    std::vector<int64_t> words;
    int64_t room = 0;
    for (size_t at = 0; at < all.size(); at += count) {
      words.insert(words.end(), &all[at], &all[at + count - 1]);
      room = std::max(room, all[at + count - 1]);
    }
    communicator_.room() = std::min(room, Communicator::kMostRoom);
    return words;
  }
  std::span<const int64_t> load(int rank) const override { return words_->load(rank); }

 private:
  Communicator& communicator_;
  const std::unique_ptr<Gathering> words_;
};

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
  const std::vector<int64_t> own = WithChecksum(words, rank());
  const Result<std::vector<int64_t>> sent = GatherWords(own, deadline);
  if (!sent.ok()) {
    Abort(sent.status().message());
    return sent.status();
  }
  return WithoutChecksums(*sent, own.size(), *this);
}

Result<std::unique_ptr<Gathering>> Communicator::StartGather(std::span<const int64_t> words,
                                                             std::vector<int64_t> load) {
  auto gathering = std::make_unique<WordsInFlight>(*this, words, std::move(load));
  RETURN_IF_ERROR(gathering->Start());
  return std::unique_ptr<Gathering>(std::move(gathering));
}

Result<std::unique_ptr<Gathering>> Communicator::StartMeeting(std::span<const int64_t> words,
                                                              std::vector<int64_t> load,
                                                              int64_t asks) {
  assert(std::ssize(load) <= room() && asks >= 0 && asks <= kMostRoom);
  load.resize(static_cast<size_t>(room()));
  std::vector<int64_t> own(words.begin(), words.end());
  own.push_back(asks);
  ASSIGN_OR_RETURN(auto gathering, StartGather(own, std::move(load)));
  return std::unique_ptr<Gathering>(std::make_unique<MeetingInFlight>(*this, std::move(gathering)));
}

Result<std::vector<int64_t>> Communicator::Meet(std::span<const int64_t> words,
                                                Clock::time_point deadline) {
  const Result<std::unique_ptr<Gathering>> meeting = StartMeeting(words);
  if (meeting.ok()) return (*meeting)->Wait(deadline);
  Abort(meeting.status().message());
  return meeting.status();
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
