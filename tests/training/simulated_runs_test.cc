// SPDX-License-Identifier: Apache-2.0
// Runs of ranks under one seed each, in virtual time: a rank is killed, fails, stalls or loses
// messages at any call of its communicator or any kernel; the survivors regroup, or another number
// of ranks goes on from the checkpoint. CAESURA_SIMULATED_SEED=n: only that run, as a failure
// prints it; n:m: from n to below m. CAESURA_LONG=1: 10,000 runs instead of 300.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "tests/temporary_folder.h"
#include "tests/training/simulated_sessions.h"

namespace caesura::testing {
namespace {

// One run: its ranks, and how they go on after each fault.
class SimulatedRun {
 public:
  SimulatedRun(uint64_t seed, const std::string& folder, SimulatedCounts& counts)
      : seed_(seed), random_(seed), path_(folder + "/last"), counts_(counts) {
    std::filesystem::remove(path_);
    way_.ranks = 2 + Draw(3);
    way_.accumulation = 1 + Draw(2);
    way_.early = Draw(2) == 0;
    way_.undo = Draw(2) == 0;
    way_.shard = way_.early ? 0 : Draw(3);
    way_.clips = !way_.early && Draw(2) == 0;
    way_.adam = Draw(2) == 0;
    way_.one_bucket = Draw(4) == 0;
    way_.normalizes = Draw(4) == 0;
    save_at_ = Draw(kUpdatesOfSimulation);
    reference_ = &ReferenceOf(way_, path_);
  }

  void Go() {
    ++counts_.runs;
    int ranks = way_.ranks;
    Renew(ranks);
    for (int phase = 0;; ++phase) {
      const bool may_fail = phase == 0 || (phase == 1 && Draw(3) == 0);
      counts_.again += phase == 1 && may_fail;
      RunPhase(ranks, may_fail && ranks > 1);
      if (!problems_.empty()) break;
      ranks = Next(phase);
      if (ranks == 0) break;
    }
    members_.clear();  // before their communicators
    std::string all;
    for (const std::string& problem : problems_) all += "\n  " + problem;
    EXPECT_TRUE(all.empty()) << way_.ToString() << all
                             << "\nAgain: CAESURA_SIMULATED_SEED=" << seed_
                             << " caesura_tests --gtest_filter=SimulatedRuns.*";
  }

  uint64_t trace() const { return trace_; }

 private:
  int Draw(uint64_t below) { return static_cast<int>(random_() % below); }
  void Problem(const std::string& text) {
    problems_.push_back("phase " + std::to_string(groups_.size()) + ": " + text + fault_text_);
  }
  bool is_divided() const { return way_.shard > 0 && ranks_->size() > 1; }

  // New sessions for so many ranks, which their first phase makes.
  void Renew(int ranks) {
    members_ = std::vector<SimulatedMember>(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) members_[r].provider = SimulatedProviders()[r];
    expected_.reset();
  }

  // --- one phase: all members, from their making or regrouping to the end or a fault ---
  void RunPhase(int size, bool may_fail) {
    VirtualOptions options{.seed = random_(), .heard = Draw(4) != 0};
    if (Draw(3) == 0) options.slow = Draw(static_cast<uint64_t>(size));
    node_ = {};
    suspend_rank_ = -1;
    if (may_fail) DrawFault(size, options);
    options.has_ended = [this](int r) {
      return node_.kills && r == node_.rank && members_[r].provider->calls() > node_.kernel;
    };
    for (int r = 0; r < size; ++r)
      members_[r].provider->FailAt(r == node_.rank ? node_.kernel : -1);
    groups_.push_back(std::make_unique<VirtualRanks>(size, options));
    ranks_ = groups_.back().get();
    after_.clear();
    has_file_ = std::filesystem::exists(path_);
    ranks_->Run([this](int r) { Live(r); });
    trace_ = trace_ * 31 + ranks_->trace();
    for (const std::string& complaint : ranks_->complaints()) Problem(complaint);
    CheckPhase(options);
  }

