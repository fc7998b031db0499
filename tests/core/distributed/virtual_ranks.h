// SPDX-License-Identifier: Apache-2.0
// VirtualRanks: ranks as threads of one process in virtual time. One thread runs at a time, until
// it calls its communicator; then the next one in virtual time goes on. Delays, order, lost
// messages and the end of a rank follow from one seed, so that a run that has failed happens again.
#ifndef CAESURA_TESTS_CORE_DISTRIBUTED_VIRTUAL_RANKS_H_
#define CAESURA_TESTS_CORE_DISTRIBUTED_VIRTUAL_RANKS_H_

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/distributed/communicator.h"
#include "core/distributed/perform_collective.h"

namespace caesura::testing {

// The one thing that goes wrong in a group.
struct VirtualFault {
  enum class Kind {
    kNone,
    kKill,     // the rank's process ends
    kError,    // the call fails on this rank
    kStall,    // the rank is away for longer than the others wait
    kLoseOne,  // some ranks never get the result of the rank's next collective
    kLoseAll,  // nor of all later ones
  };
  Kind kind = Kind::kNone;
  int rank = 0;
  int call = 0;  // before each start, before and after each wait, before Abort
};

struct VirtualOptions {
  uint64_t seed = 0;
  VirtualFault fault = {};
  int slow = -1;  // the calls of this rank come 200 times as late
  // False: a rank that gives up or ends is not heard of; the others wait until their time is over.
  bool heard = true;
  // Asked before each call: the rank's process has ended since the last one.
  std::function<bool(int rank)> has_ended = [](int) { return false; };
};

// A group of ranks, and the clock of its one Run. It outlives its communicators. While a collective
// is in flight its outputs hold garbage, which nobody may read or change.
class VirtualRanks {
 public:
  using Time = std::chrono::microseconds;  // since the run began
  static constexpr Time kTimeout = std::chrono::minutes(10);

  VirtualRanks(int size, VirtualOptions options)
      : options_(std::move(options)), random_(options_.seed), ranks_(size) {
    for (int r = 0; r < size; ++r) ranks_[r].end = std::make_shared<End>(*this, r);
  }

  // Runs `body` on each rank, to the end of all.
  void Run(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size(); ++r) {
      At(Delay(r), [this, r] { Resume(r); });
      threads.emplace_back([this, &body, r] {
        ranks_[r].turn.acquire();
        body(r);
        ranks_[r].has_left = true;
        scheduler_.release();
      });
    }
    const auto is_left = [](const Rank& rank) { return rank.has_left; };
    while (!std::all_of(ranks_.begin(), ranks_.end(), is_left)) {
      if (events_.empty() || ++happened_ == kMostEvents) {
        complaints_.push_back("a wait without end");
        for (Rank& rank : ranks_) rank.is_dead = true;
        for (int r = 0; r < size(); ++r) At(Time(0), [this, r] { ResumeBlocked(r); });
      }
      const Event event = events_.top();
      events_.pop();
      now_ = std::max(now_, event.at);
      event.happen();
    }
    for (std::thread& thread : threads) thread.join();
    events_ = {};
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  std::shared_ptr<Communicator> communicator(int rank) const { return ranks_[rank].end; }
  Time now() const { return now_; }
  // Ends here, if it has not yet.
  bool is_dead(int rank) {
    if (!ranks_[rank].is_dead && options_.has_ended(rank)) Kill(rank);
    return ranks_[rank].is_dead;
  }
  // The rank's calls, the places of a fault: a collective's text each, or "abort".
  const std::vector<std::string>& calls(int rank) const { return ranks_[rank].calls; }
  // Waits whose time was over.
  int timeouts() const { return timeouts_; }
  // The fault has happened, or a rank has ended.
  bool has_failed() const { return has_failed_; }
  // The call at which the fault has happened, as `calls` has it; empty: none.
  const std::string& failed_at() const { return failed_at_; }
  // A number of all calls and deliveries with their times: runs that are the same have the same.
  uint64_t trace() const { return trace_; }
  // The acts of callers that no communicator allows.
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  static constexpr int kMostEvents = 200'000;
  static constexpr char kGarbage = '\x7f';  // floats that are far too large

