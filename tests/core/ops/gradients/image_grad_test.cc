// SPDX-License-Identifier: Apache-2.0
// The gradients of ops on images: small cases by hand, what lies outside of the image, and that
// they are the transposes of their ops.
#include <cmath>
#include <numeric>

#include "tests/core/ops/gradients/transposed_check.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(ResizeGrad, OfTwoByHand) {
  const Tensor dy = Tensor::Of<double>({4}, {1, 16, 64, 4});
  const std::vector<RuntimeValue> inputs = {dy, IntVector({2}), {}, FloatVector({2})};
  ExpectInEveryFloat("ResizeGrad", inputs, {}, {{1 + 16, 64 + 4}});
  // At -1/4, 1/4, 3/4 and 5/4 of the way from one to the other.
  ExpectInEveryFloat("ResizeGrad", inputs, {{"mode", Text("linear")}}, {{1 + 12 + 16, 4 + 48 + 4}});
}

// The weights of a read sum to 1: no part of dY is lost or made.
TEST(ResizeGrad, KeepsTheSum) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* coordinates : {"half_pixel", "align_corners", "asymmetric"}) {
      for (const int64_t antialias : {0, 1}) {
        if (antialias != 0 && std::string(mode) == "nearest") continue;
        for (const Shape& out : {Shape{1, 1, 9, 4}, Shape{1, 1, 3, 12}, Shape{1, 1, 1, 1}}) {
          const Tensor dy = RandomTensor(out, 3);
          const std::vector<double> from = dy.ToVector<double>();
          const std::vector<double> dx = FirstOutput(
              "ResizeGrad", {dy, IntVector({1, 1, 5, 7}), {}, {}, IntVector(out.dims())},
              {{"mode", Text(mode)},
               {"antialias", antialias},
               {"coordinate_transformation_mode", Text(coordinates)}});
          EXPECT_NEAR(std::accumulate(dx.begin(), dx.end(), 0.0),
                      std::accumulate(from.begin(), from.end(), 0.0), 1e-12)  // of 36 numbers
              << mode << " " << coordinates << " " << out.ToString();
        }
      }
    }
  }
}

TEST(ResizeGrad, IsTheTranspose) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const auto& sizes : {IntVector({2, 3, 9, 4}), IntVector({2, 3, 3, 12})}) {
      CheckTransposed({.op = "Resize",
                       .x = {2, 3, 6, 8},
                       .others = {{}, {}, sizes},
                       .attributes = {{"mode", Text(mode)}}});
    }
  }
}

// With the corners aligned, (0, 0) is the middle of the image, and (2, -1) half a pixel to the
// right of the upper right one.
TEST(GridSampleGrad, BesideTheImageByHand) {
  const Tensor x = Tensor::Of<double>({1, 1, 2, 2}, {1, 2, 3, 5}),
               grid = Tensor::Of<double>({1, 1, 4, 2}, {0, 0, 2, -1, -8, 0, 0, 8}),
               dy = Tensor::Of<double>({1, 1, 1, 4}, {4, 8, 16, 32});
  AttributeMap attributes = {{"mode", Text("linear")}, {"align_corners", int64_t{1}}};
  const auto run = [&](const char* padding) {
    attributes["padding_mode"] = Text(padding);
    return RunTrainingKernel("GridSampleGrad", {dy, x, grid}, attributes, 2).value();
  };
  const TrainingOutputs zeros = run("zeros");
  EXPECT_EQ(zeros[0], (std::vector<double>{1, 1 + 4, 1, 1}));
  // A unit of the grid is half a pixel.
  const std::vector<double> slopes = {4 * 0.5 * 1.5, 4 * 0.5 * 2.5, 8 * 0.5 * -2, 8 * 0.5 * 1.5};
  EXPECT_EQ(std::vector<double>(zeros[1].begin(), zeros[1].begin() + 4), slopes);
  EXPECT_THAT(std::vector<double>(zeros[1].begin() + 4, zeros[1].end()), Each(0));  // far outside
  const TrainingOutputs border = run("border");  // all comes from the nearest edge
  EXPECT_EQ(border[0], (std::vector<double>{1 + 8, 1 + 8, 1 + 8 + 16, 1 + 16}));
  EXPECT_EQ(border[1][2], 0);  // sideways nothing changes there
  EXPECT_EQ(border[1][7], 0);
}