  void DrawFault(int size, VirtualOptions& options) {
    using Kind = VirtualFault::Kind;
    static constexpr Kind kKinds[] = {Kind::kNone,  Kind::kKill,  Kind::kKill,    Kind::kError,
                                      Kind::kError, Kind::kStall, Kind::kLoseOne, Kind::kLoseAll};
    constexpr int kCount = std::size(kKinds);
    const int kind = Draw(kCount + 4), victim = Draw(static_cast<uint64_t>(size));
    std::ostringstream text;
    if (kind < kCount) {
      const int call = DrawCall(reference_->calls[victim % way_.ranks]);
      options.fault = {kKinds[kind], victim, call};
      text << "fault " << static_cast<int>(kKinds[kind]) << " on rank " << victim << " at call "
           << call;
    } else {
      const int kernel = Draw(static_cast<uint64_t>(reference_->kernels[victim % way_.ranks]));
      node_ = {victim, kernel, kind < kCount + 2};
      text << (node_.kills ? "killed" : "failed") << " rank " << victim << " at kernel " << kernel;
    }
    if (Draw(6) == 0) {
      suspend_rank_ = Draw(static_cast<uint64_t>(size));
      suspend_at_ = Draw(static_cast<uint64_t>(way_.steps()));
      text << ", rank " << suspend_rank_ << " suspends in step " << suspend_at_;
    }
    fault_text_ += " (phase " + std::to_string(groups_.size() + 1) + ": " + text.str() +
                   (options.heard ? "" : ", unheard") + ")";
  }

