// SPDX-License-Identifier: Apache-2.0
// Models, batches and sessions of ranks that are threads.
#ifndef CAESURA_TESTS_TRAINING_RANK_SESSION_H_
#define CAESURA_TESTS_TRAINING_RANK_SESSION_H_

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

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
  copy.options.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
  copy.options.rank_timeout = std::chrono::seconds(60);
  copy.options.bucket_bytes = 1000;
  if (edit) edit(copy.options);
  auto session = TrainingSession::Create(std::move(copy.model), copy.options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return std::move(session).value();
}

inline Values ParametersOf(const TrainingSession& session) {
  Values out;
  for (const std::string& name : session.ParameterNames())
    out.push_back(session.Parameter(name).value().Clone().value());
  return out;
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_RANK_SESSION_H_