  // A rank's part in a collective.
  struct Place {
    int rank = -1;
    Collective asked;
    std::vector<char> input, output;
    bool scribbled = false, lost = false, done = false;
  };
  struct Meeting {
    std::vector<Place> places;
    int arrived = 0;
    Status status;
  };
  struct Event {
    Time at;
    uint64_t order;
    std::function<void()> happen;
    bool operator<(const Event& other) const {
      return std::tie(other.at, other.order) < std::tie(at, order);
    }
  };
  class End;
  using Channel = std::pair<int, int>;  // sender and receiver, or kAll
  static constexpr Channel kAll = {-1, -1};
  struct Rank {
    std::shared_ptr<End> end;
    std::binary_semaphore turn{0};
    bool is_blocked = false, is_dead = false, has_aborted = false, has_left = false;
    int blocks = 0;
    std::vector<std::string> calls;
    std::optional<std::string> failure;  // that it has heard of
    std::map<Channel, int> started;
  };

  class VirtualWork : public Work {
   public:
    VirtualWork(VirtualRanks& all, std::shared_ptr<Meeting> meeting, size_t place)
        : all_(all), meeting_(std::move(meeting)), place_(place) {}
    ~VirtualWork() override {
      Place& place = meeting_->places[place_];
      const Rank& rank = all_.ranks_[place.rank];
      if (place.done || rank.is_dead || rank.has_aborted) return;
      place.lost = true;
      all_.complaints_.push_back(place.asked.ToString() + " is in flight, and its work has ended");
    }
    Status Wait(Clock::time_point deadline) override {
      return all_.Wait(*meeting_, meeting_->places[place_], deadline);
    }

   private:
    VirtualRanks& all_;
    const std::shared_ptr<Meeting> meeting_;
    const size_t place_;
  };

  class End : public Communicator {
   public:
    End(VirtualRanks& all, int rank) : all_(all), rank_(rank) {}
    std::string name() const override { return "virtual"; }
    int rank() const override { return rank_; }
    int size() const override { return all_.size(); }
    std::chrono::milliseconds timeout() const override {
      return std::chrono::duration_cast<std::chrono::milliseconds>(kTimeout);
    }
    Result<std::unique_ptr<Work>> Start(const Collective& collective) override {
      return all_.Start(rank_, collective);
    }
    void Abort(const std::string& why) override { all_.Abort(rank_, why); }

   private:
    VirtualRanks& all_;
    const int rank_;
  };

  // --- time ---
  uint64_t Draw(uint64_t below) { return random_() % below; }
  // Up to a millisecond; one in sixteen up to fifty.
  Time Delay(int rank) {
    const uint64_t most = Draw(16) == 0 ? 50'000 : 1000;
    return Time(1 + Draw(most)) * (rank == options_.slow ? 200 : 1);
  }
  void At(Time from_now, std::function<void()> happen) {
    events_.push({now_ + from_now, random_(), std::move(happen)});
  }
  // The rank runs until it sleeps, waits or ends.
  void Resume(int rank) {
    ranks_[rank].turn.release();
    if (scheduler_.try_acquire_for(std::chrono::minutes(2))) return;
    std::fprintf(stderr, "rank %d waits elsewhere than in its communicator (seed %llu)\n", rank,
                 static_cast<unsigned long long>(options_.seed));
    std::abort();
  }
  void ResumeBlocked(int rank) {
    if (std::exchange(ranks_[rank].is_blocked, false)) Resume(rank);
  }
  // Others come first, until something happens to the rank, at most so long.
  void Block(int rank, Time most) {
    Rank& own = ranks_[rank];
    own.is_blocked = true;
    At(most, [this, rank, block = ++own.blocks] {
      if (ranks_[rank].blocks == block) ResumeBlocked(rank);
    });
    scheduler_.release();
    own.turn.acquire();
  }
  void Sleep(int rank, Time time) {
    for (const Time end = now_ + time; now_ < end && !ranks_[rank].is_dead;)
      Block(rank, end - now_);
  }
  void Trace(uint64_t what) {
    trace_ = (trace_ ^ what ^ static_cast<uint64_t>(now_.count()) << 8) * 0x100000001b3;
  }

