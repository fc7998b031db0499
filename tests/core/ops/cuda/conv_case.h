// SPDX-License-Identifier: Apache-2.0
// Convolutions: each case runs on the stand-in, and its graphs are built by cuDNN itself.
#ifndef CAESURA_TESTS_CORE_OPS_CUDA_CONV_CASE_H_
#define CAESURA_TESTS_CORE_OPS_CUDA_CONV_CASE_H_

#include <string>
#include <vector>

#include "core/kernels/windows/conv_geometry.h"

namespace caesura::testing {

struct ConvCase {
  const char* name;
  DType dtype = DType::kFloat32;
  int64_t channels = 2, outputs = 4, groups = 1;
  std::vector<int64_t> input = {5, 6}, kernel = {3, 3}, strides = {1, 1}, dilations = {1, 1},
                       pads = {1, 1, 1, 1};

  ConvGeometry Geometry() const {
    ConvGeometry g;
    g.batch = 2;
    g.channels = channels;
    g.outputs = outputs;
    g.groups = groups;
    const size_t axes = input.size();
    g.window = {input, kernel, {}, strides, dilations, {}, {}};
    g.window.pads_begin.assign(pads.begin(), pads.begin() + axes);
    g.window.pads_end.assign(pads.begin() + axes, pads.end());
    for (size_t d = 0; d < axes; ++d) {
      const int64_t room = input[d] + pads[d] + pads[axes + d] - g.window.Extent(d);
      g.window.output.push_back(room / strides[d] + 1);
    }
    return g;
  }
};

inline std::vector<ConvCase> ConvCases() {
  return {
      {.name = "Plain"},
      {.name = "InBFloat16", .dtype = DType::kBFloat16},
      {.name = "InFloat16", .dtype = DType::kFloat16},
      {.name = "Strided", .strides = {2, 3}, .pads = {0, 2, 1, 1}},
      {.name = "Dilated", .dtype = DType::kBFloat16, .kernel = {2, 3}, .dilations = {2, 1}},
      {.name = "Grouped", .channels = 4, .groups = 2},
      {.name = "Depthwise", .dtype = DType::kBFloat16, .channels = 4, .groups = 4},
      {.name = "OneAxis",
       .input = {7},
       .kernel = {3},
       .strides = {2},
       .dilations = {1},
       .pads = {1, 0}},
      {.name = "ThreeAxes",
       .input = {3, 4, 3},
       .kernel = {2, 3, 1},
       .strides = {1, 2, 1},
       .dilations = {1, 1, 1},
       .pads = {0, 1, 0, 1, 1, 0}},
  };
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_OPS_CUDA_CONV_CASE_H_
