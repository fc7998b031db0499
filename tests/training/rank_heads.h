// SPDX-License-Identifier: Apache-2.0
// Sessions of ranks that use other heads of one model (StepOptions::skips_unused).
#ifndef CAESURA_TESTS_TRAINING_RANK_HEADS_H_
#define CAESURA_TESTS_TRAINING_RANK_HEADS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/training/rank_session.h"
#include "training/session/rank_group.h"

namespace caesura::testing {

inline const std::vector<std::string> kHeadNames = {"body", "a", "b", "c"};

// A body and the head `head`; the other heads are there, and nothing reads them.
inline RealModel HeadModel(const std::string& head) {
  RealModel out = MakeRealModel(
      "heads (float[batch,12] x, float[12,8] body, float[8,10] a, float[8,10] b, float[8,10] c) => "
      "(float[batch,10] scores) { m = MatMul (x, body) h = Tanh (m) scores = MatMul (h, " +
          head + ") }",
      1);
  out.options.step.loss = Loss::CrossEntropy("labels");
  out.options.step.optimizer = Sgd{.learning_rate = 0.1};
  out.options.step.trainable = kHeadNames;
  return out;
}

inline NamedValues HeadBatch(uint32_t seed) {
  return RandomBatch(seed, "x", Shape{8, 12}, false, "labels", Shape{8}, 10);
}

inline std::unique_ptr<TrainingSession> HeadSession(
    const std::string& head, Communicator& c,
    const std::function<void(TrainingOptions&)>& edit = {}) {
  auto session = RankSession(HeadModel(head), c, [&](TrainingOptions& options) {
    options.ranks.join = false;
    options.step.skips_unused = true;
    options.step.buckets = {{"b"}, {"c"}, {"a"}, {"body"}};
    for (const std::string& name : kHeadNames) options.step.groups.push_back({.names = {name}});
    if (edit) edit(options);
  });
  session->ranks().set_uses({0, 1 + head[0] - 'a'});
  return session;
}

inline std::map<std::string, Tensor> TensorsOf(const TrainingSession& session) {
  std::map<std::string, Tensor> out;
  for (const std::string& name : session.parameters().Names())
    out.emplace(name, session.parameters().Get(name).value().Clone().value());
  return out;
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_RANK_HEADS_H_