  // --- faults ---
  // A place at which the fault may happen. `time`: that passes before.
  Status Call(int rank, const std::string& what, Time time) {
    if (is_dead(rank)) return RankFailure("this rank has ended");
    const VirtualFault& fault = options_.fault;
    const auto call = static_cast<int>(ranks_[rank].calls.size());
    ranks_[rank].calls.push_back(what);
    using Kind = VirtualFault::Kind;
    const bool fails = fault.kind != Kind::kNone && fault.rank == rank && fault.call == call;
    Sleep(rank, fails && fault.kind == Kind::kStall ? 3 * kTimeout : time);
    Trace(static_cast<uint64_t>(rank));
    if (!fails) return {};
    has_failed_ = true;
    failed_at_ = what;
    if (fault.kind == Kind::kError) return RankFailure("planted: the link is down");
    if (fault.kind == Kind::kKill) {
      Kill(rank);
      return RankFailure("this rank has ended");
    }
    loses_ = fault.kind == Kind::kLoseOne || fault.kind == Kind::kLoseAll;
    return {};
  }
  void Kill(int rank) {
    has_failed_ = ranks_[rank].is_dead = true;
    Tell(rank, "rank " + std::to_string(rank) + " has ended");
  }
  // The others hear of it, each at its time.
  void Tell(int rank, const std::string& news) {
    for (int r = 0; r < size() && options_.heard; ++r) {
      if (r != rank) At(Delay(-1), [this, r, news] { Fail(r, news); });
    }
  }
  void Fail(int rank, const std::string& why) {
    if (!ranks_[rank].failure) ranks_[rank].failure = why;
    ResumeBlocked(rank);
  }

  // --- collectives ---
  static size_t Bytes(const Collective& collective, int parts) {
    return static_cast<size_t>(collective.count) * DTypeSize(collective.dtype) *
           static_cast<size_t>(parts);
  }

  Result<std::unique_ptr<Work>> Start(int rank, const Collective& collective) {
    RETURN_IF_ERROR(CheckCollective(collective, size()));
    RETURN_IF_ERROR(Call(rank, collective.ToString(), Delay(rank)));
    Rank& own = ranks_[rank];
    if (own.failure) return RankFailure(*own.failure);
    const bool sends = collective.kind == Collective::Kind::kSend;
    const bool pair = sends || collective.kind == Collective::Kind::kReceive;
    const Channel channel = !pair   ? kAll
                            : sends ? Channel(rank, collective.peer)
                                    : Channel(collective.peer, rank);
    std::shared_ptr<Meeting>& meeting = meetings_[{channel, own.started[channel]++}];
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>();
      meeting->places.resize(pair ? 2 : ranks_.size());
    }
    const size_t index = !pair ? static_cast<size_t>(rank) : sends ? 0 : 1;
    Place& place = meeting->places[index];
    place.rank = rank;
    place.asked = collective;
    const size_t in =
        collective.input == nullptr ? 0 : Bytes(collective, collective.InputParts(size()));
    const size_t out = sends ? 0 : Bytes(collective, collective.OutputParts(size()));
    const char* input = static_cast<const char*>(collective.input);
    place.input.assign(input, input + in);
    place.output.resize(out);
    // A broadcast only reads the memory of its root.
    place.scribbled = !(collective.kind == Collective::Kind::kBroadcast &&
                        collective.input == collective.output && collective.peer == rank);
    if (place.scribbled && out > 0) std::memset(collective.output, kGarbage, out);
    const bool loses = loses_ && options_.fault.rank == rank;
    for (size_t p = 0, first = Draw(meeting->places.size()); loses && p < meeting->places.size();
         ++p)
      meeting->places[p].lost |= p == first || Draw(2) == 0;
    if (options_.fault.kind == VirtualFault::Kind::kLoseOne && loses) loses_ = false;
    At(Delay(-1), [this, meeting, rank] { Arrive(meeting, rank); });
    return std::unique_ptr<Work>(std::make_unique<VirtualWork>(*this, meeting, index));
  }

