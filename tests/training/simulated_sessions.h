// SPDX-License-Identifier: Apache-2.0
// The sessions of simulated ranks (virtual_ranks.h): a tiny model, its options, its batches, and
// the states that an undisturbed run has.
#ifndef CAESURA_TESTS_TRAINING_SIMULATED_SESSIONS_H_
#define CAESURA_TESTS_TRAINING_SIMULATED_SESSIONS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/execute/parameter_set.h"
#include "tests/core/distributed/virtual_ranks.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/training/rank_session.h"

namespace caesura::testing {

inline constexpr int kMostRanks = 4, kUpdatesOfSimulation = 3;

// The options of a run.
struct SimulatedWay {
  int ranks, shard, accumulation;
  bool early, undo, clips, adam, one_bucket, normalizes;

  // Small, so that each bucket holds one or two tensors.
  int64_t bucket_bytes() const { return one_bucket ? 1 << 20 : 40; }
  int steps() const { return kUpdatesOfSimulation * accumulation; }
  // Late commit of whole state, and undo, take back all that a step has written.
  bool may_mix() const { return !undo && (early || shard > 0); }
  std::string ToString() const {
    std::ostringstream out;
    out << ranks << " ranks, " << accumulation << " micro-steps, shard " << shard
        << (early ? ", early" : ", late") << (undo ? ", undo" : "") << (clips ? ", clipped" : "")
        << (adam ? ", AdamW" : ", SGD") << (one_bucket ? ", one bucket" : "")
        << (normalizes ? ", batch norm" : "");
    return out.str();
  }
};

inline RealModel TinyModel(const SimulatedWay& way) {
  static const auto make = [](const std::string& inputs, const std::string& nodes) {
    return MakeRealModel(
        "net (float[batch,3] x, float[4,3] w0, float[4] b0, float[3,4] w1, "
        "float[3] b1" +
            inputs + R"() => (float[batch,3] scores) {
      m0 = Gemm <transB = 1> (x, w0, b0))" +
            nodes + R"(
      scores = Gemm <transB = 1> (r0, w1, b1)
    })",
        1);
  };
  static const RealModel plain = make("", "r0 = Tanh (m0)");
  static const RealModel normalizing =
      make(", float[4] scale0, float[4] shift0, float[4] mean0, float[4] var0",
           "n0 = BatchNormalization (m0, scale0, shift0, mean0, var0) r0 = Tanh (n0)");
  const RealModel& model = way.normalizes ? normalizing : plain;
  RealModel out = model.Clone();
  StepOptions& step = out.options.step;
  step.loss = Loss::CrossEntropy("labels");
  if (way.adam) step.optimizer = AdamW{.learning_rate = 1e-2};
  else step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  step.accumulation_steps = way.accumulation;
  step.commit = way.early ? CommitMode::kEagerConsume : CommitMode::kLate;
  step.clip_norm = way.clips ? 0.1 : 0;
  out.options.undo = way.undo;
  out.options.ranks.shard = way.shard;
  out.options.ranks.bucket_bytes = way.bucket_bytes();
  return out;
}

// The rows of one rank in micro-step `step`.
inline NamedValues SimulatedBatch(int step, int rank, int ranks) {
  static const std::vector<NamedValues> batches = [] {
    std::vector<NamedValues> out;
    for (int s = 0; s < 2 * kUpdatesOfSimulation; ++s)
      out.push_back(RandomBatch(100 + s, "x", Shape{kRows, 3}, false, "labels", Shape{kRows}, 3));
    return out;
  }();
  return RowsOf(batches[step], kRows / ranks * rank, kRows / ranks * (rank + 1));
}

// Copies of all that a session trains.
struct RankState {
  std::vector<std::string> names;
  Values values;
  size_t whole = 0;  // the others are parts of divided state
  std::vector<bool> is_sum;

  explicit RankState(const TrainingSession& session) {
    const SessionParameters& parameters = session.parameters();
    const ParameterSet& set = parameters.set();
    whole = static_cast<size_t>(parameters.whole());
    for (int i = 0; i < set.size(); ++i) {
      names.push_back(set.name(i));
      values.push_back(set.tensor(i).Clone().value());
      is_sum.push_back(parameters.IsAccumulator(i));
    }
  }
  // The names whose bits differ. Sums of gradients count among the micro-steps of one update only.
  std::vector<std::string> Differences(const RankState& other, bool with_sums,
                                       bool with_parts) const {
    std::vector<std::string> out;
    for (size_t i = 0; i < (with_parts ? values.size() : whole); ++i) {
      if (is_sum[i] && !with_sums) continue;
      if (i >= other.values.size() || !SameBits(values[i], other.values[i]))
        out.push_back(names[i]);
    }
    return out;
  }
  // The same, of what both have whole: the other may be of another number of ranks.
  std::vector<std::string> WholeDifferences(const RankState& other) const {
    std::vector<std::string> out;
    for (size_t i = 0; i < whole; ++i) {
      const auto found = std::find(other.names.begin(), other.names.end(), names[i]);
      if (is_sum[i] || found == other.names.end()) continue;
      if (!SameBits(values[i], other.values[found - other.names.begin()])) out.push_back(names[i]);
    }
    return out;
  }
};

