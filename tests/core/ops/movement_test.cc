// SPDX-License-Identifier: Apache-2.0
// Movement, selection and shape kernels against loops over indices, on shapes that reach each of
// the movers' paths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;
using Strings = std::vector<std::string>;
constexpr int64_t kMostInt = std::numeric_limits<int64_t>::max(),
                  kLeastInt = std::numeric_limits<int64_t>::min();

// 0, 1, 2, ... in the given shape.
Tensor Counting(Shape shape) {
  std::vector<float> values(shape.elements());
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::Of<float>(std::move(shape), values);
}

Result<std::vector<RuntimeValue>> RunMovement(KernelCase node, int threads = 1) {
  node.threads = threads;
  return node.Run();
}
Tensor First(KernelCase node, int threads = 1) {
  return RunMovement(std::move(node), threads).value()[0].tensor();
}
void ExpectRefused(KernelCase node, const std::string& text) {
  const Status status = RunMovement(std::move(node)).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(text));
}

TEST(Movement, TransposesLikeIndexLoops) {
  const std::vector<std::pair<Shape, Ints>> cases = {{{33, 65}, {1, 0}},
                                                     {{4, 17, 40}, {2, 0, 1}},
                                                     {{4, 17, 40}, {1, 0, 2}},
                                                     {{3, 1, 20, 30}, {3, 1, 0, 2}},
                                                     {{2, 3, 4, 5}, {3, 2, 1, 0}},
                                                     {{200, 300}, {1, 0}},
                                                     {{0, 3}, {1, 0}},
                                                     {{7}, {0}},
                                                     {{8, 16, 12, 32}, {0, 2, 1, 3}}};
  for (const auto& [shape, perm] : cases) {
    const Tensor x = Counting(shape);
    const Ints strides = shape.Strides();
    for (int threads : {1, 3}) {
      const Tensor y = First(KernelCase("Transpose", {x}, {{"perm", perm}}), threads);
      for (int64_t i = 0; i < y.elements(); ++i) {
        int64_t rest = i, from = 0;
        for (int a = shape.rank() - 1; a >= 0; --a) {
          from += rest % y.shape()[a] * strides[perm[a]];
          rest /= y.shape()[a];
        }
        ASSERT_EQ(y.data<float>()[i], static_cast<float>(from)) << shape.ToString() << " at " << i;
      }
    }
  }
  ExpectRefused(KernelCase("Transpose", {Counting({2, 3})}, {{"perm", Ints{0, 0}}}), "permutation");
}

TEST(Movement, SlicesAsTheTextOfOpset13Says) {
  struct Case {
    int64_t start, end, step;
    std::vector<float> expected;
  };
  const std::vector<Case> cases = {{1, 4, 1, {1, 2, 3}},
                                   {-2, kMostInt, 1, {3, 4}},
                                   {4, kLeastInt, -1, {4, 3, 2, 1, 0}},
                                   {kMostInt, kLeastInt, -2, {4, 2, 0}},
                                   {3, 1, 1, {}},
                                   {0, kMostInt, kMostInt, {0}},
                                   {-1, 0, kLeastInt, {4}},
                                   {kLeastInt, kMostInt, 3, {0, 3}},
                                   {-9, kLeastInt, -1, {0}},  // NumPy: nothing
                                   {kLeastInt, 0, -1, {}}};
  for (const Case& c : cases) {
    const Tensor y =
        First(KernelCase("Slice", {Counting({5}), IntVector({c.start}), IntVector({c.end}),
                                   IntVector({-1}), IntVector({c.step})}));
    EXPECT_THAT(y.ToVector<float>(), ElementsAreArray(c.expected))
        << c.start << ":" << c.end << ":" << c.step;
  }
  ExpectRefused(KernelCase("Slice", {Counting({5}), IntVector({0}), IntVector({1}), IntVector({0}),
                                     IntVector({0})}),
                "steps");
  ExpectRefused(KernelCase("Slice", {Counting({5}), IntVector({0, 0}), IntVector({1, 1}),
                                     IntVector({0, -1})}),
                "twice");
}

std::vector<float> Padded(const char* mode, int64_t before, int64_t after) {
  const std::vector<RuntimeValue> inputs = {Counting({4}), IntVector({before, after}),
                                            Tensor::Scalar(9.0f)};
  return First(KernelCase("Pad", inputs, {{"mode", std::string(mode)}})).ToVector<float>();
}

