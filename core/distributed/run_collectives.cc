// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/run_collectives.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/distributed/perform_collective.h"

namespace caesura {
namespace {

constexpr int64_t kWordBytes = sizeof(int64_t);

// The bytes of the collective's input, among `ranks` ranks.
int64_t BytesOf(const Collective& collective, int ranks) {
  return collective.InputParts(ranks) * collective.count *
         static_cast<int64_t>(DTypeSize(collective.dtype));
}

}  // namespace

RunCollectives::~RunCollectives() {
  const bool has_work = std::any_of(works_.begin(), works_.end(),
                                    [](const auto& work) { return work.second != nullptr; });
  if (has_work) communicator_.Abort("the run has ended before its collectives");
}

Status RunCollectives::Checked(Status status) {
  if (!status.ok()) {
    communicator_.Abort(status.message());
    works_.clear();
  }
  return status;
}

void RunCollectives::Compare(std::span<const int64_t> words, std::span<const int64_t> uses,
                             bool at_once, int64_t load) {
  assert(load >= 0 && load <= Communicator::kMostRoom);
  words_.assign(words.begin(), words.end());
  words_.insert(words_.end(), uses.begin(), uses.end());
  uses_.assign(uses.begin(), uses.end());
  at_once_ = at_once;
  load_ = load;
}

Status RunCollectives::Begin() {
  const bool go_with_load = load_ > 0 && communicator_.room() >= load_;
  return at_once_ && !go_with_load ? StartComparison() : Status();
}

std::vector<int64_t> RunCollectives::OwnWords() const {
  const bool raises_flag = raises_flag_ || (flag_ != nullptr && *flag_);
  return {raises_flag ? 1 : 0, std::bit_cast<int64_t>(number_)};
}

Result<std::unique_ptr<Gathering>> RunCollectives::StartMeeting(std::vector<int64_t> load) {
  std::vector<int64_t> words = words_;
  for (const int64_t word : OwnWords()) words.push_back(word);
  auto meeting = communicator_.StartMeeting(words, std::move(load), load_);
  RETURN_IF_ERROR(Checked(meeting.status()));
  return meeting;
}

Status RunCollectives::StartComparison() {
  ASSIGN_OR_RETURN(comparison_, StartMeeting({}));
  return {};
}

Status RunCollectives::Compared() {
  if (words_.empty()) return {};
  if (comparison_ == nullptr) RETURN_IF_ERROR(StartComparison());
  const Result<std::vector<int64_t>> all = comparison_->Wait(Clock::now() + timeout_);
  comparison_.reset();
  RETURN_IF_ERROR(Checked(all.status()));
  return Take(*all);
}

Status RunCollectives::Take(const std::vector<int64_t>& all) {
  const size_t count = words_.size() + kAgreedWords;
  const size_t uses = words_.empty() ? 0 : uses_.size(), compared = words_.size() - uses;
  flag_raised_ = false;
  sum_ = 0;
  for (size_t first = 0; first < all.size(); first += count) {
    const int64_t* of_rank = &all[first];
    differs_ |= !std::equal(of_rank, of_rank + compared, words_.begin());
    for (size_t i = 0; i < uses; ++i) uses_[i] |= of_rank[compared + i];
    flag_raised_ |= of_rank[words_.size()] != 0;
    sum_ += std::bit_cast<double>(of_rank[words_.size() + 1]);
  }
  words_.clear();
  return differs_ ? InvalidArgument("the ranks' steps differ") : Status();
}

bool RunCollectives::TakesAlong(int64_t number, const Collective& collective, int64_t row) {
  using Kind = Collective::Kind;
  const int64_t words = (BytesOf(collective, size()) + kWordBytes - 1) / kWordBytes;
  const bool fits = collective.kind == Kind::kAllReduce || collective.kind == Kind::kBroadcast ||
                    collective.kind == Kind::kReduceScatter;
  if (!fits || load_ == 0 || words > load_ - loaded_) return false;
  waiting_.push_back({number, collective, row, loaded_});
  loaded_ += words;
  return true;
}

Status RunCollectives::Meet() {
  if (comparison_ != nullptr || communicator_.room() < load_) RETURN_IF_ERROR(Compared());
  if (communicator_.room() < load_)
    return Checked(Internal("ranks with the same step have other loads"));
  std::vector<int64_t> load(static_cast<size_t>(loaded_));
  for (const Waiting& one : waiting_) {
    if (const int64_t bytes = BytesOf(one.collective, size()); bytes > 0)
      std::memcpy(&load[static_cast<size_t>(one.at)], one.collective.input, bytes);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Gathering> meeting, StartMeeting(std::move(load)));
  const Result<std::vector<int64_t>> all = meeting->Wait(Clock::now() + timeout_);
  RETURN_IF_ERROR(Checked(all.status()));
  RETURN_IF_ERROR(Take(*all));
  load_ = 0;  // there is one such meeting in a run
  for (const Waiting& one : std::exchange(waiting_, {})) {
    works_[one.number] = nullptr;
    if (!used(one.row)) continue;
    const Collective& done = one.collective;
    const size_t part = static_cast<size_t>(done.count) * DTypeSize(done.dtype);
    const bool scatters = done.kind == Collective::Kind::kReduceScatter;
    std::vector<const void*> inputs;
    for (int r = 0; r < size(); ++r) {
      inputs.push_back(reinterpret_cast<const char*>(meeting->load(r).data() + one.at) +
                       (scatters ? part * static_cast<size_t>(rank()) : 0));
    }
    if (done.kind != Collective::Kind::kBroadcast)
      ReduceInOrder(done.dtype, done.op, inputs, done.count, done.output);
    else if (part > 0) std::memcpy(done.output, inputs[static_cast<size_t>(done.peer)], part);
  }
  agreed_ = has_met_ = true;
  return {};
}

Status RunCollectives::Start(int64_t number, const Collective& collective, int64_t row) {
  if (TakesAlong(number, collective, row)) return {};
  if (std::exchange(has_met_, false)) agreed_ = false;
  RETURN_IF_ERROR(Compared());
  if (!used(row)) {
    works_[number] = nullptr;
    return {};
  }
  Result<std::unique_ptr<Work>> work = communicator_.Start(collective);
  if (!work.ok()) return Checked(work.status());
  works_[number] = *std::move(work);
  return {};
}

Status RunCollectives::Wait(int64_t number) {
  const bool waits = std::any_of(waiting_.begin(), waiting_.end(),
                                 [=](const Waiting& one) { return one.number == number; });
  if (waits) RETURN_IF_ERROR(Meet());
  const auto found = works_.find(number);
  if (found == works_.end())
    return Internal("no collective " + std::to_string(number) + " is in flight");
  const std::unique_ptr<Work> work = std::move(found->second);
  works_.erase(found);
  if (work == nullptr) return {};
  return Checked(work->Wait(Clock::now() + timeout_));
}

Status RunCollectives::Run(const Collective& collective) {
  if (std::exchange(has_met_, false)) agreed_ = false;
  RETURN_IF_ERROR(Compared());
  const Result<std::unique_ptr<Work>> work = communicator_.Start(collective);
  return Checked(work.ok() ? (*work)->Wait(Clock::now() + timeout_) : work.status());
}

Status RunCollectives::Agree() {
  if (std::exchange(has_met_, false)) return {};
  RETURN_IF_ERROR(Compared());
  const Result<std::vector<int64_t>> all =
      communicator_.Gather(OwnWords(), Clock::now() + timeout_);
  RETURN_IF_ERROR(Checked(all.status()));
  RETURN_IF_ERROR(Take(*all));
  agreed_ = true;
  return {};
}

}  // namespace caesura
