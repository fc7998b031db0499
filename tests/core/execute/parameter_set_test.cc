// SPDX-License-Identifier: Apache-2.0
#include "core/execute/parameter_set.h"

#include <gtest/gtest.h>

namespace caesura {
namespace {

TEST(ParameterSetTest, FindsByName) {
  ParameterSet set;
  EXPECT_EQ(set.Add("w", Tensor::Scalar<float>(1)), 0);
  EXPECT_EQ(set.Add("b", Tensor::Scalar<float>(2)), 1);
  EXPECT_EQ(set.size(), 2);
  EXPECT_EQ(set.Find("b"), 1);
  EXPECT_EQ(set.name(1), "b");
  EXPECT_EQ(set.Find("c"), -1);
}

TEST(ParameterSetTest, SharesTheBytesWithItsOwner) {
  const Tensor own = Tensor::Scalar<float>(1);
  ParameterSet set;
  set.Add("w", own);
  own.data<float>()[0] = 3;
  EXPECT_EQ(set.tensor(0).data<float>()[0], 3);
}

// A cache that has seen a version must never meet it again with other bytes.
TEST(ParameterSetTest, EachChangeIsAVersionThatNeverWas) {
  ParameterSet set;
  set.Add("w", Tensor::Scalar<float>(1));
  set.Add("b", Tensor::Scalar<float>(2));
  uint64_t newest = set.version(1);
  EXPECT_GT(newest, set.version(0));
  const auto moved = [&](int i) {
    const bool higher = set.version(i) > newest;
    newest = std::max(newest, set.version(i));
    return higher;
  };
  set.Touch(0);
  EXPECT_TRUE(moved(0));
  EXPECT_LT(set.version(1), newest) << "the other one stands";
  set.Replace(1, Tensor::Scalar<float>(9));
  EXPECT_TRUE(moved(1));
  EXPECT_EQ(set.tensor(1).data<float>()[0], 9);
  const uint64_t before = set.version(0);
  set.TouchAll();
  EXPECT_TRUE(moved(1));
  EXPECT_GT(set.version(0), before);
}

}  // namespace
}  // namespace caesura
