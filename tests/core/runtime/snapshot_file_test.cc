// SPDX-License-Identifier: Apache-2.0
// Runs that are captured before each of their steps, written to a file, read, and ended by another
// state: the same bits. What does not fit, and what is no snapshot, is refused in words.
#include "core/runtime/snapshot_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "tests/core/execute/training_step.h"
#include "tests/temporary_folder.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr char kManifest[] = "caesura.snapshot";

StateSnapshot ThroughAFile(const StateSnapshot& snapshot) {
  TemporaryFolder folder;
  TensorFile out;
  EXPECT_TRUE(AddSnapshot(snapshot, &out).ok());
  EXPECT_TRUE(WriteSafetensors(folder.path("s"), out).ok());
  TensorFile in = ReadSafetensors(folder.path("s")).value();
  EXPECT_TRUE(HoldsSnapshot(in));
  StateSnapshot read = TakeSnapshot(&in).value();
  EXPECT_TRUE(in.tensors.empty());
  return read;
}

// A run of the training step that is captured at `at` (of the forward part, or of the backward),
// and ended by a state of `other`.
Result<StepResults> Continued(const TrainingStep& step,
                              const std::shared_ptr<const ExecutionPlan>& plan,
                              const std::shared_ptr<const ExecutionPlan>& other, int at,
                              bool backward, StateSnapshot* taken = nullptr) {
  ParameterSet parameters = step.Parameters();
  RunOptions options;
  options.parameters = &parameters;
  options.seed = 7;
  StepResults results;
  auto first = std::make_unique<ExecutionState>(plan);
  RETURN_IF_ERROR(first->Start(step.feeds, options));
  ASSIGN_OR_RETURN(RunOutcome outcome, PartialExecutor::Run(*first, backward ? INT_MAX : at));
  if (outcome == RunOutcome::kYielded && backward) {
    results.yielded = first->TakeYielded();
    if (at > first->program_counter()) {
      RETURN_IF_ERROR(first->Resume(step.gradients));
      ASSIGN_OR_RETURN(outcome, PartialExecutor::Run(*first, at));
    }
  }
  ASSIGN_OR_RETURN(const StateSnapshot live, first->Capture());
  const StateSnapshot snapshot = ThroughAFile(live);
  if (taken != nullptr) *taken = snapshot;
  first.reset();
  options.seed = 99;  // the snapshot's is the one that counts
  ExecutionState second(other);
  RETURN_IF_ERROR(second.Restore(snapshot, options));
  if (second.stage() == ExecutionState::Stage::kReady) {
    ASSIGN_OR_RETURN(outcome, PartialExecutor::Run(second));
  }
  if (second.stage() == ExecutionState::Stage::kYielded) {
    if (results.yielded.empty()) results.yielded = second.TakeYielded();
    RETURN_IF_ERROR(second.Resume(step.gradients));
    ASSIGN_OR_RETURN(outcome, PartialExecutor::Run(second));
  }
  EXPECT_EQ(outcome, RunOutcome::kFinished);
  results.fetches = second.TakeFetches();
  for (int i = 0; i < parameters.size(); ++i)
    results.parameters.push_back(parameters.tensor(i).Clone().value());
  return results;
}

TEST(SnapshotFile, EveryStepOfAStepWithAYield) {
  const TrainingStep step;
  for (const bool reuse : {true, false}) {
    const auto plan = step.Plan(Tiny(), reuse), other = step.Plan(Tiny(), !reuse);
    const StepResults expected = Uncut(step, plan);
    const int yield = plan->yields()[0].step, end = static_cast<int>(plan->steps().size());
    for (int at = 0; at < end; ++at) {
      const bool backward = at > yield;
      const auto results = Continued(step, plan, other, at, backward);
      ASSERT_TRUE(results.ok()) << at << ": " << results.status().ToString();
      EXPECT_TRUE(*results == expected) << "captured before step " << at;
    }
    // At the yield, its values taken.
    const auto results = Continued(step, plan, other, yield, /*backward=*/true);
    ASSERT_TRUE(results.ok()) << results.status().ToString();
    EXPECT_TRUE(*results == expected);
  }
}

