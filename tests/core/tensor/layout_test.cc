// SPDX-License-Identifier: Apache-2.0
// Each layout is compared with the same transposes, slices and reshapes of numbers in a list.
#include "core/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace caesura {
namespace {

using ::testing::ElementsAre;

// The elements of a view of `all`, in row-major order.
std::vector<int32_t> ViewOf(const std::vector<int32_t>& all, const Shape& shape,
                            const Layout& layout) {
  std::vector<int32_t> out(static_cast<size_t>(shape.elements()));
  CopyDense(all.data(), shape, layout, sizeof(int32_t), out.data());
  return out;
}

std::vector<int32_t> Counted(int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(LayoutTest, ATransposeReadsColumns) {
  const Layout columns = Permuted({2, 3}, {}, {1, 0});
  EXPECT_FALSE(columns.dense());
  EXPECT_THAT(ViewOf(Counted(6), {3, 2}, columns), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(LayoutTest, AStrideOfZeroRepeats) {
  EXPECT_THAT(ViewOf({7, 8}, {2, 3}, {{1, 0}, 0}), ElementsAre(7, 7, 7, 8, 8, 8));
  EXPECT_THAT(ViewOf({7, 8, 9}, {}, {{}, 2}), ElementsAre(9));
  EXPECT_TRUE(ViewOf({7}, {0, 3}, {{3, 1}, 0}).empty());
}

TEST(LayoutTest, SimplifiedIsDenseWhereItSaysTheSame) {
  EXPECT_TRUE(Simplified({2, 3}, {{3, 1}, 0}).dense());
  EXPECT_TRUE(Simplified({2, 1}, {{1, 99}, 0}).dense());  // no second element to step to
  EXPECT_FALSE(Simplified({2, 3}, {{1, 2}, 0}).dense());
  EXPECT_FALSE(Simplified({2, 3}, {{3, 1}, 4}).dense());
}

TEST(LayoutTest, ReshapedOnlyWhereStridesCanSayIt) {
  // Rows of a matrix that is wider than they are.
  const Layout rows = {{10, 1}, 2};
  EXPECT_EQ(Reshaped({2, 6}, rows, {2, 2, 3}), (Layout{{10, 3, 1}, 2}));
  EXPECT_EQ(Reshaped({2, 6}, rows, {12}), std::nullopt);
  EXPECT_EQ(Reshaped({2, 6}, rows, {4, 3}), std::nullopt);
  EXPECT_EQ(Reshaped({2, 6}, {}, {4, 3}), Layout());
}

// Whatever Reshaped answers must read the same elements, and come back the same way.
TEST(LayoutTest, ReshapedViewsReadTheSameElements) {
  std::mt19937 random(4);
  const Shape shapes[] = {{24}, {2, 12}, {4, 6}, {2, 3, 4}, {1, 24, 1}, {2, 2, 2, 3}, {3, 1, 8}};
  int possible = 0, impossible = 0;
  for (int turn = 0; turn < 500; ++turn) {
    const Shape& base = shapes[random() % std::size(shapes)];
    std::vector<int64_t> permutation(base.rank());
    std::iota(permutation.begin(), permutation.end(), 0);
    std::shuffle(permutation.begin(), permutation.end(), random);
    const Layout layout = Permuted(base, {}, permutation);
    Shape from = base;
    for (int d = 0; d < base.rank(); ++d) from[d] = base[static_cast<int>(permutation[d])];
    const Shape& to = shapes[random() % std::size(shapes)];
    const std::vector<int32_t> all = Counted(24), expected = ViewOf(all, from, layout);
    const std::optional<Layout> reshaped = Reshaped(from, layout, to);
    ++(reshaped ? possible : impossible);
    if (!reshaped) continue;
    EXPECT_EQ(ViewOf(all, to, *reshaped), expected) << from.ToString() << " " << to.ToString();
    std::vector<int32_t> back(24, -1);
    CopyToLayout(expected.data(), to, *reshaped, sizeof(int32_t), back.data());
    EXPECT_EQ(back, all) << from.ToString() << " " << to.ToString();
  }
  EXPECT_GT(possible, 50);
  EXPECT_GT(impossible, 50);
}

TEST(LayoutTest, ElementsOfEverySize) {
  for (const size_t bytes : {1, 2, 4, 8, 16}) {
    std::vector<char> from(6 * bytes), to(6 * bytes), back(6 * bytes);
    std::iota(from.begin(), from.end(), '\0');
    const Layout columns = Permuted({2, 3}, {}, {1, 0});
    CopyDense(from.data(), {3, 2}, columns, bytes, to.data());
    EXPECT_EQ(std::vector<char>(to.begin() + bytes, to.begin() + 2 * bytes),
              std::vector<char>(from.begin() + 3 * bytes, from.begin() + 4 * bytes));
    CopyToLayout(to.data(), {3, 2}, columns, bytes, back.data());
    EXPECT_EQ(back, from) << bytes;
  }
}

}  // namespace
}  // namespace caesura
