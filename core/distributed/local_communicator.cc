// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/communicator.h"

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/status_macros.h"
#include "core/base/wait.h"
#include "core/distributed/perform_collective.h"

namespace caesura {
namespace {

using Kind = Collective::Kind;

// One collective of a group: what each rank brings, and what became of it.
struct Meeting {
  std::vector<std::optional<Collective>> given;  // by rank
  int arrived = 0;
  bool done = false;
  Status status;
};

// All ranks share it. A thread does the work of meetings that are complete.
class Group {
 public:
  explicit Group(int size) : size_(size), next_(size, 0), worker_([this] { Work(); }) {}
  ~Group() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  int size() const { return size_; }

  Result<std::shared_ptr<Meeting>> Join(int rank, const Collective& collective) {
    RETURN_IF_ERROR(CheckCollective(collective, size_));
    const std::lock_guard lock(mutex_);
    if (failure_) return RankFailure(*failure_);
    std::shared_ptr<Meeting> meeting;
    if (collective.kind == Kind::kSend || collective.kind == Kind::kReceive) {
      meeting = JoinPair(rank, collective);
    } else {
      const int64_t at = next_[rank]++ - first_;
      while (static_cast<int64_t>(meetings_.size()) <= at) meetings_.push_back(NewMeeting(size_));
      meeting = meetings_[at];
      meeting->given[rank] = collective;
      ++meeting->arrived;
      while (!meetings_.empty() && meetings_.front()->arrived == size_) {
        ready_.push_back(std::move(meetings_.front()));
        meetings_.pop_front();
        ++first_;
      }
    }
    changed_.notify_all();
    return meeting;
  }

  Status Wait(Meeting& meeting, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const auto over = [&] {
      const bool complete = meeting.arrived == static_cast<int>(meeting.given.size());
      return meeting.done || (failure_ && (aborted_ || !complete));
    };
    if (!changed_.wait_until(lock, deadline, over)) {
      std::string missing;
      for (size_t r = 0; r < meeting.given.size(); ++r) {
        if (!meeting.given[r]) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
      }
      const auto some =
          std::find_if(meeting.given.begin(), meeting.given.end(), [](auto& g) { return !!g; });
      return RankFailure((*some)->ToString() + ": the time is over, and rank " + missing +
                         " has not come to it");
    }
    return meeting.done ? meeting.status : RankFailure(*failure_);
  }

  void Abort(int rank, const std::string& why) {
    std::unique_lock lock(mutex_);
    if (!failure_) failure_ = "rank " + std::to_string(rank) + " has given up: " + why;
    aborted_ = true;
    ready_.clear();
    changed_.notify_all();
    WaitUntil(changed_, lock, [this] { return !working_; });
  }

  void Leave(int rank) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = "rank " + std::to_string(rank) + " has ended";
    changed_.notify_all();
  }

 private:
  static std::shared_ptr<Meeting> NewMeeting(int parts) {
    auto meeting = std::make_shared<Meeting>();
    meeting->given.resize(parts);
    return meeting;
  }

  // Place 0 is the sender's, place 1 the receiver's.
  std::shared_ptr<Meeting> JoinPair(int rank, const Collective& collective) {
    const bool sends = collective.kind == Kind::kSend;
    const auto key =
        sends ? std::make_pair(rank, collective.peer) : std::make_pair(collective.peer, rank);
    std::deque<std::shared_ptr<Meeting>>& waiting = pairs_[key];
    const int place = sends ? 0 : 1;
    auto found = std::find_if(waiting.begin(), waiting.end(),
                              [&](const auto& meeting) { return !meeting->given[place]; });
    if (found == waiting.end()) found = waiting.insert(waiting.end(), NewMeeting(2));
    const std::shared_ptr<Meeting> meeting = *found;
    meeting->given[place] = collective;
    if (++meeting->arrived == 2) {
      ready_.push_back(meeting);
      waiting.erase(found);
    }
    return meeting;
  }

  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      WaitUntil(changed_, lock, [this] { return ended_ || !ready_.empty(); });
      if (ended_) return;
      const std::shared_ptr<Meeting> meeting = std::move(ready_.front());
      ready_.pop_front();
      working_ = true;
      lock.unlock();
      std::vector<Collective> given;
      for (const std::optional<Collective>& one : meeting->given) given.push_back(*one);
      Status status = PerformCollective(given);
      lock.lock();
      meeting->status = std::move(status);
      meeting->done = true;
      working_ = false;
      changed_.notify_all();
    }
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> next_;                      // collectives that each rank has started
  int64_t first_ = 0;                              // the number of meetings_.front()
  std::deque<std::shared_ptr<Meeting>> meetings_;  // that wait for ranks
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Meeting>>> pairs_;  // likewise
  std::deque<std::shared_ptr<Meeting>> ready_;
  std::optional<std::string> failure_;  // no collective begins any more
  bool aborted_ = false;                // and none ends
  bool working_ = false, ended_ = false;
  std::thread worker_;
};

class LocalWork : public Work {
 public:
  LocalWork(std::shared_ptr<Group> group, std::shared_ptr<Meeting> meeting)
      : group_(std::move(group)), meeting_(std::move(meeting)) {}
  Status Wait(Clock::time_point deadline) override { return group_->Wait(*meeting_, deadline); }

 private:
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Meeting> meeting_;
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~LocalCommunicator() override { group_->Leave(rank_); }
  std::string name() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  Result<std::unique_ptr<Work>> Start(const Collective& collective) override {
    ASSIGN_OR_RETURN(std::shared_ptr<Meeting> meeting, group_->Join(rank_, collective));
    return std::unique_ptr<Work>(std::make_unique<LocalWork>(group_, std::move(meeting)));
  }
  void Abort(const std::string& why) override { group_->Abort(rank_, why); }

 private:
  const std::shared_ptr<Group> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> LocalCommunicators(int size) {
  assert(size >= 1);
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> all;
  for (int r = 0; r < size; ++r) all.push_back(std::make_unique<LocalCommunicator>(group, r));
  return all;
}

}  // namespace caesura