TEST(SnapshotFile, HoldsWhatLaterStepsReadAndNothingElse) {
  const TrainingStep step;
  const auto plan = step.Plan();
  StateSnapshot first, last;
  ASSERT_TRUE(Continued(step, plan, plan, 0, false, &first).ok());
  EXPECT_THAT(first.values, IsEmpty());
  EXPECT_TRUE(first.feeds[0].value.is_tensor());
  const int end = static_cast<int>(plan->steps().size());
  ASSERT_TRUE(Continued(step, plan, plan, end - 1, true, &last).ok());
  EXPECT_FALSE(last.feeds[0].value.has_value());  // nobody reads x any more
  std::vector<std::string> names;
  for (const auto& value : last.values) names.push_back(value.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("one", "two", "dw", "dx"));
  EXPECT_THAT(last.remaining, ElementsAre("total"));
  EXPECT_TRUE(last.parameters[1].written);
  EXPECT_FALSE(last.parameters[0].written);
}

// --- what does not fit ---

class DoesNotFit : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Continued(step_, plan_, plan_, 4, false, &snapshot_).ok());
    options_.parameters = &parameters_;
  }
  std::string Refusal(const StateSnapshot& snapshot) {
    ExecutionState state(plan_);
    const Status status = state.Restore(snapshot, options_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(state.stage(), ExecutionState::Stage::kIdle);
    return status.message();
  }

  const TrainingStep step_;
  const std::shared_ptr<const ExecutionPlan> plan_ = step_.Plan();
  ParameterSet parameters_ = step_.Parameters();
  RunOptions options_;
  StateSnapshot snapshot_;
};

TEST_F(DoesNotFit, TheFirstDifferenceIsNamed) {
  StateSnapshot other = snapshot_;
  other.feeds[0].spec.shape = Shape{5, 3};
  EXPECT_THAT(Refusal(other), HasSubstr("input 'x' is float32[5, 3] in the snapshot and "
                                        "float32[4, 3] in the program"));
  other = snapshot_;
  other.parameters[1].name = "sum";
  EXPECT_THAT(Refusal(other), HasSubstr("parameter 1 is 'sum' float32[4, 3] in the snapshot and "
                                        "'seen' float32[4, 3] in the program"));
  other = snapshot_;
  other.parameters[1].written = true;
  EXPECT_THAT(Refusal(other), HasSubstr("parameter 'seen' is updated in the snapshot"));
  other = snapshot_;
  other.remaining[other.remaining.size() - 2] = "three";
  EXPECT_THAT(Refusal(other), HasSubstr("step 2 from the end makes 'three' in the snapshot and "
                                        "'two' in the program"));
  other = snapshot_;
  other.remaining.insert(other.remaining.begin(), 40, "m");
  EXPECT_THAT(Refusal(other), HasSubstr("does not fit the program"));
  other = snapshot_;
  other.yield_index = 0;
  EXPECT_THAT(Refusal(other), HasSubstr("it waits at yield 0, the program does not"));
  other.yield_index = 1;
  EXPECT_THAT(Refusal(other), HasSubstr("it waits at yield 1, the program has 1"));
  ASSERT_FALSE(snapshot_.values.empty());
  other = snapshot_;
  other.values.clear();
  EXPECT_THAT(Refusal(other), HasSubstr("which later steps read, is not in the snapshot"));
  other = snapshot_;
  for (auto& value : other.values) value.value = Tensor::Scalar<float>(1);
  EXPECT_THAT(Refusal(other), HasSubstr("is float32[] in the snapshot and float32["));
  other = snapshot_;
  for (auto& value : other.values) value.parameter = "w";
  EXPECT_THAT(Refusal(other), HasSubstr("no parameter"));
  other = snapshot_;
  other.feeds[0].value = Ramp(Shape{2});
  EXPECT_THAT(Refusal(other), HasSubstr("input 'x' is float32[2]"));
}

// --- what is no snapshot ---

class NoSnapshot : public DoesNotFit {
 protected:
  // The error for a manifest that `change` has changed.
  template <typename Change>
  Status Error(const Change& change) {
    TensorFile contents;
    EXPECT_TRUE(AddSnapshot(snapshot_, &contents).ok());
    Json json = Json::parse(contents.metadata.at(kManifest));
    change(json);
    contents.metadata[kManifest] = json.dump();
    return TakeSnapshot(&contents).status();
  }
};

