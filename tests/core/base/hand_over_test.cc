// SPDX-License-Identifier: Apache-2.0
#include "core/base/hand_over.h"

#include <gtest/gtest.h>

namespace caesura {
namespace {

TEST(HandOver, GivesAnObjectOnceAndOfItsTypeAlone) {
  const auto object = std::make_shared<int>(7);
  const int64_t number = HandOver(object);
  EXPECT_NE(number, 0);
  EXPECT_EQ(object.use_count(), 2);
  EXPECT_EQ(TakeOver<float>(number), nullptr);
  EXPECT_EQ(TakeOver<int>(number), object);
  EXPECT_EQ(TakeOver<int>(number), nullptr);
  EXPECT_EQ(object.use_count(), 1);
  EXPECT_EQ(TakeOver<int>(0), nullptr);
  EXPECT_EQ(HandOver(std::shared_ptr<int>()), 0);
}

TEST(HandOver, KeepsObjectsApart) {
  const int64_t first = HandOver(std::make_shared<int>(1));
  const int64_t second = HandOver(std::make_shared<int>(2));
  EXPECT_EQ(*TakeOver<int>(second), 2);
  EXPECT_EQ(*TakeOver<int>(first), 1);
}

}  // namespace
}  // namespace caesura
