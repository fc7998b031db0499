// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/run_collectives.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"

namespace caesura {

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
                             bool at_once) {
  words_.assign(words.begin(), words.end());
  words_.insert(words_.end(), uses.begin(), uses.end());
  uses_.assign(uses.begin(), uses.end());
  at_once_ = at_once;
}

Status RunCollectives::Begin() { return at_once_ ? StartComparison() : Status(); }

Status RunCollectives::StartComparison() {
  Result<std::unique_ptr<Gathering>> gathering = communicator_.StartGather(words_);
  if (!gathering.ok()) return Checked(gathering.status());
  comparison_ = *std::move(gathering);
  return {};
}

Status RunCollectives::Compared() {
  if (words_.empty()) return {};
  if (comparison_ == nullptr) RETURN_IF_ERROR(StartComparison());
  const Result<std::vector<int64_t>> all = comparison_->Wait(Clock::now() + timeout_);
  comparison_.reset();
  RETURN_IF_ERROR(Checked(all.status()));
  const size_t compared = words_.size() - uses_.size();
  for (size_t i = 0; i < all->size(); ++i) {
    const size_t at = i % words_.size();
    if (at < compared) differs_ |= (*all)[i] != words_[at];
    else uses_[at - compared] |= (*all)[i];
  }
  words_.clear();
  return differs_ ? InvalidArgument("the ranks' steps differ") : Status();
}

Status RunCollectives::Start(int64_t number, const Collective& collective, int64_t row) {
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
  const auto found = works_.find(number);
  if (found == works_.end())
    return Internal("no collective " + std::to_string(number) + " is in flight");
  const std::unique_ptr<Work> work = std::move(found->second);
  works_.erase(found);
  if (work == nullptr) return {};
  return Checked(work->Wait(Clock::now() + timeout_));
}

Status RunCollectives::Run(const Collective& collective) {
  RETURN_IF_ERROR(Compared());
  const Result<std::unique_ptr<Work>> work = communicator_.Start(collective);
  return Checked(work.ok() ? (*work)->Wait(Clock::now() + timeout_) : work.status());
}

Status RunCollectives::Agree() {
  RETURN_IF_ERROR(Compared());
  const bool raises_flag = raises_flag_ || (flag_ != nullptr && *flag_);
  const int64_t own[] = {raises_flag ? 1 : 0, std::bit_cast<int64_t>(number_)};
  const Result<std::vector<int64_t>> all = communicator_.Gather(own, Clock::now() + timeout_);
  RETURN_IF_ERROR(Checked(all.status()));
  agreed_ = true;
  flag_raised_ = false;
  sum_ = 0;
  for (size_t r = 0; r < all->size(); r += std::size(own)) {
    flag_raised_ |= (*all)[r] != 0;
    sum_ += std::bit_cast<double>((*all)[r + 1]);
  }
  return {};
}

}  // namespace caesura