  // Any call; or any one of those of one text, as most are of buckets.
  int DrawCall(const std::vector<std::string>& calls) {
    if (Draw(2) == 0) return Draw(calls.size() + 2);
    const std::set<std::string> texts(calls.begin(), calls.end());
    const std::string& text = *std::next(texts.begin(), Draw(texts.size()));
    std::vector<int> same;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i] == text) same.push_back(static_cast<int>(i));
    }
    return same[static_cast<size_t>(Draw(same.size()))];
  }

  void Live(int r) {
    SimulatedMember& own = members_[r];
    own.finished = own.suspended = own.refused = own.failed_here = false;
    own.step = -1;
    if (Begin(r)) {
      TrainingSession& session = *own.session;
      bool goes_on = true;
      for (auto s = static_cast<int>(session.progress().micro_steps); s < way_.steps() && goes_on;
           ++s) {
        if (s == save_at_ * way_.accumulation) goes_on = Save(r);
        if (r == suspend_rank_ && s == suspend_at_) session.control().set_suspend(true);
        if (goes_on) goes_on = Step(r, s);
      }
      own.finished = goes_on;
    }
    own.dead = ranks_->is_dead(r);
  }

  // Its session is there, regrouped, restored or new.
  bool Begin(int r) {
    SimulatedMember& own = members_[r];
    if (own.session != nullptr) {
      own.session->control().set_suspend(false);
      const Status status =
          own.session->Regroup(ranks_->size() > 1 ? ranks_->communicator(r) : nullptr);
      const RankState before = *std::exchange(own.state, RankState(*own.session));
      if (ranks_->is_dead(r)) return false;
      if (status.ok()) {
        CheckRegrouped(r);
        return true;
      }
      if (status.code() != StatusCode::kInvalidArgument ||
          status.message().find("Restore") == std::string::npos) {
        CheckCode(r, status);
        if (!own.lost() && !own.state->Differences(before, true, true).empty())
          Problem("a regrouping that failed has changed rank " + std::to_string(r));
        if (own.lost() && r == giver_) Problem("the rank that gives its parameters has lost them");
        return false;
      }
      own.refused = true;
      if (!expected_refusal_) Problem("refused to regroup: " + status.ToString());
      if ((way_.shard > 0 && ranks_->size() != group_size_) || !has_file_) own.session.reset();
    }
    if (own.session == nullptr) {
      auto made = MakeMember(way_, *ranks_, r, own.provider);
      if (ranks_->is_dead(r)) return false;
      if (!made.ok()) return CheckCode(r, made.status());
      own.session = *std::move(made);
    }
    if (has_file_) {
      const auto restored = own.session->Restore(path_);
      if (!restored.ok()) Problem(restored.status().ToString());
    }
    own.state.emplace(*own.session);
    CheckFile(r);
    return problems_.empty();
  }

  // Always false: for "return CheckCode".
  bool CheckCode(int r, const Status& status) {
    const bool own_fault = r == node_.rank && status.code() == StatusCode::kProviderFailure;
    if (status.code() != StatusCode::kRankFailure && !own_fault)
      Problem("rank " + std::to_string(r) + ": " + status.ToString());
    return false;
  }

  void CheckRegrouped(int r) {
    const SimulatedMember& own = members_[r];
    const std::string name = "rank " + std::to_string(r);
    if (expected_refusal_) return Problem(name + " has regrouped, and should not have");
    if (own.lost()) Problem(name + " has regrouped, and is lost");
    if (own.updates() != expected_updates_)
      Problem(name + " has regrouped to update " + std::to_string(own.updates()) +
              ", and one had " + std::to_string(expected_updates_));
    if (own.session->progress().micro_steps != expected_updates_ * way_.accumulation)
      Problem(name + " has micro-steps of an update that begins anew");
    for (const std::string& differs : own.state->Differences(*expected_, false, false))
      Problem(name + " has another " + differs + " than the one with most updates");
  }

  bool Save(int r) {
    SimulatedMember& own = members_[r];
    if (!is_divided() && r != 0) return true;
    files_.emplace(own.updates(), std::pair(*own.state, is_pure_));
    const Status status = own.session->Save(path_);
    if (ranks_->is_dead(r)) return false;
    if (!status.ok()) return CheckCode(r, status);
    saved_ = own.updates();
    return true;
  }

  // Its state is that of a checkpoint, or the first one.
  void CheckFile(int r) {
    const SimulatedMember& own = members_[r];
    const auto [first, last] = files_.equal_range(own.updates());
    if (has_file_ ? first == last : own.updates() != 0)
      return Problem("restored update " + std::to_string(own.updates()) + ", which none has saved");
    if (saved_ >= 0 && own.updates() < saved_)
      Problem("restored update " + std::to_string(own.updates()) + ", and " +
              std::to_string(saved_) + " was saved");
    is_pure_ = true;
    std::vector<std::string> wrong = own.state->WholeDifferences(reference_->states[0][0]);
    for (auto file = first; has_file_ && file != last; ++file) {
      if (file != first && wrong.empty()) break;
      wrong = own.state->WholeDifferences(file->second.first);
      is_pure_ = file->second.second;
    }
    for (const std::string& differs : wrong) Problem("restored another " + differs);
    is_pure_ &= ranks_->size() == way_.ranks;
  }

  // One micro-step: the state is the next one, or the one before, or the error says what is mixed.
  bool Step(int r, int s) {
    SimulatedMember& own = members_[r];
    const std::string name = "rank " + std::to_string(r) + ", step " + std::to_string(s) + ": ";
    own.step = s;
    const auto loss = own.session->Step(SimulatedBatch(s, r, ranks_->size()));
    const RankState before = *std::exchange(own.state, RankState(*own.session));
    if (ranks_->is_dead(r)) return false;
    const bool with_sums = (s + 1) % way_.accumulation != 0;
    if (loss.ok()) {
      ++counts_.done;
      // Statistics are each rank's own until an update.
      const auto same = after_.emplace(s, *own.state).first;
      if (!with_sums) {
        for (const std::string& differs : own.state->Differences(same->second, false, false))
          Problem(name + differs + " differs between ranks");
      }
      if (ranks_->size() != way_.ranks) is_pure_ = false;
      if (is_pure_) {
        for (const std::string& differs :
             own.state->Differences(reference_->states[r][s + 1], with_sums, true))
          Problem(name + differs + " differs from the undisturbed run");
      }
      return true;
    }
    const Status& status = loss.status();
    // The ranks agree on it in the next step that updates.
    if (status.code() == StatusCode::kSuspended && suspend_rank_ >= 0 && s > suspend_at_ &&
        s <= (suspend_at_ / way_.accumulation + 1) * way_.accumulation) {
      ++counts_.suspended;
      if (!own.state->Differences(before, true, true).empty())
        Problem(name + "a step that did not begin has changed something");
      own.suspended = s % way_.accumulation != 0 || Save(r);
      return false;
    }
    CheckCode(r, status);
    own.failed_here = status.code() == StatusCode::kProviderFailure && !own.lost();
    CheckFailed(r, s, before, status);
    // A micro-step that exchanges nothing may be done again.
    const auto again = own.session->Step(SimulatedBatch(s, r, ranks_->size()));
    if (again.ok() && !with_sums) Problem(name + "done without the others");
    const RankState failed = *std::exchange(own.state, RankState(*own.session));
    const bool may_change = again.ok() && way_.normalizes;  // statistics
    if (!may_change && !own.state->Differences(failed, !again.ok(), true).empty())
      Problem(name + "changed by a second try");
    return false;
  }

  void CheckFailed(int r, int s, const RankState& before, const Status& status) {
    const SimulatedMember& own = members_[r];
    const std::string name = "rank " + std::to_string(r) + ", step " + std::to_string(s) + ": ";
    const std::vector<std::string> changed = own.state->Differences(before, true, true);
    if (!own.lost() || own.session->parameters().lost()->empty()) {
      (own.lost() ? counts_.lost : counts_.undone) += 1;
      if (own.lost() && status.message().find("the step is lost here") == std::string::npos)
        Problem(name + "lost without a word: " + status.ToString());
      for (const std::string& one : changed) Problem(name + "it has failed, and changed " + one);
      return;
    }
    const std::vector<std::string>& lost = *own.session->parameters().lost();
    for (const std::string& one : changed) {
      if (std::find(lost.begin(), lost.end(), one) == lost.end())
        Problem(name + "mixed, and not named: " + one);
    }
    // A CPU kernel that writes after all risks does not fail (ExecutionPlan::last_risk), unless a
    // test makes it.
    if (r == node_.rank && !way_.may_mix()) return;
    ++counts_.mixed;
    if (!way_.may_mix()) Problem(name + "mixed: " + status.ToString());
    if (status.message().find("parameters may be half updated ('") == std::string::npos ||
        status.message().find("Restore the last checkpoint on all ranks") == std::string::npos)
      Problem(name + "mixed without a word: " + status.ToString());
  }

  void CheckPhase(const VirtualOptions& options) {
    using Kind = VirtualFault::Kind;
    const Kind kind = options.fault.kind;
    const bool loses = kind == Kind::kLoseOne || kind == Kind::kLoseAll || kind == Kind::kStall;
    const bool fails = ranks_->has_failed() ||
                       (node_.rank >= 0 && members_[node_.rank].provider->calls() > node_.kernel);
    if (ranks_->timeouts() > 0 && (!fails || (options.heard && !loses)))
      Problem(std::to_string(ranks_->timeouts()) + " waits have ended by their time only");
    // A stall and one wait after the other.
    if (ranks_->now() > (fails ? 6 : 1) * VirtualRanks::kTimeout) Problem("it took too long");
    for (size_t r = 0; r < members_.size(); ++r) {
      counts_.killed += members_[r].dead;
      if (fails || members_[r].finished || members_[r].suspended) continue;
      Problem("rank " + std::to_string(r) + " has not come to the end, and nothing has failed");
    }
    for (const SimulatedMember& member : members_) {
      const bool alike = member.suspended == members_[0].suspended &&
                         (!member.suspended || member.updates() == members_[0].updates());
      if (!fails && !alike) Problem("ranks are suspended in different steps");
    }
    CheckAgreement(options.fault);
  }

  // A step happens on all ranks or on none: none writes before all have all sums.
  void CheckAgreement(const VirtualFault& fault) {
    using Kind = VirtualFault::Kind;
    const bool sums = ranks_->failed_at().rfind("all_reduce", 0) == 0 ||
                      ranks_->failed_at().rfind("reduce_scatter", 0) == 0;
    const bool stops = sums && (fault.kind == Kind::kKill || fault.kind == Kind::kError);
    for (int r = 0; r < static_cast<int>(members_.size()); ++r) {
      const int s = members_[r].step;
      const bool before =
          (stops && r == fault.rank) || (members_[r].failed_here && way_.shard == 0);
      if (before && (s + 1) % way_.accumulation == 0 && after_.count(s) > 0)
        Problem("rank " + std::to_string(r) + " had not agreed to step " + std::to_string(s) +
                ", and others have done it");
    }
  }

  // --- between phases ---
  // The number of ranks of the next phase; 0: the run is over.
  int Next(int phase) {
    const int before = static_cast<int>(members_.size());
    if (std::all_of(members_.begin(), members_.end(), [](auto& m) { return m.finished; })) {
      CheckEnd();
      if (phase > 0 || Draw(2) == 0 || !problems_.empty()) return 0;
    }
    const bool refused =
        std::any_of(members_.begin(), members_.end(), [](auto& m) { return !m.dead && m.refused; });
    counts_.refused += refused;
    group_size_ = refused || expected_ == std::nullopt ? before : group_size_;
    std::erase_if(members_, [](const SimulatedMember& m) { return m.dead; });
    const bool have_sessions =
        !members_.empty() && std::all_of(members_.begin(), members_.end(), [](auto& m) {
          return m.session != nullptr && m.state.has_value();
        });
    if (have_sessions && Draw(4) != 0) {
      Expect(before);
      return static_cast<int>(members_.size());
    }
    const int ranks = 1 + Draw(kMostRanks);
    ++counts_.restored;
    counts_.other_number += ranks != before;
    Renew(ranks);
    return ranks;
  }

  // Says beforehand how a regrouping of the members ends.
  void Expect(int before) {
    const SimulatedMember* best = nullptr;
    bool alike = static_cast<int>(members_.size()) == before;
    for (const SimulatedMember& member : members_) {
      alike &= !member.lost() && member.updates() == members_[0].updates();
      if (!member.lost() && (best == nullptr || member.updates() > best->updates())) best = &member;
    }
    expected_refusal_ = way_.shard > 0 && before > 1 ? !alike : best == nullptr;
    expected_.emplace(best == nullptr ? *members_[0].state : *best->state);
    expected_updates_ = best == nullptr ? -1 : best->updates();
    giver_ = best == nullptr ? -1 : static_cast<int>(best - members_.data());
    counts_.regrouped += !expected_refusal_;
    // Running statistics have seen the micro-steps that begin anew.
    if (best != nullptr && way_.normalizes && best->session->progress().accumulated() > 0)
      is_pure_ = false;
  }

  void CheckEnd() {
    const SimulatedMember& first = members_[0];
    for (const SimulatedMember& member : members_) {
      if (member.updates() != kUpdatesOfSimulation) Problem("another number of updates");
      for (const std::string& differs : member.state->Differences(*first.state, false, false))
        Problem("at the end " + differs + " differs between ranks");
    }
    if (way_.normalizes) return;  // each rank by the mean of its own rows
    const Values got = ParametersOf(*first.session), &want = AloneOf(way_);
    for (size_t i = 0; i < want.size(); ++i) {
      const Tensor &a = got[i].tensor(), &b = want[i].tensor();
      for (int64_t e = 0; e < a.elements(); ++e) {
        const double difference = std::abs(a.data<float>()[e] - b.data<float>()[e]);
        if (!(difference < 2e-5))
          Problem("at the end parameter " + std::to_string(i) + " is " +
                  std::to_string(difference) + " from that of one process");
      }
    }
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  const std::string path_;
  SimulatedCounts& counts_;
  SimulatedWay way_{};
  int save_at_ = 0;
  const SimulatedReference* reference_ = nullptr;
  std::vector<std::unique_ptr<VirtualRanks>> groups_;  // of all phases
  VirtualRanks* ranks_ = nullptr;
  std::vector<SimulatedMember> members_;
  NodeFault node_;
  int suspend_rank_ = -1, suspend_at_ = 0;
  int group_size_ = 0;              // of the sessions, before the phase
  std::map<int, RankState> after_;  // of the first rank that has done a micro-step in this phase
  bool is_pure_ = true;             // all steps so far were done by the first number of ranks
  bool has_file_ = false;           // before the phase
  // All states that were to be saved, with is_pure_; by update.
  std::multimap<int64_t, std::pair<RankState, bool>> files_;
  int64_t saved_ = -1;
  bool expected_refusal_ = false;
  std::optional<RankState> expected_;
  int64_t expected_updates_ = 0;
  int giver_ = -1;  // of the parameters, in a regrouping
  std::string fault_text_;
  std::vector<std::string> problems_;
  uint64_t trace_ = 0;
};

