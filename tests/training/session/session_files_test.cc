// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a session's parts, written and read without the session.
#include "training/session/session_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/temporary_folder.h"
#include "tests/training/session/session_parts.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

TEST(SessionFilesTest, AnotherSessionGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  PartsOfASession here, there;
  ASSERT_TRUE(here.Step(1).ok());
  ASSERT_TRUE(here.parameters.Set("b", Tensor::Of<float>({2}, {3, 4})).ok());
  here.runs.set_learning_rate(0.125);
  ASSERT_TRUE(SaveSession(here.all(), folder.path("c"), {{"epoch", int64_t{7}}}).ok());
  const auto properties = RestoreSession(there.all(), folder.path("c"));
  ASSERT_TRUE(properties.ok()) << properties.status().ToString();
  EXPECT_EQ(std::get<int64_t>(properties->at("epoch")), 7);
  EXPECT_EQ(properties->size(), 1u);
  EXPECT_EQ(there.progress.updates, 1);
  EXPECT_EQ(there.progress.learning_rate(), 0.125);
  EXPECT_EQ(there.Value("b"), here.Value("b"));
  EXPECT_EQ(there.Step(2).value(), here.Step(2).value());
  EXPECT_EQ(there.Weights(), here.Weights());
}

TEST(SessionFilesTest, TheStepThatWaitsIsInTheFile) {
  const TemporaryFolder folder;
  PartsOfASession here, there;
  here.control.SuspendAt(1);
  ASSERT_FALSE(here.Step().ok());
  ASSERT_TRUE(SaveSession(here.all(), folder.path("c"), {}).ok());
  ASSERT_TRUE(RestoreSession(there.all(), folder.path("c")).ok());
  ASSERT_TRUE(there.runs.suspended());
  EXPECT_FALSE(there.parameters.Set("w", Tensor::Of<float>({2, 2}, {1, 2, 3, 4})).ok());
  EXPECT_EQ(there.runs.Resume({}).value(), here.runs.Resume({}).value());
  EXPECT_EQ(there.Weights(), here.Weights());
}

TEST(SessionFilesTest, AFileThatDoesNotFitChangesNothing) {
  const TemporaryFolder folder;
  PartsOfASession here, there([](TrainingOptions& o) { o.step.optimizer = Sgd{.momentum = 0.5}; });
  ASSERT_TRUE(here.Step().ok());
  ASSERT_TRUE(SaveSession(here.all(), folder.path("c"), {}).ok());
  const std::vector<float> before = there.Weights();
  const Status refused = RestoreSession(there.all(), folder.path("c")).status();
  EXPECT_THAT(refused.message(), HasSubstr("does not fit the model:\n"));
  EXPECT_THAT(refused.message(), HasSubstr("'optimizer.momentum_buffer.w' is missing"));
  EXPECT_EQ(there.Weights(), before);
  EXPECT_EQ(there.progress.updates, 0);
  EXPECT_EQ(there.parameters.lost(), std::nullopt);
}

TEST(SessionFilesTest, ARestoreMakesLostParametersWhole) {
  const TemporaryFolder folder;
  PartsOfASession parts;
  ASSERT_TRUE(SaveSession(parts.all(), folder.path("c"), {}).ok());
  parts.parameters.set_lost(std::vector<std::string>{"w"});
  EXPECT_THAT(SaveSession(parts.all(), folder.path("d"), {}).message(),
              HasSubstr("nothing worth saving"));
  ASSERT_TRUE(RestoreSession(parts.all(), folder.path("c")).ok());
  EXPECT_EQ(parts.parameters.lost(), std::nullopt);
  EXPECT_TRUE(parts.Step().ok());
}

}  // namespace
}  // namespace caesura::testing
