// SPDX-License-Identifier: Apache-2.0
#include "training/files/training_curves.h"

#include <gtest/gtest.h>

namespace caesura {
namespace {

TEST(TrainingCurvesTest, KeepsEveryUpdateOfAShortRun) {
  TrainingCurves curves;
  for (int i = 1; i <= 5; ++i) curves.Add(i, 10 - i, 0.1 * i);
  ASSERT_EQ(curves.points().size(), 5u);
  EXPECT_EQ(curves.points()[3].update, 4);
  EXPECT_EQ(curves.points()[3].loss, 6);
  EXPECT_EQ(curves.points()[3].learning_rate, 0.1 * 4);
}

TEST(TrainingCurvesTest, ThinsALongRunByMeans) {
  TrainingCurves curves;
  constexpr int64_t kUpdates = 10 * static_cast<int64_t>(TrainingCurves::kMaxPoints) + 3;
  const auto* const points = curves.points().data();
  for (int64_t i = 1; i <= kUpdates; ++i)
    curves.Add(i, static_cast<double>(i), 2.0 * static_cast<double>(i));
  EXPECT_LE(curves.points().size(), TrainingCurves::kMaxPoints);
  EXPECT_GT(curves.points().size(), TrainingCurves::kMaxPoints / 2);
  EXPECT_EQ(curves.points().data(), points);  // took no memory
  EXPECT_EQ(curves.points().back().update, kUpdates);
  int64_t before = 0;
  for (const auto& point : curves.points()) {
    // The mean of the updates since the point before.
    EXPECT_DOUBLE_EQ(point.loss, 0.5 * static_cast<double>(before + 1 + point.update));
    EXPECT_EQ(point.learning_rate, 2.0 * static_cast<double>(point.update));
    before = point.update;
  }
}

TEST(TrainingCurvesTest, BeginsAnewWhenCleared) {
  TrainingCurves curves;
  for (int64_t i = 1; i <= 3 * static_cast<int64_t>(TrainingCurves::kMaxPoints); ++i)
    curves.Add(i, 1, 1);
  curves.AddValidation({1, 2.0, {}});
  const auto* const points = curves.points().data();
  curves.Clear();
  EXPECT_TRUE(curves.points().empty() && curves.validations().empty());
  for (int i = 1; i <= 3; ++i) curves.Add(i, i, 1);
  ASSERT_EQ(curves.points().size(), 3u);  // a point an update again
  EXPECT_EQ(curves.points().data(), points);
}

}  // namespace
}  // namespace caesura
