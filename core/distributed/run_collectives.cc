// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/run_collectives.h"

#include <bit>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"

namespace caesura {

RunCollectives::~RunCollectives() {
  if (!works_.empty()) communicator_.Abort("the run has ended before its collectives");
}

Status RunCollectives::Checked(Status status) {
  if (!status.ok()) {
    communicator_.Abort(status.message());
    works_.clear();
  }
  return status;
}

Status RunCollectives::Start(int64_t number, const Collective& collective) {
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
  return Checked(work->Wait(Clock::now() + timeout_));
}

Status RunCollectives::Run(const Collective& collective) {
  const Result<std::unique_ptr<Work>> work = communicator_.Start(collective);
  return Checked(work.ok() ? (*work)->Wait(Clock::now() + timeout_) : work.status());
}

Status RunCollectives::Agree() {
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