TEST(Movement, PadsInAllModes) {
  EXPECT_THAT(Padded("constant", 2, 1), ElementsAre(9, 9, 0, 1, 2, 3, 9));
  EXPECT_THAT(Padded("edge", 2, 1), ElementsAre(0, 0, 0, 1, 2, 3, 3));
  EXPECT_THAT(Padded("reflect", 5, 4), ElementsAre(1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1));
  EXPECT_THAT(Padded("wrap", 5, 1), ElementsAre(3, 0, 1, 2, 3, 0, 1, 2, 3, 0));
  EXPECT_THAT(Padded("reflect", -1, 2), ElementsAre(1, 2, 3, 2, 1));
  EXPECT_THAT(Padded("constant", -3, -1), ElementsAre());
  ExpectRefused(KernelCase("Pad", {Counting({4}), IntVector({-3, -2})}), "negative");
  ExpectRefused(KernelCase("Pad", {Counting({4}), IntVector({kMostInt, 1})}), "too large");
  ExpectRefused(
      KernelCase("Pad", {Counting({0}), IntVector({1, 0})}, {{"mode", std::string("edge")}}),
      "no element");
}

TEST(Movement, SplitsWhatConcatJoins) {
  for (int64_t axis : {0, 1, -1}) {
    std::vector<RuntimeValue> parts;
    Ints extents = {3, 0, 20, 1};
    for (int64_t extent : extents) {
      Shape shape = {6, 5, 4};
      shape[static_cast<int>((axis + 3) % 3)] = extent;
      parts.push_back(Counting(shape));
    }
    const Tensor joined = First(KernelCase("Concat", parts, {{"axis", axis}}), 2);
    const auto back =
        RunMovement(KernelCase("Split", {joined, IntVector(extents)}, {{"axis", axis}}, "", 4), 2)
            .value();
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(back[i].tensor().shape(), parts[i].tensor().shape());
      EXPECT_EQ(back[i].tensor().ToVector<float>(), parts[i].tensor().ToVector<float>());
    }
  }
  ExpectRefused(KernelCase("Concat", {Counting({2, 3}), Counting({2, 4})}, {{"axis", int64_t{0}}}),
                "input 1");
}

TEST(Movement, RepeatsByExpandAndTile) {
  const Tensor x = Counting({2, 1, 3});
  const Tensor expanded = First(KernelCase("Expand", {x, IntVector({4, 1, 5, 1})}), 2);
  EXPECT_EQ(expanded.shape(), (Shape{4, 2, 5, 3}));
  for (int64_t i = 0; i < expanded.elements(); ++i) {
    ASSERT_EQ(expanded.data<float>()[i], static_cast<float>(i / 15 % 2 * 3 + i % 3));
  }
  const Tensor tiled = First(KernelCase("Tile", {Counting({2, 3}), IntVector({2, 2})}));
  EXPECT_THAT(tiled.ToVector<float>(),
              ElementsAre(0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5));
  ExpectRefused(KernelCase("Expand", {Counting({2, 3}), IntVector({4, 3})}), "broadcast");
  ExpectRefused(KernelCase("Tile", {Counting({2, 3}), IntVector({2, kMostInt})}), "repeats");
}

TEST(Movement, MovesStrings) {
  const Tensor x = Tensor::Of<std::string>({2, 2}, {"a", "b", std::string(100, 'c'), "d"});
  const Tensor y = First(KernelCase("Transpose", {x}));
  EXPECT_THAT(Strings(y.data<std::string>(), y.data<std::string>() + 4),
              ElementsAre("a", std::string(100, 'c'), "b", "d"));
  const Tensor padded = First(KernelCase("Pad", {x, IntVector({0, 1, 0, 0})}));
  EXPECT_EQ(padded.data<std::string>()[0], "");
  EXPECT_EQ(padded.data<std::string>()[1], "a");
}

TEST(Movement, KeepsTriangles) {
  for (int64_t k : {kLeastInt, int64_t{-1}, int64_t{0}, int64_t{2}, kMostInt}) {
    for (int64_t upper : {0, 1}) {
      const Tensor y =
          First(KernelCase("Trilu", {Counting({2, 3, 4}), Tensor::Scalar(k)}, {{"upper", upper}}));
      for (int64_t i = 0; i < 24; ++i) {
        const int64_t above = i % 4 - i / 4 % 3;
        const bool kept = upper ? above >= k : above <= k;
        ASSERT_EQ(y.data<float>()[i], kept ? static_cast<float>(i) : 0.0f) << "k " << k;
      }
    }
  }
}