TEST_F(NoSnapshot, EveryFieldIsChecked) {
  EXPECT_TRUE(Error([](Json&) {}).ok());
  TensorFile contents;
  ASSERT_TRUE(AddSnapshot(snapshot_, &contents).ok());
  const Json manifest = Json::parse(contents.metadata.at(kManifest));
  const Json wrong[] = {nullptr,
                        true,
                        -7,
                        1.5,
                        "text",
                        Json::array({Json::object()}),
                        Json::array({Json::array()}),
                        Json{{"name", 3}}};
  for (const auto& [key, value] : manifest.items()) {
    EXPECT_EQ(Error([&, k = key](Json& json) { json.erase(k); }).code(), StatusCode::kInvalidModel)
        << key;
    for (const Json& other : wrong) {
      if (other.is_string() && value.is_string()) continue;  // any text is a tag
      EXPECT_EQ(Error([&, k = key](Json& json) { json[k] = other; }).code(),
                StatusCode::kInvalidModel)
          << key << " as " << other.dump();
    }
  }
  // Below the top: each field of each list's first entry.
  for (const auto& [key, value] : manifest.items()) {
    if (!value.is_array() || value.empty() || !value[0].is_object()) continue;
    for (const auto& [field, ignored] : value[0].items()) {
      if (key == "feeds" && field == "value") continue;
      EXPECT_EQ(Error([&, k = key, f = field](Json& json) { json[k][0].erase(f); }).code(),
                StatusCode::kInvalidModel)
          << key << "." << field;
      EXPECT_EQ(Error([&, k = key, f = field](Json& json) { json[k][0][f] = 1.5; }).code(),
                StatusCode::kInvalidModel)
          << key << "." << field;
    }
  }
}

TEST_F(NoSnapshot, TensorsThatAreNotThereOrTooLarge) {
  const auto set = [](const char* key, Json value) {
    return [key, value](Json& json) { json["values"][0]["value"][key] = value; };
  };
  EXPECT_THAT(Error(set("tensor", "state/99")).message(), HasSubstr("no tensor 'state/99'"));
  EXPECT_THAT(Error(set("tensor", "parameter/w")).message(), HasSubstr("no tensor"));
  EXPECT_THAT(Error(set("shape", {4, 4})).message(), HasSubstr("another number of elements"));
  EXPECT_THAT(Error(set("shape", {1})).message(), HasSubstr("another number of elements"));
  EXPECT_EQ(Error(set("shape", {1ll << 40, 1ll << 40})).code(), StatusCode::kInvalidModel);
  EXPECT_EQ(Error(set("shape", {-4, 3})).code(), StatusCode::kInvalidModel);
  EXPECT_EQ(Error(set("strings", {"a"})).code(), StatusCode::kInvalidModel);
  EXPECT_EQ(Error(set("keys", {})).code(), StatusCode::kInvalidModel);
  EXPECT_EQ(Error([](Json& json) {
              Json nested;
              for (int i = 0; i < 1000; ++i) nested = {{"sequence", {nested}}};
              json["values"][0]["value"] = nested;
            }).code(),
            StatusCode::kInvalidModel);
  EXPECT_EQ(Error([](Json& json) { json["format"] = 2; }).code(), StatusCode::kUnsupported);
  TensorFile contents;
  contents.metadata[kManifest] = "{";
  EXPECT_THAT(TakeSnapshot(&contents).status().message(), HasSubstr("no JSON"));
}

// All kinds of values that a run can hold.
TEST_F(NoSnapshot, SequencesMapsAndStringsComeBack) {
  StateSnapshot snapshot = snapshot_;
  const Tensor text = Tensor::Of<std::string>(Shape{2}, {"a", "\xc3\xbc"});
  snapshot.values = {
      {"sequence", RuntimeValue::Sequence({Ramp(Shape{2}), RuntimeValue(), RuntimeValue(text)})},
      {"map", RuntimeValue::Map(text, Ramp(Shape{2}).tensor())},
      {"absent", RuntimeValue()},
      {"empty", RuntimeValue(Tensor::Zeros(DType::kFloat32, Shape{0, 3}))},
      {"w", RuntimeValue(), "w"}};
  const StateSnapshot read = ThroughAFile(snapshot);
  ASSERT_EQ(read.values.size(), 5u);
  const auto& sequence = read.values[0].value.sequence();
  EXPECT_TRUE(SameBits(sequence[0], Ramp(Shape{2})));
  EXPECT_FALSE(sequence[1].has_value());
  EXPECT_EQ(sequence[2].tensor().data<std::string>()[1], "\xc3\xbc");
  EXPECT_EQ(read.values[1].value.map().keys.data<std::string>()[0], "a");
  EXPECT_FALSE(read.values[2].value.has_value());
  EXPECT_EQ(read.values[3].value.tensor().shape(), (Shape{0, 3}));
  EXPECT_EQ(read.values[4].parameter, "w");
  snapshot.values = {{"bytes", RuntimeValue(Tensor::Of<std::string>(Shape{1}, {"\xff"}))}};
  TensorFile contents;
  EXPECT_EQ(AddSnapshot(snapshot, &contents).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace caesura::testing