TEST(SimulatedRuns, EachRankIsOldOrNewAndGoesOn) {
  const TemporaryFolder folder;
  SimulatedCounts counts;
  const char* const some = std::getenv("CAESURA_SIMULATED_SEED");
  char* rest = nullptr;
  const uint64_t first = some != nullptr ? std::strtoull(some, &rest, 10) : 0;
  uint64_t last = std::getenv("CAESURA_LONG") != nullptr ? 10'000 : 300;
  if (some != nullptr) last = *rest == ':' ? std::strtoull(rest + 1, nullptr, 10) : first + 1;
  for (uint64_t seed = first; seed < last; ++seed) {
    SimulatedRun(seed, folder.path(), counts).Go();
    if (HasFailure()) return;
  }
  std::printf(
      "%d runs: %d ranks killed; steps: %d done, %d undone, %d lost, %d mixed, %d suspended; %d "
      "groups went on, %d were refused, %d restarts (%d with another number), %d second faults\n",
      counts.runs, counts.killed, counts.done, counts.undone, counts.lost, counts.mixed,
      counts.suspended, counts.regrouped, counts.refused, counts.restored, counts.other_number,
      counts.again);
  if (some != nullptr) return;
  for (const int count :
       {counts.killed, counts.done, counts.undone, counts.mixed, counts.suspended, counts.regrouped,
        counts.refused, counts.restored, counts.other_number, counts.again})
    EXPECT_GT(count, 0);
}

TEST(SimulatedRuns, ASeedIsOneRun) {
  const TemporaryFolder folder;
  SimulatedCounts counts;
  std::set<uint64_t> traces;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto trace = [&] {
      SimulatedRun run(seed, folder.path(), counts);
      run.Go();
      return run.trace();
    };
    const uint64_t first = trace();
    EXPECT_EQ(trace(), first) << "seed " << seed;
    traces.insert(first);
  }
  EXPECT_EQ(traces.size(), 8u);
}

}  // namespace
}  // namespace caesura::testing
