// SPDX-License-Identifier: Apache-2.0
// Models, batches and sessions of ranks that are threads.
#ifndef CAESURA_TESTS_TRAINING_RANK_SESSION_H_
#define CAESURA_TESTS_TRAINING_RANK_SESSION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>

#include "tests/core/distributed/rank_threads.h"
#include "tests/training/real_step.h"

namespace caesura::testing {

inline constexpr int kRows = 12;

struct NamedModel {
  const char* name;
  RealModel (*make)();
  NamedValues (*batch)(uint32_t seed);
};

inline const NamedModel kModels[] = {
    {"mlp", Mlp,
     [](uint32_t seed) {
       return RandomBatch(seed, "x", Shape{kRows, 12}, false, "labels", Shape{kRows}, 10);
     }},
    {"chargpt", CharGpt,
     [](uint32_t seed) {
       return RandomBatch(seed, "tokens", Shape{kRows, 6}, true, "next", Shape{kRows, 6}, 11);
     }},
    {"llama", Llama,
     [](uint32_t seed) {
       return RandomBatch(seed, "tokens", Shape{kRows, 6}, true, "next", Shape{kRows, 6}, 11);
     }},
    {"digits", Digits,
     [](uint32_t seed) {
       return RandomBatch(seed, "images", Shape{kRows, 1, 8, 8}, false, "labels", Shape{kRows}, 10);
     }},
};

// Rows [first, last) of each tensor.
inline NamedValues RowsOf(const NamedValues& batch, int64_t first, int64_t last) {
  NamedValues part;
  for (const auto& [name, value] : batch) {
    const Tensor& all = value.tensor();
    std::vector<int64_t> dims = all.shape().dims();
    const size_t row = all.bytes() / static_cast<size_t>(dims[0]);
    dims[0] = last - first;
    Tensor rows = Tensor::Zeros(all.dtype(), Shape(dims));
    CopyElements(all.dtype(), static_cast<const char*>(all.raw()) + row * first, rows.raw(),
                 rows.elements());
    part.emplace(name, std::move(rows));
  }
  return part;
}

inline NamedValues PartOf(const NamedValues& batch, const Communicator& c) {
  return RowsOf(batch, kRows / c.size() * c.rank(), kRows / c.size() * (c.rank() + 1));
}

// The session of one rank of a group.
inline std::unique_ptr<TrainingSession> RankSession(
    const RealModel& real, Communicator& c,
    const std::function<void(TrainingOptions&)>& edit = {}) {
  RealModel copy = real.Clone();
  copy.options.ranks.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
  copy.options.ranks.timeout = std::chrono::seconds(60);
  copy.options.ranks.bucket_bytes = 1000;
  if (edit) edit(copy.options);
  auto session = TrainingSession::Create(std::move(copy.model), copy.options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return std::move(session).value();
}

inline Values ParametersOf(const TrainingSession& session) {
  Values out;
  for (const std::string& name : session.parameters().Names())
    out.push_back(session.parameters().Get(name).value().Clone().value());
  return out;
}

// `except`: not these.
inline void ExpectCloseValues(const Values& got, const Values& want, double tolerance,
                              const std::vector<size_t>& except = {}) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::find(except.begin(), except.end(), i) != except.end()) continue;
    const Tensor &a = got[i].tensor(), &b = want[i].tensor();
    double difference = 0, size = 1e-3;
    for (int64_t e = 0; e < a.elements(); ++e) {
      difference = std::max<double>(difference, std::abs(a.data<float>()[e] - b.data<float>()[e]));
      size = std::max<double>(size, std::abs(b.data<float>()[e]));
    }
    EXPECT_LE(difference / size, tolerance) << "parameter " << i;
  }
}

// The parameters after `updates`, checked to be the same bits on all ranks.
inline Values TrainOnRanks(const RealModel& real, const NamedModel& model, int ranks, int updates,
                           std::vector<double>* losses,
                           const std::function<void(TrainingOptions&)>& edit = {}) {
  std::mutex mutex;
  std::vector<Values> ends(ranks);
  std::vector<std::vector<double>> curves(ranks);
  RunRanks(ranks, [&](Communicator& c) {
    const auto session = RankSession(real, c, edit);
    const int steps = std::max(1, real.options.step.accumulation_steps);
    for (int u = 0; u < updates * steps; ++u) {
      const Result<double> loss = session->Step(PartOf(model.batch(100 + u), c));
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
      if ((u + 1) % steps == 0) curves[c.rank()].push_back(*loss);
    }
    const std::lock_guard lock(mutex);
    ends[c.rank()] = ParametersOf(*session);
  });
  for (int r = 1; r < ranks; ++r) {
    EXPECT_TRUE(SameBits(ends[0], ends[r])) << "rank " << r;
    EXPECT_EQ(curves[0], curves[r]);
  }
  if (losses != nullptr) *losses = curves[0];
  return ends[0];
}

// The same with the whole batch in one process.
inline Values TrainAlone(const RealModel& real, const NamedModel& model, int updates,
                         std::vector<double>* losses) {
  RealModel copy = real.Clone();
  auto session = TrainingSession::Create(std::move(copy.model), copy.options).value();
  const int steps = std::max(1, real.options.step.accumulation_steps);
  for (int u = 0; u < updates * steps; ++u) {
    const double loss = session->Step(model.batch(100 + u)).value();
    if ((u + 1) % steps == 0) losses->push_back(loss);
  }
  return ParametersOf(*session);
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_RANK_SESSION_H_