TEST(GridSampleGrad, IsTheTranspose) {
  Tensor grid = Tensor::Zeros(DType::kFloat32, {2, 4, 5, 2});
  for (int64_t i = 0; i < grid.elements(); ++i)
    grid.data<float>()[i] = static_cast<float>(i * 13 % 21 - 10) / 8;
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      CheckTransposed({.op = "GridSample",
                       .x = {2, 3, 6, 8},
                       .others = {grid},
                       .attributes = {{"mode", Text(mode)}, {"padding_mode", Text(padding)}},
                       .takes_x = true});
    }
  }
}

// One point between all four elements, and a region outside of the image.
TEST(RoiAlignGrad, OfOnePointByHand) {
  const std::vector<RuntimeValue> inputs = {
      Tensor::Of<double>({2, 1, 1, 1}, {8, 4}), Tensor::Of<double>({1, 1, 2, 2}, {1, 2, 3, 5}),
      Tensor::Of<double>({2, 4}, {0, 0, 2, 2, 8, 8, 9, 9}), IntVector({0, 0})};
  AttributeMap attributes = {{"sampling_ratio", int64_t{1}}};
  ExpectInEveryFloat("RoiAlignGrad", inputs, attributes, {{2, 2, 2, 2}});
  attributes["mode"] = Text("max");  // the largest of the weighted corners
  ExpectInEveryFloat("RoiAlignGrad", inputs, attributes, {{0, 0, 0, 2}});
}

TEST(RoiAlignGrad, IsTheTranspose) {
  const Tensor rois = Tensor::Of<float>({3, 4}, {0, 0, 5, 4, -1, 1, 9, 9, 2, 2, 2.5f, 2.5f});
  CheckTransposed({.op = "RoiAlign",
                   .x = {2, 3, 6, 8},
                   .others = {rois, IntVector({0, 1, 1})},
                   .attributes = {{"output_height", int64_t{2}}, {"output_width", int64_t{3}}},
                   .takes_x = true});
}

// The whole image, whose first maximum takes it, a corner of it, and a region outside.
TEST(MaxRoiPoolGrad, GoesToTheFirstMaximum) {
  ExpectInEveryFloat("MaxRoiPoolGrad",
                     {Tensor::Of<double>({3, 1, 1, 1}, {1, 16, 128}),
                      Tensor::Of<double>({1, 1, 2, 2}, {1, 7, 7, 3}),
                      Tensor::Of<double>({3, 5}, {0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 8, 8, 9, 9})},
                     {{"pooled_shape", std::vector<int64_t>{1, 1}}}, {{0, 1 + 16, 0, 0}});
}

TEST(ImageGrads, RefuseWhatDoesNotFit) {
  const Tensor x = Tensor::Zeros(DType::kFloat32, {1, 1, 2, 2}),
               one = Tensor::Zeros(DType::kFloat32, {1, 1, 1, 1});
  const AttributeMap pooled = {{"pooled_shape", std::vector<int64_t>{1, 1}}};
  EXPECT_THAT(
      WhyRefused("ResizeGrad", {x, IntVector({1, 1, 2, 2}), {}, {}, IntVector({1, 1, 4, 4})}),
      HasSubstr("dY: expected shape [1, 1, 4, 4], got [1, 1, 2, 2]"));
  EXPECT_THAT(
      WhyRefused("GridSampleGrad", {x, x, Tensor::Zeros(DType::kFloat32, {1, 1, 3, 2})}, {}, 2),
      HasSubstr("dY: expected shape [1, 1, 1, 3], got [1, 1, 2, 2]"));
  for (const int64_t batch : {-1, 1}) {
    EXPECT_THAT(WhyRefused("RoiAlignGrad",
                           {one, x, Tensor::Zeros(DType::kFloat32, {1, 4}), IntVector({batch})}),
                HasSubstr("batch index: expected 0 to 0, got " + std::to_string(batch)));
  }
  for (const float batch : {-1.0f, 1.0f, kNaN, kInfinity}) {
    const Tensor roi = Tensor::Of<float>({1, 5}, {batch, 0, 0, 1, 1});
    EXPECT_THAT(WhyRefused("MaxRoiPoolGrad", {one, x, roi}, pooled),
                HasSubstr("batch index: expected 0 to 0"));
  }
}

}  // namespace
}  // namespace caesura