TEST(Selection, FindsUniqueValues) {
  const float nan = std::nanf("");
  const auto out =
      RunMovement(KernelCase("Unique", {Tensor::Of<float>({6}, {3, nan, 1, nan, 3, 2})}, {}, "", 4))
          .value();
  EXPECT_EQ(out[0].tensor().elements(), 4);
  EXPECT_THAT(out[1].tensor().ToVector<int64_t>(), ElementsAre(2, 5, 0, 1));
  EXPECT_THAT(out[2].tensor().ToVector<int64_t>(), ElementsAre(2, 3, 0, 3, 2, 1));
  EXPECT_THAT(out[3].tensor().ToVector<int64_t>(), ElementsAre(1, 1, 2, 2));
  const Tensor words = Tensor::Of<std::string>({3}, {"b", "a", "b"});
  const auto first =
      RunMovement(KernelCase("Unique", {words}, {{"sorted", int64_t{0}}}, "", 4)).value();
  EXPECT_EQ(first[0].tensor().data<std::string>()[0], "b");
  EXPECT_THAT(first[2].tensor().ToVector<int64_t>(), ElementsAre(0, 1, 0));
}

TEST(Selection, CompressesByShortConditions) {
  const Tensor condition = Tensor::Of<bool>({2}, {false, true});
  EXPECT_THAT(First(KernelCase("Compress", {Counting({2, 3}), condition}, {{"axis", int64_t{1}}}))
                  .ToVector<float>(),
              ElementsAre(1, 4));
  EXPECT_THAT(First(KernelCase("Compress", {Counting({2, 3}), condition})).ToVector<float>(),
              ElementsAre(1));
}

TEST(Shapes, ReshapesAsSpecified) {
  auto reshaped = [](Shape shape, Ints target, int64_t allowzero = 0) {
    return First(KernelCase("Reshape", {Counting(shape), IntVector(target)},
                            {{"allowzero", allowzero}}))
        .shape();
  };
  EXPECT_EQ(reshaped({2, 3, 4}, {0, -1}), (Shape{2, 12}));
  EXPECT_EQ(reshaped({2, 0, 3}, {0, 0, -1}), (Shape{2, 0, 3}));
  EXPECT_EQ(reshaped({0, 3, 4}, {0, -1}), (Shape{0, 12}));
  EXPECT_EQ(reshaped({0, 3}, {3, 0}, 1), (Shape{3, 0}));
  EXPECT_EQ(reshaped({1}, {}), Shape());
  for (const Ints& wrong :
       {Ints{5, -1}, Ints{-1, -1}, Ints{7}, Ints{-2, 3}, Ints{2, 3, 0}, Ints{kMostInt, 8}}) {
    ExpectRefused(KernelCase("Reshape", {Counting({2, 3}), IntVector(wrong)}), "[Reshape");
  }
  ExpectRefused(
      KernelCase("Reshape", {Counting({0, 3}), IntVector({0, -1})}, {{"allowzero", int64_t{1}}}),
      "-1");
}

TEST(Shapes, CountsRanges) {
  auto range = [](int64_t start, int64_t limit, int64_t delta) {
    return RunMovement(
        KernelCase("Range", {Tensor::Scalar(start), Tensor::Scalar(limit), Tensor::Scalar(delta)}));
  };
  EXPECT_THAT(range(10, 0, -4).value()[0].tensor().ToVector<int64_t>(), ElementsAre(10, 6, 2));
  EXPECT_THAT(range(kMostInt - 1, kMostInt, 5).value()[0].tensor().ToVector<int64_t>(),
              ElementsAre(kMostInt - 1));
  EXPECT_EQ(range(0, 5, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(range(kLeastInt, kMostInt, 1).status().code(), StatusCode::kInvalidArgument);
  ExpectRefused(KernelCase("Range", {Tensor::Scalar(0.0f), Tensor::Scalar(std::nanf("")),
                                     Tensor::Scalar(1.0f)}),
                "delta");
}

}  // namespace
}  // namespace caesura
