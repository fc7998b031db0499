// SPDX-License-Identifier: Apache-2.0
// Resize, GridSample, regions and boxes: worked values, odd numbers, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;
using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

Tensor FloatTensor(Floats values) {
  return Tensor::Of<float>({static_cast<int64_t>(values.size())}, values);
}

Result<std::vector<RuntimeValue>> RunImage(KernelCase node) { return node.Run(); }
Floats FloatsOf(KernelCase node) {
  return RunImage(std::move(node)).value()[0].tensor().ToVector<float>();
}

// A row resized to `size` with the given attributes.
Floats Resized(Floats row, int64_t size, AttributeMap attributes) {
  return FloatsOf(KernelCase("Resize", {FloatTensor(std::move(row)), {}, {}, IntVector({size})},
                             std::move(attributes)));
}

TEST(Resize, InterpolatesRows) {
  const AttributeMap linear = {{"mode", Text("linear")}};
  EXPECT_THAT(Resized({0, 4}, 4, linear), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(Resized({0, 4, 8, 12}, 2, linear), ElementsAre(2, 10));
  const AttributeMap corners = {{"mode", Text("linear")},
                                {"coordinate_transformation_mode", Text("align_corners")}};
  EXPECT_THAT(Resized({0, 6}, 4, corners), Pointwise(FloatNear(1e-6f), {0.0f, 2.0f, 4.0f, 6.0f}));
  const AttributeMap smooth = {{"mode", Text("linear")}, {"antialias", int64_t{1}}};
  EXPECT_THAT(Resized({0, 0, 8, 0, 0, 0, 0, 0}, 2, smooth)[0], FloatNear(2, 0.3f));
  EXPECT_THAT(Resized({1, 2, 3}, 6, {}), ElementsAre(1, 1, 2, 2, 3, 3));
}

// floor(input_dimension * scale), where the scale is a float: 10 times 0.7f is below 7.
TEST(Resize, RoundsTheExtentDown) {
  for (const auto& [scale, extent] : {std::pair(0.7f, 6), {0.75f, 7}, {1.1f, 11}, {1.4f, 13}}) {
    const Tensor x = Tensor::Zeros(DType::kFloat32, Shape{10});
    EXPECT_EQ(FloatsOf(KernelCase("Resize", {x, {}, FloatTensor({scale})})).size(), extent)
        << scale;
  }
}

// theta is the identity, so that the grid holds the places themselves.
TEST(AffineGrid, HasASinglePlaceAtTheStart) {
  const Tensor theta = Tensor::Of<float>({1, 2, 3}, {1, 0, 0, 0, 1, 0});
  const auto grid = [&](int64_t align_corners) {
    return FloatsOf(KernelCase("AffineGrid", {theta, IntVector({1, 1, 1, 2})},
                               {{"align_corners", align_corners}}));
  };
  EXPECT_THAT(grid(1), ElementsAre(-1, -1, 1, -1));
  EXPECT_THAT(grid(0), ElementsAre(-0.5f, 0, 0.5f, 0));
}

TEST(Resize, TakesTheRegionAndFillsOutside) {
  const AttributeMap crop = {{"mode", Text("linear")},
                             {"coordinate_transformation_mode", Text("tf_crop_and_resize")},
                             {"extrapolation_value", 9.0f}};
  const KernelCase node(
      "Resize", {FloatTensor({0, 1, 2, 3, 4}), FloatTensor({0.5f, 1.5f}), {}, IntVector({3})},
      crop);
  EXPECT_THAT(FloatsOf(node), ElementsAre(2, 4, 9));
}

TEST(Resize, RoundsIntegersAndMovesStrings) {
  const Tensor bytes = Tensor::Of<uint8_t>({2}, {0, 255});
  const auto out =
      RunImage(KernelCase("Resize", {bytes, {}, {}, IntVector({4})}, {{"mode", Text("cubic")}}))
          .value();
  EXPECT_THAT(out[0].tensor().ToVector<int>(), ElementsAre(0, 58, 197, 255));
  const Tensor words = Tensor::Of<std::string>({2}, {"a", "b"});
  const Tensor wide =
      RunImage(KernelCase("Resize", {words, {}, FloatTensor({2})})).value()[0].tensor();
  EXPECT_EQ(wide.data<std::string>()[1], "a");
  EXPECT_EQ(wide.data<std::string>()[2], "b");
}

TEST(Resize, RefusesSizesThatMakeNoSense) {
  const Tensor x = FloatTensor({1, 2});
  for (const KernelCase& node :
       {KernelCase("Resize", {x}), KernelCase("Resize", {x, {}, FloatTensor({-1})}),
        KernelCase("Resize", {x, {}, FloatTensor({2}), IntVector({4})}),
        KernelCase("Resize", {x, {}, {}, IntVector({int64_t{1} << 40})}),
        KernelCase("Resize", {x, {}, FloatTensor({std::numeric_limits<float>::infinity()})}),
        KernelCase("Resize", {FloatTensor({}), {}, {}, IntVector({4})}),
        KernelCase("Resize", {x, {}, {}, IntVector({4})}, {{"mode", Text("best")}})}) {
    EXPECT_EQ(RunImage(node).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Resize, RefusesAnAxisThatTheAspectRatioMakesTooLong) {
  const Tensor image = Tensor::Of<float>({1, 32}, Floats(32));
  const KernelCase node("Resize", {image, {}, {}, IntVector({int64_t{1} << 28, 1})},
                        {{"keep_aspect_ratio_policy", Text("not_smaller")}});
  const Status status = RunImage(node).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("the aspect ratio makes an axis too large"));
}

TEST(GridSample, ReadsPlacesInAndOutside) {
  const Tensor x = Tensor::Of<float>({1, 1, 1, 3}, {1, 2, 3});
  const Tensor grid = Tensor::Of<float>({1, 1, 4, 2}, {-1, 0, 0.5f, 0, 2, 0, -3, 0});
  auto sample = [&](const char* mode, const char* padding) {
    const AttributeMap attributes = {
        {"mode", Text(mode)}, {"padding_mode", Text(padding)}, {"align_corners", int64_t{1}}};
    return FloatsOf(KernelCase("GridSample", {x, grid}, attributes));
  };
  EXPECT_THAT(sample("linear", "zeros"), ElementsAre(1, 2.5f, 0, 0));
  EXPECT_THAT(sample("linear", "border"), ElementsAre(1, 2.5f, 3, 1));
  EXPECT_THAT(sample("linear", "reflection"), ElementsAre(1, 2.5f, 2, 3));
  EXPECT_THAT(sample("nearest", "border"), ElementsAre(1, 3, 3, 1));
}

TEST(GridSample, SurvivesNumbersThatAreNone) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::Of<float>({1, 1, 2, 2}, {1, 2, 3, 4});
  const Tensor grid =
      Tensor::Of<float>({1, 1, 3, 2}, {std::nanf(""), 0, infinity, -infinity, 1e30f, 0});
  for (const char* mode : {"linear", "nearest", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      const AttributeMap attributes = {{"mode", Text(mode)}, {"padding_mode", Text(padding)}};
      EXPECT_EQ(FloatsOf(KernelCase("GridSample", {x, grid}, attributes)).size(), 3u);
    }
  }
}

TEST(Regions, ChecksTheBatch) {
  const Tensor x = Tensor::Of<float>({1, 1, 2, 2}, {1, 2, 3, 4});
  const Tensor roi = Tensor::Of<float>({1, 4}, {0, 0, 2, 2});
  EXPECT_THAT(FloatsOf(KernelCase("RoiAlign", {x, roi, IntVector({0})})), ElementsAre(2.5f));
  EXPECT_EQ(RunImage(KernelCase("RoiAlign", {x, roi, IntVector({1})})).status().code(),
            StatusCode::kInvalidArgument);
  const AttributeMap pooled = {{"pooled_shape", Ints{1, 1}}};
  EXPECT_THAT(
      FloatsOf(KernelCase("MaxRoiPool", {x, Tensor::Of<float>({1, 5}, {0, 0, 0, 1, 1})}, pooled)),
      ElementsAre(4));
  for (float batch : {-1.0f, 1.0f, std::nanf("")}) {
    const Tensor wrong = Tensor::Of<float>({1, 5}, {batch, 0, 0, 1, 1});
    EXPECT_EQ(RunImage(KernelCase("MaxRoiPool", {x, wrong}, pooled)).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(Boxes, KeepsTheBestOfOverlappingOnes) {
  const Tensor boxes = Tensor::Of<float>({1, 3, 4}, {0, 0, 1, 1, 0, 0.1f, 1, 1.1f, 0, 5, 1, 6});
  const Tensor scores = Tensor::Of<float>({1, 1, 3}, {0.6f, 0.9f, 0.9f});
  const KernelCase all("NonMaxSuppression",
                       {boxes, scores, Tensor::Scalar<int64_t>(5), Tensor::Scalar(0.5f)});
  EXPECT_THAT(FloatsOf(all), ElementsAre(0, 0, 1, 0, 0, 2));
  EXPECT_THAT(FloatsOf(KernelCase("NonMaxSuppression", {boxes, scores})), ElementsAre());
}

TEST(Boxes, FoldsColumns) {
  const Tensor x = Tensor::Of<float>({1, 2, 2}, {1, 2, 3, 4});
  EXPECT_THAT(FloatsOf(KernelCase("Col2Im", {x, IntVector({1, 3}), IntVector({1, 2})})),
              ElementsAre(1, 5, 4));
  for (const Ints& block : {Ints{1, 3}, Ints{0, 2}, Ints{2}}) {
    EXPECT_EQ(
        RunImage(KernelCase("Col2Im", {x, IntVector({1, 3}), IntVector(block)})).status().code(),
        StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace caesura
