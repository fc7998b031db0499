// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/feeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

class BindsFeeds : public ::testing::Test {
 protected:
  std::string Error(const NamedValues& feeds, FeedCheck check = FeedCheck::kType,
                    const NamedValues& own = {}) const {
    return BindFeeds(*graph_, feeds, check, own).status().message();
  }
  const std::shared_ptr<Graph> graph_ = GraphOf(
      "(float[2] x, float[2] w, int64 step) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) "
      "}");
  const RuntimeValue x_ = Ramp(Shape{2}), step_ = Tensor::Scalar<int64_t>(3);
};

TEST_F(BindsFeeds, PutsThemInTheOrderOfTheInputs) {
  const Values bound = BindFeeds(*graph_, {{"step", step_}, {"x", x_}}, FeedCheck::kType).value();
  ASSERT_EQ(bound.size(), 3u);
  EXPECT_EQ(bound[0].tensor().raw(), x_.tensor().raw());
  EXPECT_FALSE(bound[1].has_value()) << "the initializer stands for it";
  EXPECT_EQ(bound[2].tensor().raw(), step_.tensor().raw());
}

TEST_F(BindsFeeds, NamesAllThatIsMissingOrUnknown) {
  EXPECT_EQ(Error({}), "no value given for input(s) 'x', 'step'");
  EXPECT_EQ(Error({{"x", x_}, {"step", step_}, {"a", x_}, {"b", x_}}),
            "the model has no input(s) 'a', 'b'");
}

TEST_F(BindsFeeds, RefusesOtherTypes) {
  const RuntimeValue longer = Ramp(Shape{3}), ints = Tensor::Of<int64_t>(Shape{2}, {1, 2});
  EXPECT_THAT(Error({{"x", longer}, {"step", step_}}), HasSubstr("input 'x' is float32[2], got"));
  EXPECT_EQ(Error({{"x", longer}, {"step", step_}}, FeedCheck::kDType), "");
  EXPECT_THAT(Error({{"x", ints}, {"step", step_}}, FeedCheck::kDType),
              HasSubstr("input 'x' is float32[2], got"));
}

TEST_F(BindsFeeds, TakesWhatTheSessionAddsFromTheSessionOnly) {
  const NamedValues own = {{"step", step_}};
  EXPECT_EQ(Error({{"x", x_}}, FeedCheck::kType, own), "");
  EXPECT_EQ(Error({{"x", x_}, {"step", step_}}, FeedCheck::kType, own),
            "the model has no input(s) 'step'");
}

}  // namespace
}  // namespace caesura::testing
