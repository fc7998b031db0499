// SPDX-License-Identifier: Apache-2.0
// Kernels that a test has made wrong in one element are found in whole steps; so is the first NaN
// of a net whose learning rate is too high.
#include "core/profile/value_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plugin/plugin_provider.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

// Notes which node ran when the kernel was spoilt.
class SpoiltNode : public ExecutionObserver {
 public:
  explicit SpoiltNode(const FailingProvider& provider) : provider_(provider) {}
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState&, int step,
                 const Status&) override {
    if (provider_.spoilt() && label.empty()) label = plan.steps()[step].node->Label();
  }
  std::string label;

 private:
  const FailingProvider& provider_;
};

std::string Recorded(const TemporaryFolder& folder, TrainingSession& session,
                     const NamedValues& batch) {
  session.control().SuspendAt(0);
  EXPECT_EQ(session.Step(batch).status().code(), StatusCode::kSuspended);
  const std::string path = folder.path("step");
  EXPECT_TRUE(session.Save(path).ok());
  EXPECT_TRUE(session.DropStep().ok());
  return path;
}

Status Replay(TrainingSession& session, const std::string& path,
              std::vector<ExecutionObserver*> observers) {
  const Status restored = session.Restore(path).status();
  return restored.ok() ? session.ResumeStep(std::move(observers)).status() : restored;
}

void ExpectEachWrongKernelIsNamed(RealModel real, int every) {
  TemporaryFolder folder;
  auto session = SessionOf(real);
  const std::string path = Recorded(folder, *session, real.batches[0]);
  ValueLog expected;
  ASSERT_TRUE(Replay(*session, path, {&expected}).ok());
  auto spoiling = std::make_shared<FailingProvider>(TrainingCpu());
  real.options.providers = {spoiling};
  auto other = SessionOf(real);
  ValueLog undisturbed;
  ASSERT_TRUE(Replay(*other, path, {&undisturbed}).ok());
  EXPECT_FALSE(FirstDifference(expected, undisturbed, 0));
  const auto calls = static_cast<int>(undisturbed.nodes().size());
  int found = 0;
  for (int k = 0; k < calls; k += every) {
    SCOPED_TRACE("kernel " + std::to_string(k) + " of " + std::to_string(calls));
    spoiling->SpoilAt(k);
    ValueLog got;
    SpoiltNode spoilt(*spoiling);
    ASSERT_TRUE(Replay(*other, path, {&got, &spoilt}).ok());
    if (!spoiling->spoilt()) continue;  // makes no float32
    const auto difference = FirstDifference(expected, got, 1e-6);
    ASSERT_TRUE(difference);
    EXPECT_EQ(difference->node.label, spoilt.label) << difference->ToString();
    EXPECT_NEAR(difference->got - difference->expected, 1, 1e-3);
    ++found;
  }
  EXPECT_GT(found, 3);
  spoiling->SpoilAt(-1);
}

TEST(ValueWatch, NamesTheWrongKernelOfAnMlp) { ExpectEachWrongKernelIsNamed(Mlp(), 1); }
TEST(ValueWatch, NamesTheWrongKernelOfTheDigits) { ExpectEachWrongKernelIsNamed(Digits(), 1); }
TEST(ValueWatch, NamesTheWrongKernelOfTheGpt) { ExpectEachWrongKernelIsNamed(CharGpt(), 5); }
TEST(ValueWatch, NamesTheWrongKernelOfALlama) { ExpectEachWrongKernelIsNamed(Llama(), 5); }

// The same step with and without fused nodes: what both have agrees.
TEST(ValueWatch, ComparesOtherPasses) {
  TemporaryFolder folder;
  RealModel real = CharGpt();
  auto session = SessionOf(real);
  const std::string path = Recorded(folder, *session, real.batches[0]);
  ValueLog fused, taken_apart;
  ASSERT_TRUE(Replay(*session, path, {&fused}).ok());
  real.options.disabled_passes = {"row_fusion"};
  auto other = SessionOf(real);
  ASSERT_TRUE(Replay(*other, path, {&taken_apart}).ok());
  EXPECT_GT(taken_apart.nodes().size(), fused.nodes().size());
  const auto difference = FirstDifference(fused, taken_apart, 1e-4);
  EXPECT_FALSE(difference) << difference->ToString();
}

// A step that was recorded on the CPU's kernels, on OpenVINO's: they agree, but not to the last
// bit. (The digits' part on OpenVINO is one small convolution, whose bits are the same.)
TEST(ValueWatch, NamesWhereOpenVinoParts) {
  auto openvino = ProviderByName("OpenVINOExecutionProvider");
  if (openvino.status().code() == StatusCode::kNotFound) GTEST_SKIP() << "built without OpenVINO";
  ASSERT_TRUE(openvino.ok()) << openvino.status().ToString();
  TemporaryFolder folder;
  RealModel real = CharGpt();
  auto session = SessionOf(real);
  const std::string path = Recorded(folder, *session, real.batches[0]);
  ValueLog ours, its;
  ASSERT_TRUE(Replay(*session, path, {&ours}).ok());
  real.options.providers = {*openvino, TrainingCpu()};
  auto other = SessionOf(real);
  const Status replayed = Replay(*other, path, {&its});
  ASSERT_TRUE(replayed.ok()) << replayed.ToString();
  EXPECT_THAT(its.nodes(), Contains(Field(&WatchedNode::provider, (*openvino)->name())));
  const auto far = FirstDifference(ours, its, 1e-3);
  EXPECT_FALSE(far) << far->ToString();
  const auto parts = FirstDifference(ours, its, 0);
  ASSERT_TRUE(parts);
  std::printf("the runs part at %s\n", parts->ToString().c_str());
  EXPECT_THAT(parts->ToString(), HasSubstr(" on "));
}

TEST(ValueWatch, NamesTheNodeThatMakesTheFirstNan) {
  RealModel real = Llama();
  real.options.step.optimizer = Sgd{.learning_rate = 1e20};
  auto session = SessionOf(real);
  NonfiniteFinder fine;
  ASSERT_TRUE(session->Step(real.batches[0], {&fine}).ok());
  EXPECT_FALSE(fine.first_nan());
  NonfiniteFinder finder;
  ASSERT_TRUE(session->Step(real.batches[1], {&finder}).ok());
  ASSERT_TRUE(finder.first_nan());
  ASSERT_TRUE(finder.first_infinite());
  for (const ValueRange& input : finder.first_nan()->inputs) EXPECT_EQ(input.nans, 0);
  EXPECT_THAT(finder.first_nan()->ToString(), HasSubstr(" on CPUExecutionProvider\n"));
  EXPECT_THAT(finder.first_nan()->ToString(), HasSubstr("\n  reads "));
}

}  // namespace
}  // namespace caesura::testing