  // The input of a rank is there for the others, or is lost with the rank.
  void Arrive(const std::shared_ptr<Meeting>& meeting, int rank) {
    const Rank& own = ranks_[rank];
    if ((own.is_dead || own.has_aborted) && Draw(2) == 0) return;
    if (++meeting->arrived < static_cast<int>(meeting->places.size())) return;
    std::vector<Collective> given;
    for (Place& place : meeting->places) {
      given.push_back(place.asked);
      given.back().input = place.input.data();
      given.back().output = place.output.data();
    }
    meeting->status = PerformCollective(given);
    for (Place& place : meeting->places)
      At(Delay(-1), [this, meeting, &place] { Deliver(*meeting, place); });
  }

  void Deliver(const Meeting& meeting, Place& place) {
    const Rank& rank = ranks_[place.rank];
    if (place.lost || rank.is_dead || rank.has_aborted) return;
    Trace(static_cast<uint64_t>(place.rank) + 100);
    char* output = static_cast<char*>(place.asked.output);
    const bool kept = place.asked.input == place.asked.output || place.input.empty() ||
                      std::memcmp(place.asked.input, place.input.data(), place.input.size()) == 0;
    const bool garbage = !place.scribbled || std::all_of(output, output + place.output.size(),
                                                         [](char c) { return c == kGarbage; });
    if (!kept || !garbage)
      complaints_.push_back("rank " + std::to_string(place.rank) + " has changed the memory of " +
                            place.asked.ToString() + ", which was in flight");
    if (meeting.status.ok() && !place.output.empty())
      std::memcpy(output, place.output.data(), place.output.size());
    place.done = true;
    ResumeBlocked(place.rank);
  }

  Status Wait(const Meeting& meeting, Place& place, Clock::time_point deadline) {
    // Callers set it by the real clock, a moment before: in whole minutes it is always the same.
    const Time patience = std::chrono::round<std::chrono::minutes>(deadline - Clock::now());
    RETURN_IF_ERROR(Call(place.rank, place.asked.ToString(), Delay(place.rank)));
    Rank& own = ranks_[place.rank];
    const Time end = now_ + patience;
    while (!place.done && !own.failure && !own.is_dead && now_ < end) Block(place.rank, end - now_);
    RETURN_IF_ERROR(Call(place.rank, place.asked.ToString(), Time(0)));
    if (place.done) return meeting.status;
    if (own.failure) return RankFailure(*own.failure);
    ++timeouts_;
    return RankFailure(place.asked.ToString() + ": the time is over");
  }

  void Abort(int rank, const std::string& why) {
    static_cast<void>(Call(rank, "abort", Delay(rank)));
    Rank& own = ranks_[rank];
    if (own.is_dead || std::exchange(own.has_aborted, true)) return;
    const std::string news = "rank " + std::to_string(rank) + " has given up: " + why;
    if (!own.failure) own.failure = news;
    Tell(rank, news);
  }

  const VirtualOptions options_;
  std::mt19937_64 random_;
  std::deque<Rank> ranks_;
  std::binary_semaphore scheduler_{0};
  std::priority_queue<Event> events_;
  std::map<std::pair<Channel, int>, std::shared_ptr<Meeting>> meetings_;
  Time now_{0};
  uint64_t trace_ = 0xcbf29ce484222325;
  int happened_ = 0, timeouts_ = 0;
  bool loses_ = false, has_failed_ = false;
  std::string failed_at_;
  std::vector<std::string> complaints_;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_DISTRIBUTED_VIRTUAL_RANKS_H_
