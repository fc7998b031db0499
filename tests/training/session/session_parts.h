// SPDX-License-Identifier: Apache-2.0
// The parts of a training session on a small model, put together without the session.
#ifndef CAESURA_TESTS_TRAINING_SESSION_SESSION_PARTS_H_
#define CAESURA_TESTS_TRAINING_SESSION_SESSION_PARTS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/onnx/model_reader.h"
#include "training/session/session_files.h"
#include "training/step/parameters.h"

namespace caesura::testing {

// y = x w + b; `w` is trained, `b` is frozen.
inline constexpr char kLinearModel[] = R"(<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {0.5, -0.25, 0.125, 1}, float[2] b = {1, 2}> {
  product = MatMul (x, w)
  y = Add (product, b)
})";

inline NamedValues LinearBatch(float base = 1) {
  return {{"x", Tensor::Of<float>({2, 2}, {base, 1, -1, 2 * base})},
          {"t", Tensor::Of<float>({2, 2}, {1, 0, 0, 1})}};
}

// Steps of AdamW on the mean squared error. `edit` may change that.
struct PartsOfASession {
  using Edit = std::function<void(TrainingOptions&)>;

  explicit PartsOfASession(const Edit& edit = {})
      : options(OptionsOf(edit)),
        fallback(TrainingFallback(options.providers, options.fallback)),
        parameters(ParseModelText(kLinearModel).value(), {"w"}, fallback, /*share=*/false),
        ranks(options, SetupOf(), control, parameters, progress, fallback),
        runs(options, {"w"}, control, parameters, progress, ranks, fallback) {
    progress.micro_steps_to_update = ranks.setup().MicroSteps(options.step.accumulation_steps);
    progress.base_rate = LearningRate(options.step.optimizer);
    const Status made = runs.MakePrograms();
    EXPECT_TRUE(made.ok()) << made.ToString();
  }

  Result<double> Step(float base = 1, std::vector<ExecutionObserver*> observers = {}) {
    return runs.Step(progress.update_is_due(), LinearBatch(base), std::move(observers));
  }
  SessionParts all() { return {parameters, progress, ranks, runs}; }
  std::vector<float> Value(const std::string& name) const {
    return parameters.Get(name).value().ToVector<float>();
  }
  std::vector<float> Weights() const { return Value("w"); }

  TrainingOptions options;
  RunControl control;
  TrainingProgress progress;
  std::shared_ptr<ProviderFallback> fallback;
  SessionParameters parameters;
  RankGroup ranks;
  StepRuns runs;

 private:
  static TrainingOptions OptionsOf(const Edit& edit) {
    TrainingOptions options;
    options.step.loss = Loss::MeanSquaredError("t");
    options.step.optimizer = AdamW{.learning_rate = 0.25};
    if (edit) edit(options);
    return options;
  }
  RankSetup SetupOf() const {
    return SetUpRanks(options, options.ranks.communicator.get(), fallback->providers()).value();
  }
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_SESSION_SESSION_PARTS_H_