// An undisturbed run.
struct SimulatedReference {
  std::vector<std::vector<RankState>> states;   // by rank, before and after each micro-step
  std::vector<std::vector<std::string>> calls;  // by rank, with those of one Save
  std::vector<int> kernels;                     // likewise
};

// A kernel of one rank that fails, or at which its process ends.
struct NodeFault {
  int rank = -1;
  int kernel = 0;
  bool kills = false;
};

// One rank of a simulated run.
struct SimulatedMember {
  std::shared_ptr<FailingProvider> provider;
  std::unique_ptr<TrainingSession> session;
  std::optional<RankState> state;  // after its last call
  bool finished = false, suspended = false, refused = false, dead = false;
  int step = -1;             // its last one in this phase
  bool failed_here = false;  // there, by a kernel, and it says that nobody has done the step
  int64_t updates() const { return session->progress().updates; }
  bool lost() const { return session->parameters().lost().has_value(); }
};

// Counts over all runs so far.
struct SimulatedCounts {
  int runs = 0, killed = 0, done = 0, undone = 0, mixed = 0, lost = 0, suspended = 0, regrouped = 0,
      refused = 0, restored = 0, other_number = 0, again = 0;
};

inline const std::vector<std::shared_ptr<FailingProvider>>& SimulatedProviders() {
  static const auto all = [] {
    std::vector<std::shared_ptr<FailingProvider>> out;
    for (int r = 0; r < kMostRanks; ++r)
      out.push_back(std::make_shared<FailingProvider>(TrainingCpu()));
    return out;
  }();
  return all;
}

inline Result<std::unique_ptr<TrainingSession>> MakeMember(
    const SimulatedWay& way, VirtualRanks& ranks, int rank,
    std::shared_ptr<FailingProvider> provider) {
  RealModel real = TinyModel(way);
  real.options.providers = {std::move(provider)};
  if (ranks.size() > 1) real.options.ranks.communicator = ranks.communicator(rank);
  return TrainingSession::Create(std::move(real.model), real.options);
}

inline const SimulatedReference& ReferenceOf(const SimulatedWay& way, const std::string& path) {
  static std::map<std::string, SimulatedReference> all;
  SimulatedReference& out = all[way.ToString()];
  if (!out.calls.empty()) return out;
  VirtualRanks ranks(way.ranks, {});
  std::vector<std::unique_ptr<TrainingSession>> sessions(way.ranks);
  out.states.resize(way.ranks);
  out.kernels.resize(way.ranks);
  ranks.Run([&](int r) {
    const auto& provider = SimulatedProviders()[r];
    provider->FailAt(-1);
    auto session = MakeMember(way, ranks, r, provider);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    out.states[r].emplace_back(**session);
    for (int s = 0; s < way.steps(); ++s) {
      const auto loss = (*session)->Step(SimulatedBatch(s, r, way.ranks));
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
      out.states[r].emplace_back(**session);
    }
    if (way.shard > 0 || r == 0) {
      EXPECT_TRUE((*session)->Save(path).ok());
    }
    out.kernels[r] = provider->calls();
    sessions[r] = *std::move(session);
  });
  for (int r = 0; r < way.ranks; ++r) out.calls.push_back(ranks.calls(r));
  EXPECT_TRUE(ranks.complaints().empty());
  std::filesystem::remove(path);
  return out;
}

// The parameters of one process that has trained with whole batches.
inline const Values& AloneOf(const SimulatedWay& way) {
  static std::map<std::tuple<int, bool, bool>, Values> all;
  Values& out = all[{way.accumulation, way.clips, way.adam}];
  if (!out.empty()) return out;
  const auto session = SessionOf(TinyModel(way));
  for (int s = 0; s < way.steps(); ++s) EXPECT_TRUE(session->Step(SimulatedBatch(s, 0, 1)).ok());
  return out = ParametersOf(*session);
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_SIMULATED_SESSIONS_H_
