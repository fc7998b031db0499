// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {

std::vector<GradientCase> ImageCases() {
  const std::string x = "double[1,2,3,4] x", sizes = "<int64[4] s = {1, 2, 5, 3}>";
  const std::string resize = "y = Resize<mode = \"linear\">(x, , , s)";
  const std::string rois = "<double[2,4] r = {0, 0, 2, 3, 1, 0.5, 3, 2}, int64[2] b = {0, 0}>";
  return {
      {.name = "AffineGrid", .inputs = "double[2,2,3] t", .body = "y = AffineGrid(t, s)",
       .initializers = "<int64[4] s = {2, 3, 4, 5}>"},
      {.name = "AffineGridCorners", .inputs = "double[1,3,4] t", .body = "y = AffineGrid<align_corners = 1>(t, s)",
       .initializers = "<int64[5] s = {1, 1, 2, 3, 2}>"},
      {.name = "ResizeLinear", .inputs = x, .body = resize, .initializers = sizes},
      {.name = "ResizeNearest", .inputs = x, .body = "y = Resize<mode = \"nearest\">(x, , , s)", .initializers = sizes},
      {.name = "ResizeCubic", .inputs = x, .body = "y = Resize<mode = \"cubic\">(x, , , s)", .initializers = sizes},
      {.name = "ResizeScales", .inputs = x,
       .body = "y = Resize<mode = \"linear\", coordinate_transformation_mode = \"align_corners\">(x, , f)",
       .initializers = "<float[4] f = {1, 1, 2, 1.5}>"},
      {.name = "ResizeAntialias", .inputs = x, .body = "y = Resize<mode = \"linear\", antialias = 1>(x, , , s)",
       .initializers = "<int64[4] s = {1, 2, 2, 2}>"},
      {.name = "ResizeAntialiasInside", .inputs = x,
       .body = "y = Resize<mode = \"linear\", antialias = 1, exclude_outside = 1>(x, , , s)",
       .initializers = "<int64[4] s = {1, 2, 2, 2}>"},
      {.name = "GridSample", .inputs = "double[1,2,3,4] x, double[1,2,3,2] g", .body = "y = GridSample(x, g)",
       .low = -0.9, .high = 0.9},
      {.name = "GridSampleBorder", .inputs = "double[1,2,3,4] x, double[1,2,3,2] g",
       .body = "y = GridSample<padding_mode = \"border\", align_corners = 1>(x, g)", .low = -0.9, .high = 0.9},
      {.name = "GridSampleCubic", .inputs = "double[1,1,4,4] x, double[1,2,3,2] g",
       .body = "y = GridSample<mode = \"cubic\">(x, g)", .low = -0.9, .high = 0.9},
      {.name = "RoiAlign", .inputs = "double[1,2,4,4] x",
       .body = "y = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, r, b)", .initializers = rois},
      {.name = "RoiAlignMax", .inputs = "double[1,2,4,4] x",
       .body = "y = RoiAlign<mode = \"max\", output_height = 2, output_width = 2, sampling_ratio = 2>(x, r, b)",
       .initializers = rois},
      {.name = "MaxRoiPool", .inputs = "double[1,2,4,4] x", .body = "y = MaxRoiPool<pooled_shape = [2,2]>(x, r)",
       .initializers = "<double[1,5] r = {0, 0, 0, 3, 3}>"},
      {.name = "Col2Im", .inputs = "double[1,8,6] x", .body = "y = Col2Im(x, s, b)",
       .initializers = "<int64[2] s = {3, 4}, int64[2] b = {2, 2}>"},
      {.name = "Col2ImStrided", .inputs = "double[2,4,4] x", .body = "y = Col2Im<strides = [2,2], pads = [0,1,1,0]>(x, s, b)",
       .initializers = "<int64[2] s = {3, 3}, int64[2] b = {2, 2}>"},
      {"DFT", "double[2,5,2] x", "y = DFT(x)"},
      {"DFTReal", "double[2,5,1] x", "y = DFT(x)"},
      {"DFTInverse", "double[2,4,2] x", "y = DFT<inverse = 1>(x)"},
      {"DFTOneSided", "double[2,6,1] x", "y = DFT<onesided = 1>(x)"},
      {"DFTOneSidedOdd", "double[2,5,1] x", "y = DFT<onesided = 1>(x)"},
      {.name = "DFTLonger", .inputs = "double[3,2,2] x", .body = "y = DFT(x, n, a)",
       .initializers = "<int64 n = {5}, int64 a = {0}>"},
      {.name = "DFTShorter", .inputs = "double[5,2,1] x", .body = "y = DFT(x, n, a)",
       .initializers = "<int64 n = {3}, int64 a = {0}>"},
      {"DFTInverseOneSided", "double[2,4,2] x", "y = DFT<inverse = 1, onesided = 1>(x)"},
      {.name = "DFTInverseOneSidedOdd", .inputs = "double[2,3,2] x", .body = "y = DFT<inverse = 1, onesided = 1>(x, n)",
       .initializers = "<int64 n = {5}>"},
      {.name = "STFT", .inputs = "double[1,10,1] x, double[4] w", .body = "y = STFT(x, s, w)", .initializers = "<int64 s = {3}>"},
      {.name = "STFTBothSides", .inputs = "double[2,8,1] x", .body = "y = STFT<onesided = 0>(x, s, , n)",
       .initializers = "<int64 s = {2}, int64 n = {4}>"},
  };
}

}  // namespace caesura
