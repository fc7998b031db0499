// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {

std::vector<GradientCase> MovementCases() {
  return {
      {"Concat", "double[2,3] a, double[2,1] b", "y = Concat<axis = 1>(a, b)"},
      {"ConcatLast", "double[2,3] a, double[2,1] b, double[2,0] c", "y = Concat<axis = -1>(a, b, c)"},
      {.name = "ConcatSymbols", .inputs = "double[N,3] a, double[M,3] b", .body = "y = Concat<axis = 0>(a, b)",
       .dims = {{"N", 2}, {"M", 3}}},
      {"DepthToSpace", "double[1,8,2,3] x", "y = DepthToSpace<blocksize = 2>(x)"},
      {"DepthToSpaceCrd", "double[1,8,2,3] x", "y = DepthToSpace<blocksize = 2, mode = \"CRD\">(x)"},
      {.name = "Expand", .inputs = "double[3,1] x", .body = "y = Expand(x, s)", .initializers = "<int64[3] s = {2, 1, 4}>"},
      {"Flatten", "double[2,3,2] x", "y = Flatten<axis = 2>(x)"},
      {.name = "Pad", .inputs = "double[2,3] x, double[] v", .body = "y = Pad(x, p, v)",
       .initializers = "<int64[4] p = {1, 0, 2, 1}>"},
      {.name = "PadNegative", .inputs = "double[3,4] x, double[] v", .body = "y = Pad(x, p, v)",
       .initializers = "<int64[4] p = {-1, 1, 1, -2}>"},
      {.name = "PadReflect", .inputs = "double[3,4] x", .body = "y = Pad<mode = \"reflect\">(x, p)",
       .initializers = "<int64[4] p = {1, 2, 2, 1}>"},
      {.name = "PadEdge", .inputs = "double[3,4] x", .body = "y = Pad<mode = \"edge\">(x, p)",
       .initializers = "<int64[4] p = {1, 2, 2, 1}>"},
      {.name = "PadWrap", .inputs = "double[3,4] x", .body = "y = Pad<mode = \"wrap\">(x, p)",
       .initializers = "<int64[4] p = {1, 2, 2, 1}>"},
      {.name = "PadAxes", .inputs = "double[3,4] x, double[] v", .body = "y = Pad(x, p, v, a)",
       .initializers = "<int64[2] p = {1, 2}, int64[1] a = {-1}>"},
      {.name = "Reshape", .inputs = "double[2,3] x", .body = "y = Reshape(x, s)", .initializers = "<int64[2] s = {3, -1}>"},
      {.name = "ReshapeScalar", .inputs = "double[1,1] x", .body = "y = Reshape(x, s)", .initializers = "<int64[0] s = {}>"},
      {.name = "ReshapeEmpty", .inputs = "double[0,3] x", .body = "y = Reshape<allowzero = 1>(x, s)",
       .initializers = "<int64[2] s = {3, 0}>"},
      {.name = "ReverseSequence", .inputs = "double[4,3] x, int64[3] n",
       .body = "y = ReverseSequence<batch_axis = 1, time_axis = 0>(x, n)", .feeds = {{"n", {4, 2, 1}}}},
      {.name = "Slice", .inputs = "double[4,5] x", .body = "y = Slice(x, s, e, a, t)",
       .initializers = "<int64[2] s = {1, -1}, int64[2] e = {4, -6}, int64[2] a = {0, 1}, int64[2] t = {2, -2}>"},
      {.name = "SliceDefault", .inputs = "double[4,5] x", .body = "y = Slice(x, s, e)",
       .initializers = "<int64[1] s = {1}, int64[1] e = {100}>"},
      {"SpaceToDepth", "double[1,2,4,6] x", "y = SpaceToDepth<blocksize = 2>(x)"},
      {.name = "Split", .inputs = "double[5,2] x", .body = "y, z = Split<axis = 0>(x, s)", .outputs = "y, z",
       .initializers = "<int64[2] s = {2, 3}>"},
      {.name = "SplitOnlyOne", .inputs = "double[2,6] x", .body = "a, y, b = Split<axis = -1, num_outputs = 3>(x)"},
      {.name = "Squeeze", .inputs = "double[1,3,1] x", .body = "y = Squeeze(x, a)", .initializers = "<int64[1] a = {-1}>"},
      {"SqueezeAll", "double[1,3,1] x", "y = Squeeze(x)"},
      {.name = "Tile", .inputs = "double[2,3] x", .body = "y = Tile(x, r)", .initializers = "<int64[2] r = {2, 3}>"},
      {"Transpose", "double[2,3,4] x", "y = Transpose<perm = [2,0,1]>(x)"},
      {"TransposeDefault", "double[2,3,4] x", "y = Transpose(x)"},
      {"Trilu", "double[2,3,4] x", "y = Trilu(x)"},
      {.name = "TriluLower", .inputs = "double[3,4] x", .body = "y = Trilu<upper = 0>(x, k)", .initializers = "<int64 k = {1}>"},
      {.name = "Unsqueeze", .inputs = "double[2,3] x", .body = "y = Unsqueeze(x, a)", .initializers = "<int64[2] a = {0, -1}>"},
      {.name = "CenterCropPad", .inputs = "double[5,3] x", .body = "y = CenterCropPad(x, s)",
       .initializers = "<int64[2] s = {3, 4}>"},
  };
}

}  // namespace caesura
