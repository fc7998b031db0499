// SPDX-License-Identifier: Apache-2.0
// Bodies in ONNX's operators beside the kernels of the ops, which are tested elsewhere.
#include "graph_transforms/standard_ops.h"

#include <set>

#include "core/graph/op_def.h"
#include "tests/graph_transforms/beside_kernels.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> GradientsOfElements() {
  return {
      "(float[N,3] dy, float[N,3] y) => (float[N,3] dx) { dx = ai.caesura.ReluGrad (dy, y) }",
      "(float[N,3] dy, float[N,3] y) => (float[N,3] dx) { dx = ai.caesura.SigmoidGrad (dy, y) }",
      "(double[N,3] dy, double[N,3] y) => (double[N,3] dx) { dx = ai.caesura.TanhGrad (dy, y) }",
      "(float[N,3] dy, float[N,3] x) => (float[N,3] dx) { dx = ai.caesura.GeluGrad (dy, x) }",
      "(float[N,3] dy, float[N,3] x) => (float[N,3] dx) { dx = ai.caesura.GeluGrad <approximate = "
      "\"tanh\"> (dy, x) }",
      "(float[N,3] x, float[2] y) => (float16[N,3] a, float16[2] b) { a, b = ai.caesura.CastAll "
      "<to = 10> (x, y) }",
      "(float[N,3] dy, bool[N,3] mask) => (float[N,3] dx) <float ratio = {0.25}> { dx = "
      "ai.caesura.DropoutGrad (dy, mask, ratio) }",
  };
}
TEST(StandardOps, GradientsOfElements) { ExpectAllSame(GradientsOfElements()); }

std::vector<std::string> PartsOfAStep() {
  return {
      "(float[N,3] x) => (float[N,3] y, float[N,3] z) { y = ai.caesura.Copy (x) z = "
      "ai.caesura.Detach (y) }",
      "(float[3] target, float[3] x) => (float[3] y) { c = ai.caesura.Copy (target) z = Neg (x) y "
      "= "
      "ai.caesura.Assign (c, z) }",
      "(float[3] sum, float[3] x) => (float[3] y, float[3] z) <bool no = {0}, bool yes = {1}> {"
      " c = ai.caesura.Copy (sum) y = ai.caesura.InPlaceAccumulator (c, x, no) z = "
      "ai.caesura.AccumulatedSum (x, y, yes) }",
      "(float[3] a, float16[2,2] b) => (float norm, double s, double t, double u)"
      " <double factor = {0.5}> { norm = ai.caesura.GlobalNorm (a, b)"
      " s = ai.caesura.ClipScale <max_norm = double {0.25}> (norm, factor) t = "
      "ai.caesura.ClipScale (norm, factor)"
      " u = ai.caesura.ClipScale <max_norm = double {100}, skip_nonfinite = 1> (norm, factor) }",
  };
}
TEST(StandardOps, PartsOfAStep) { ExpectAllSame(PartsOfAStep()); }

std::vector<std::string> Products() {
  return {
      "(float[2,3] a, float[2,4] b) => (float[3,4] y) { y = ai.caesura.FusedMatMul <transA = 1> "
      "(a, b) }",
      "(float[N,3] a, float[4,3] b, float[4] c) => (float[N,4] y) {"
      " y = ai.caesura.FusedMatMul <transB = 1> (a, b, c) }",
      "(float[N,3] a, float[3,4] b, float[4] c, float[N,4] d) => (float[N,4] y) { y = "
      "ai.caesura.FusedMatMul (a, b, c, d) }",
      "(float[N,5,3] a, float[N,5,4] b) => (float[N,3,4] y) { y = ai.caesura.FusedMatMul <transA = "
      "1, alpha = 2.0> (a, b) }",
      "(float[N,5,3] a, float[4,3] b, float[N,5,4] d) => (float[N,5,4] y) { y = "
      "ai.caesura.FusedMatMul <transB = 1> (a, b, , d) }",
  };
}
TEST(StandardOps, Products) { ExpectAllSame(Products()); }

// Products with a W [3, 20] in blocks of 16: two a row, the last one ragged.
std::vector<std::string> ProductsOfNBits() {
  const auto bytes = [](const std::string& name, int of_row) {
    std::string out = "uint8[3," + std::to_string(of_row) + "] " + name + " = {0";
    for (int i = 1; i < 3 * of_row; ++i) out += ", " + std::to_string(i * 91 % 256);
    return out + "}";
  };
  std::vector<std::string> out;
  for (const int bits : {2, 4, 8}) {
    const int of_block = 2 * bits, of_zeros = bits == 8 ? 2 : 1;
    const std::string weights =
        " <" + bytes("flat", 2 * of_block) + ", " + bytes("z", of_zeros) +
        ", int64[3] dims = {3, 2, " + std::to_string(of_block) +
        "}, float[3,2] s = {0.25, -0.125, 0.5, 1, -0.75, 0.375}, " +
        "float[3,2] f = {0.5, 1, -1, 2.5, 0, 3}> { q = Reshape (flat, dims) y = ";
    const std::string attributes =
        " <K = 20, N = 3, block_size = 16, bits = " + std::to_string(bits) + "> ";
    for (const char* inputs : {"(a, q, s)", "(a, q, s, z)", "(a, q, s, f, , b)"}) {
      out.push_back("(float[N,3] a, float[20] b) => (float[N,20] y)" + weights +
                    "ai.caesura.TransposedMatMulNBits" + attributes + inputs + " }");
    }
  }
  return out;
}
TEST(StandardOps, ProductsOfNBits) { ExpectAllSame(ProductsOfNBits()); }

std::vector<std::string> SumsAndPlaces() {
  return {
      "(float[N,3,4] dy) => (float[3,1] dx) <int64[2] shape = {3, 1}> { dx = ai.caesura.SumTo (dy, "
      "shape) }",
      "(float[N,3,M] dy, float[1,M] x) => (float[1,M] dx) { shape = Shape (x) dx = "
      "ai.caesura.SumTo (dy, shape) }",
      "(float[N,5] dy) => (float[N,3] dx) <int64[2] pads = {1, 1}, int64[1] axes = {1}, float[2,3] "
      "x = {0, 0, 0, 0, 0, 0}> {"
      " shape = Shape (x) dx = ai.caesura.PadGrad (dy, shape, pads, axes) }",
      "(float[2,5] dy) => (float[2,3] dx) <int64[2] shape = {2, 3}, int64[4] pads = {0, 1, 0, 1}> {"
      " dx = ai.caesura.PadGrad <mode = \"reflect\"> (dy, shape, pads) }",
      "(float[2,3] dy) => (float[2,4] dx) <int64[2] shape = {2, 4}, int64[4] pads = {0, -2, 0, 1}> "
      "{"
      " dx = ai.caesura.PadGrad (dy, shape, pads) }",
      "(float[2,2] dy, float[2,5] x) => (float[2,5] dx) <int64[1] start = {-1}, int64[1] end = "
      "{-9}, int64[1] axis = {1},"
      " int64[1] step = {-3}> { shape = Shape (x) dx = ai.caesura.SliceGrad (dy, shape, start, "
      "end, axis, step) }",
      "(float[N,3,4] dy) => (float[5,4] dx) <int64[2] shape = {5, 4}, int64[2,3] at = {0, 4, -1, "
      "0, 2, 2}> {"
      " dx = ai.caesura.GatherGrad (dy, at, shape) }",
      "(float[2,3,4] dy, float[2,5,4] base) => (float[2,5,4] dx) <int64[3] shape = {2, 5, 4}, "
      "int32[3] at = {0, 4, 0}> {"
      " dx = ai.caesura.GatherGrad <axis = 1> (dy, at, shape, base) }",
      "(float[2,4] dy) => (float[2,5,4] dx) <int64[3] shape = {2, 5, 4}, int64 at = {3}> {"
      " dx = ai.caesura.GatherGrad <axis = 1> (dy, at, shape) }",
  };
}
TEST(StandardOps, SumsAndPlaces) { ExpectAllSame(SumsAndPlaces()); }

std::vector<std::string> Losses() {
  const std::string labels = "int64[4] t = {1, 0, 2, 1}", places = "int64[2,2] t = {1, 2, -100, 0}";
  return {
      "(float[4,3] x) => (float l, float[4,3] p, float[4] s) <" + labels +
          "> {"
          " l, p, s = ai.caesura.SoftmaxCrossEntropyLossTraining (x, t) }",
      "(float d, float[4,3] x) => (float[4,3] dx) <" + labels +
          "> {"
          " l, p, s = ai.caesura.SoftmaxCrossEntropyLossTraining (x, t)"
          " dx = ai.caesura.SoftmaxCrossEntropyLossGrad (d, x, t, , s) }",
      "(float d, float[2,3,2] x) => (float[2,3,2] dx) <" + places +
          ", float[3] w = {1, 2, 0.5}> {"
          " l, p, s = ai.caesura.SoftmaxCrossEntropyLossTraining <ignore_index = -100> (x, t)"
          " dx = ai.caesura.SoftmaxCrossEntropyLossGrad <ignore_index = -100> (d, x, t, w, s) }",
      "(float[2,2] d, float[2,3,2] x) => (float[2,3,2] dx) <" + places +
          "> {"
          " l, p, s = ai.caesura.SoftmaxCrossEntropyLossTraining <ignore_index = -100, reduction = "
          "\"none\"> (x, t)"
          " dx = ai.caesura.SoftmaxCrossEntropyLossGrad <ignore_index = -100, reduction = "
          "\"none\"> (d, x, t, , s) }",
      "(float d, float[2,3,2] x) => (float[2,3,2] dx) <" + places +
          "> { shape = Shape (x)"
          " dx = ai.caesura.NegativeLogLikelihoodLossGrad <ignore_index = -100> (d, t, , shape) }",
  };
}
TEST(StandardOps, Losses) { ExpectAllSame(Losses()); }

std::vector<std::string> Norms() {
  return {
      "(float[N,3,4] dy, float[N,3,4] y) => (float[N,3,4] a, float[N,3,4] b) {"
      " a = ai.caesura.SoftmaxGrad <axis = 1> (dy, y) b = ai.caesura.LogSoftmaxGrad (dy, y) }",
      "(float[N,3,4] dy, float[N,3,4] x, float[4] s, float[N,3,1] mean, float[N,3,1] pos_v)"
      " => (float[N,3,4] dx, float[4] ds, float[4] db) { dx, ds, db = "
      "ai.caesura.LayerNormalizationGrad (dy, x, s, mean, pos_v) }",
      "(float[N,3,4] dy, float[N,3,4] x, float[3,4] s) => (float[N,3,4] dx, float[3,4] ds) {"
      " dx, ds = ai.caesura.RMSNormalizationGrad <axis = 1, epsilon = 0.1> (dy, x, s) }",
      "(float[N,3,2,2] dy, float[N,3,2,2] x, float[3] s) => (float[N,3,2,2] dx, float[3] ds, "
      "float[3] db) {"
      " dx, ds, db = ai.caesura.InstanceNormalizationGrad (dy, x, s) }",
      "(float[N,4,3] dy, float[N,4,3] x, float[4] s) => (float[N,4,3] dx, float[4] ds, float[4] "
      "db) {"
      " dx, ds, db = ai.caesura.GroupNormalizationGrad <num_groups = 2> (dy, x, s) }",
      "(float[N,3,4] x, float[3] s, float[3] b, float[3] m, float[3] pos_v)"
      " => (float[N,3,4] y, float[3] rm, float[3] rv, float[3] sm, float[3] sv) {"
      " y, rm, rv, sm, sv = ai.caesura.BatchNormalizationTraining <momentum = 0.75> (x, s, b, m, "
      "pos_v) }",
      "(float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] pos_v) => (float[3] rv) {"
      " y, rm, rv = ai.caesura.BatchNormalizationTraining <unbiased = 0> (x, s, b, m, pos_v) }",
      "(float[N,3,4] dy, float[N,3,4] x, float[3] s, float[3] m, float[3] pos_v)"
      " => (float[N,3,4] dx, float[3] ds, float[3] db) { dx, ds, db = "
      "ai.caesura.BatchNormalizationGrad (dy, x, s, m, pos_v) }",
  };
}
TEST(StandardOps, Norms) { ExpectAllSame(Norms()); }

std::vector<std::string> Windows() {
  return {
      "(float[N,4,5,6] dy, float[N,3,5,6] x, float[4,3,3,3] w) => (float[N,3,5,6] dx, "
      "float[4,3,3,3] dw, float[4] db) {"
      " dx, dw, db = ai.caesura.ConvGrad <pads = [1,1,1,1]> (dy, x, w) }",
      "(float[N,4,3,2] dy, float[N,3,6,7] x, float[4,3,2,3] w) => (float[N,3,6,7] dx, "
      "float[4,3,2,3] dw) {"
      " dx, dw = ai.caesura.ConvGrad <strides = [2,3], pads = [0,0,0,1]> (dy, x, w) }",
      "(float[N,4,3] dy, float[N,4,9] x, float[4,2,2] w) => (float[N,4,9] dx, float[4,2,2] dw) {"
      " dx, dw = ai.caesura.ConvGrad <strides = [3], dilations = [2], group = 2> (dy, x, w) }",
      "(float[N,4,5] dy, float[N,4,5] x, float[4,1,3] w) => (float[N,4,5] dx, float[4,1,3] dw) {"
      " dx, dw = ai.caesura.ConvGrad <auto_pad = \"SAME_UPPER\", group = 4> (dy, x, w) }",
      "(float[N,4,L] dy, float[N,3,M] x, float[4,3,1] w) => (float[N,3,M] dx, float[4,3,1] dw) {"
      " dx, dw = ai.caesura.ConvGrad (dy, x, w) }",
      "(float[N,2,6] dy, float[N,3,3] x, float[3,2,2] w) => (float[N,3,3] dx, float[3,2,2] dw, "
      "float[2] db) {"
      " dx, dw, db = ai.caesura.ConvTransposeGrad <strides = [2]> (dy, x, w) }",
      "(float[N,3,2,3] dy, float[N,3,5,6] x) => (float[N,3,5,6] dx) {"
      " dx = ai.caesura.MaxPoolGrad <kernel_shape = [3,2], strides = [2,2]> (dy, x) }",
      "(float[N,3,2,3] dy, float[N,3,5,6] x) => (float[N,3,5,6] dx, float[N,3,2,3] y) {"
      " y = MaxPool <kernel_shape = [3,2], strides = [2,2]> (x)"
      " dx = ai.caesura.MaxPoolGrad <kernel_shape = [3,2], strides = [2,2]> (dy, x) }",
      "(float[N,3,3,3] dy, float[N,3,5,5] x) => (float[N,3,5,5] dx) {"
      " dx = ai.caesura.AveragePoolGrad <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> "
      "(dy, x) }",
      "(float[N,3,3] dy, float[N,3,6] x) => (float[N,3,6] dx) {"
      " dx = ai.caesura.AveragePoolGrad <kernel_shape = [3], strides = [2], ceil_mode = 1, "
      "count_include_pad = 1> (dy, x) }",
      "(float[N,3,2] dy, float[N,3,5] x, float[N,3,2] pos_y) => (float[N,3,5] dx) {"
      " dx = ai.caesura.LpPoolGrad <kernel_shape = [2], strides = [2], p = 3> (dy, x, pos_y) }",
      "(float[N,3,1,1] dy, float[N,3,2,2] x) => (float[N,3,2,2] dx) { dx = "
      "ai.caesura.GlobalMaxPoolGrad (dy, x) }",
  };
}
TEST(StandardOps, Windows) { ExpectAllSame(Windows()); }

std::vector<std::string> Attention() {
  const std::string heads =
                        "(float[N,2,3,4] dy, float[N,2,3,4] q, float[N,2,5,4] k, float[N,2,5,4] v",
                    grads = ") => (float[N,2,3,4] dq, float[N,2,5,4] dk, float[N,2,5,4] dv",
                    joined = "(float[N,3,8] dy, float[N,3,8] q, float[N,3,4] k, float[N,3,4] v",
                    joined_grads = ") => (float[N,3,8] dq, float[N,3,4] dk, float[N,3,4] dv";
  return {
      "(float[N,2,3,4] q, float[N,2,5,4] k, float[N,2,5,4] v) => (float[N,2,3,4] y, float[N,2,3] "
      "lse) {"
      " y, , , , lse = ai.caesura.AttentionTraining (q, k, v) }",
      "(float[N,3,8] q, float[N,3,4] k, float[N,3,4] v) => (float[N,3,8] y, float[N,4,3] lse) {"
      " y, , , , lse = ai.caesura.AttentionTraining <q_num_heads = 4, kv_num_heads = 2, is_causal "
      "= 1> (q, k, v) }",
      heads + grads + ") { dq, dk, dv = ai.caesura.AttentionGrad <scale = 0.3> (dy, q, k, v) }",
      joined + joined_grads +
          ") {"
          " dq, dk, dv = ai.caesura.AttentionGrad <q_num_heads = 4, kv_num_heads = 2, is_causal = "
          "1> (dy, q, k, v) }",
      heads + ", bool[3,5] mask" + grads +
          ") { dq, dk, dv = ai.caesura.AttentionGrad (dy, q, k, v, mask) }",
      heads + ", float[N,1,1,5] mask" + grads +
          ", float[N,1,1,5] dm) {"
          " dq, dk, dv, dm = ai.caesura.AttentionGrad <softcap = 2.0> (dy, q, k, v, mask) }",
      heads + grads +
          ") { dq, dk, dv = ai.caesura.AttentionGrad <left_window_size = 1, right_window_size = 1> "
          "(dy, q, k, v) }",
  };
}
TEST(StandardOps, Attention) { ExpectAllSame(Attention()); }

std::vector<std::string> AlongAxes() {
  return {
      "(float[N,3,4] x) => (float[N,3,4] y) { y = ai.caesura.LogCumSumExp <axis = 1> (x) }",
      "(float[N,5] dy, float[N,5] x) => (float[N,5] dx) { y = ai.caesura.LogCumSumExp (x) dx = "
      "ai.caesura.LogCumSumExpGrad (dy, x, y) }",
      "(float[N,3,4] dy, float[N,3,4] x) => (float[N,3,4] dx) <int64 axis = {1}> { dx = "
      "ai.caesura.CumProdGrad (dy, x, axis) }",
      "(float[N,3,4] dy, float[N,3,4] x) => (float[N,3,4] dx) <int64 axis = {-1}> { dx = "
      "ai.caesura.CumProdGrad <exclusive = 1, reverse = 1> (dy, x, axis) }",
      "(float[3] dy, float[2,3,4] x) => (float[2,3,4] dx) <int64[2] axes = {0, 2}> { dx = "
      "ai.caesura.ReduceProdGrad <keepdims = 0> (dy, x, axes) }",
      "(float[1,1] dy, float[2,3] x) => (float[2,3] dx) { dx = ai.caesura.ReduceProdGrad (dy, x) }",
      "(float[N,5] x) => (float[N,2] y, int64[N,2] i) <int64[1] k = {2}> { y, i = ai.caesura.TopK "
      "(x, k) }",
      "(float[N] dy, float[N,3,3] x) => (float[N,3,3] dx) { y = Det (x) dx = ai.caesura.DetGrad "
      "(dy, x, y) }",
      "(float[2,3] levels, float[3] x) => (float[2,3] l, float[3] s) <int64 one = {1}, int64 three "
      "= {3}> { c = ai.caesura.Copy (levels) l = ai.caesura.PairwiseAccumulator (c, x, one)"
      " s = ai.caesura.PairwiseSum (l, x, three) }",
  };
}
TEST(StandardOps, AlongAxes) { ExpectAllSame(AlongAxes()); }

std::vector<std::string> Places() {
  const std::string grid =
      "(float[N,2,3,4] dy, float[N,2,5,4] x, float[N,3,4,2] grid) => (float[N,2,5,4] dx, "
      "float[N,3,4,2] dg) { dx, dg = ai.caesura.GridSampleGrad <";
  const std::string regions =
      "(float[2,3,2,2] dy, float[N,3,6,5] x) => (float[N,3,6,5] dx) <float[2,4] rois = {0.5, 0.2, "
      "4, 5, -1, 1, 3, 7}, int64[2] at = {1, 0}> { dx = ai.caesura.RoiAlignGrad <output_height = "
      "2, output_width = 2, ";
  const std::string scores =
      "(float[6,N,4] s) => (float[N] loss, float[6,N,4] d) <int64[2] labels = {3, 2}, ";
  return {
      "(float[N,2,4,6] dy) => (float[2,2,2,3] dx) <int64[4] shape = {2, 2, 2, 3}, float[4] scales "
      "= {1, 1, 2, 2}> { dx = ai.caesura.ResizeGrad <mode = \"linear\"> (dy, shape, , scales) }",
      "(float[2,2,3] dy) => (float[2,2,5] dx) <int64[3] shape = {2, 2, 5}, int64[3] sizes = {2, 2, "
      "3}> { dx = ai.caesura.ResizeGrad <coordinate_transformation_mode = \"asymmetric\", "
      "nearest_mode = \"floor\"> (dy, shape, , , sizes) }",
      "(float[4,5] dy) => (float[3,5] dx) <int64[2] shape = {3, 5}, int64[1] sizes = {4}> { dx = "
      "ai.caesura.ResizeGrad <mode = \"cubic\", axes = [0]> (dy, shape, , , sizes) }",
      grid + "align_corners = 0> (dy, x, grid) }",
      grid + "mode = \"cubic\", padding_mode = \"reflection\"> (dy, x, grid) }",
      grid + "padding_mode = \"reflection\", align_corners = 1> (dy, x, grid) }",
      grid + "padding_mode = \"border\"> (dy, x, grid) }",
      grid + "mode = \"nearest\"> (dy, x, grid) }",
      regions + "sampling_ratio = 2> (dy, x, rois, at) }",
      regions + "coordinate_transformation_mode = \"output_half_pixel\"> (dy, x, rois, at) }",
      "(float[2,3,2,2] dy, float[N,3,6,5] x) => (float[N,3,6,5] dx) <float[2,5] rois = {1, 0, 0, "
      "4, 5, 0, 1.5, 1, 3, 7}> { dx = ai.caesura.MaxRoiPoolGrad <pooled_shape = [2, 2]> (dy, x, "
      "rois) }",
      "(float[N,4,4,3] dy, float[N,2,5,4] x, float[4,1,2,2] w, float[N,8,4,3] offset, "
      "float[N,4,4,3] mask) => (float[N,2,5,4] dx, float[4,1,2,2] dw, float[N,8,4,3] df, float[4] "
      "db, float[N,4,4,3] dm) { dx, dw, df, db, dm = ai.caesura.DeformConvGrad <group = 2> (dy, x, "
      "w, offset, , mask) }",
      "(float[N,2,2] dy, float[N,4,5] x, float[2,4,3] w, float[N,6,2] offset) => (float[N,4,5] dx, "
      "float[2,4,3] dw) { dx, dw = ai.caesura.DeformConvGrad <strides = [2], offset_group = 2> "
      "(dy, x, w, offset) }",
      scores +
          "int64[2,3] t = {1, 2, 2, 3, 1, 0}, int64[2] steps = {6, 4}> { x = LogSoftmax (s)"
          " loss, d = ai.caesura.CtcLoss (x, t, steps, labels) }",
      scores +
          "int64[5] t = {1, 2, 2, 3, 1}, int64[2] steps = {5, 1}> { x = LogSoftmax (s)"
          " loss, d = ai.caesura.CtcLoss <blank = 3, zero_infinity = 1> (x, t, steps, labels) }",
  };
}
TEST(StandardOps, Places) { ExpectAllSame(Places()); }

// ONNX's own ops that other runtimes draw otherwise, or that have no gradient of ONNX's operators.
std::vector<std::string> OwnOfOnnx() {
  const std::string lstm = "(float[5,N,3] x, float[2,16,3] w, float[2,16,4] r, float[2,32] b";
  return {
      "(float[N,3,5] x) => (float[N,3,5] y, bool[N,3,5] m) <float ratio = {0.3}, bool yes = {1}> { "
      "y, m = Dropout (x, ratio, yes) }",
      "(float[N,9] x) => (float[N,9] y) <float ratio = {0.5}, bool yes = {1}> { y = Dropout <seed "
      "= 7> (x, ratio, yes) }",
      "(float[N,9] x) => (float[N,9] y, bool[N,9] m) { y, m = Dropout (x) }",
      lstm +
          ") => (float[5,2,N,4] y, float[2,N,4] h, float[2,N,4] c) {"
          " y, h, c = LSTM <hidden_size = 4, direction = \"bidirectional\"> (x, w, r, b) }",
      "(float[5,N,3] x, float[1,16,3] w, float[1,16,4] r, float[1,N,4] h0, float[1,N,4] c0, "
      "float[1,12] p)"
      " => (float[1,N,4] h) { y, h = LSTM <hidden_size = 4, direction = \"reverse\"> (x, w, r, , , "
      "h0, c0, p) }",
      "(float[N,5,3] x, float[1,12,3] w, float[1,12,4] r, float[1,24] b) => (float[N,5,1,4] y, "
      "float[N,1,4] h) {"
      " y, h = GRU <hidden_size = 4, layout = 1> (x, w, r, b) }",
      "(float[5,N,3] x, float[1,12,3] w, float[1,12,4] r, float[1,24] b) => (float[5,1,N,4] y) {"
      " y = GRU <hidden_size = 4, linear_before_reset = 1> (x, w, r, b) }",
      "(float[5,N,3] x, float[1,4,3] w, float[1,4,4] r) => (float[5,1,N,4] y, float[1,N,4] h) { y, "
      "h = RNN <hidden_size = 4> (x, w, r) }",
  };
}
TEST(StandardOps, OwnOfOnnx) { ExpectAllSame(OwnOfOnnx()); }

// `states` of each of the two parameters; `scalars`: the first so many are scalars.
std::string Update(const std::string& op, const std::string& attributes, int states,
                   int scalars = 0, const std::string& dtype = "float",
                   const std::string& rate = "double lr = {0.01}") {
  std::string in, out, types, given, copies;
  const auto add = [&](const std::string& name, bool is_output, bool is_scalar,
                       const std::string& shape) {
    const std::string type = is_scalar ? "float" : dtype + shape;
    types += (types.empty() ? "" : ", ") + type + " " + name;
    in += (is_output ? ", c_" : ", ") + name;
    if (!is_output) return;
    copies += "c_" + name + " = ai.caesura.Copy (" + name + ") ";
    out += (out.empty() ? "" : ", ") + ("n_" + name);
    given += (given.empty() ? "" : ", ") + type + " n_" + name;
  };
  for (const char* shape : {"[2,3]", "[4]"}) add(std::string("p") + shape[1], true, false, shape);
  for (const char* shape : {"[2,3]", "[4]"}) add(std::string("g") + shape[1], false, false, shape);
  for (int s = 0; s < states; ++s) {
    for (const char* shape : {"[2,3]", "[4]"})
      add("pos" + std::to_string(s) + shape[1], true, s < scalars, shape);
  }
  return "(" + types + ") => (" + given + ") <" + rate +
         ", int64 t = {7}, double scale = {0.5}> { " + copies + out + " = ai.caesura." + op +
         "Update <count = 2" + attributes + "> (lr, t, scale" + in + ") }";
}

std::vector<std::string> Updates() {
  const std::string adam = ", beta1 = 0.9, beta2 = 0.99, epsilon = 0.001, weight_decay = 0.1";
  const std::string rms = ", alpha = 0.9, epsilon = 0.01, weight_decay = 0.1, momentum = ";
  return {
      Update("Sgd", ", weight_decay = 0.0, momentum = 0.0, dampening = 0.0", 0),
      Update("Sgd",
             ", weight_decay = 0.1, momentum = 0.9, dampening = 0.25, nesterov = 1, maximize = 1",
             1),
      Update("Adam", adam, 2),
      Update("Adam", adam + ", amsgrad = 1", 3),
      Update("AdamW", adam, 2),
      Update("AdamW", adam, 2, 0, "double"),
      Update("AdamW", adam, 2, 0, "float16"),
      Update("AdamW", adam + ", fed = [\"learning_rate\", \"beta1\", \"step_offset\"], first = 1",
             2, 0, "float", "double[4] lr = {9, 0.01, 0.8, 2}"),
      Update("Lion", ", beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1", 1),
      Update("Rmsprop", rms + "0.0", 1),
      Update("Rmsprop", rms + "0.9, centered = 1", 3),
      Update("NAdam", adam + ", momentum_decay = 0.004", 3, 1),
      Update("RAdam", adam + ", decoupled_weight_decay = 1", 2),
      Update("Adamax", adam, 2),
      Update("Adagrad", ", lr_decay = 0.1, weight_decay = 0.1, epsilon = 0.001", 1),
      Update("Adadelta", ", rho = 0.9, epsilon = 0.001, weight_decay = 0.1", 2),
      Update("Asgd", ", lambd = 0.0001, alpha = 0.75, t0 = 3.0, weight_decay = 0.1", 3, 2),
      Update("Rprop",
             ", eta_minus = 0.5, eta_plus = 1.2, step_size_min = 0.000001, step_size_max = 50.0",
             2),
      Update("Lamb", adam, 2),
  };
}
TEST(StandardOps, Updates) { ExpectAllSame(Updates()); }

TEST(StandardOps, UpdatesLeaveOutWhatIsNotFinite) {
  std::string text = Update(
      "AdamW",
      ", beta1 = 0.9, beta2 = 0.99, epsilon = 0.001, weight_decay = 0.1, skip_nonfinite = 1", 2);
  ExpectSameAsKernels(text);
  text.replace(text.find("double scale = {0.5}"), 20, "double nought = {0}");
  text.replace(text.find("{ c_"), 1, "{ scale = Div (nought, nought)");
  ExpectSameAsKernels(text);
}

// All nodes are named at once, with the reason and where they come from.
TEST(StandardOps, RefusesAllThatHasNoBodyAtOnce) {
  const std::shared_ptr<Graph> graph = GraphOf(R"((float[2] x) => (float[2] y) {
    a = ai.caesura.AllReduce <ranks = 2> (x)
    b = ai.caesura.YieldOp (a)
    c = test.Mine (b)
    y = Relu (c)
  })");
  ASSERT_NE(graph, nullptr);
  graph->nodes()[0]->set_source("net.py:7");
  const std::string refused = WriteInStandardOps(*graph).message();
  EXPECT_THAT(refused, HasSubstr("3 node(s) cannot be written in ONNX's operators"));
  EXPECT_THAT(refused, HasSubstr("[ai.caesura::AllReduce "));
  EXPECT_THAT(refused,
              HasSubstr("ranks exchange values there, and no operator of ONNX does, net.py:7"));
  EXPECT_THAT(refused, HasSubstr("[ai.caesura::YieldOp "));
  EXPECT_THAT(refused, HasSubstr("domain 'test' is none of ONNX's"));
}

// Each op of ours has a body that is compared above, or says why it has none.
TEST(StandardOps, EachOpOfOursIsComparedOrRefused) {
  std::set<std::string> compared = {"WithGradient"};  // which never runs
  for (const auto& cases :
       {GradientsOfElements(), PartsOfAStep(), Products(), ProductsOfNBits(), SumsAndPlaces(),
        AlongAxes(), Places(), Losses(), Norms(), Windows(), Attention(), Updates()}) {
    for (const std::string& text : cases) CollectOps(*GraphOf(text), &compared);
  }
  for (const OpDef& op : AllOpDefs()) {
    if (op.domain != kCaesuraDomain) continue;
    const bool has_body = op.body != nullptr;
    EXPECT_EQ(has_body, compared.count(op.op_type) > 0) << op.op_type;
    EXPECT_NE(has_body, !op.body_refusal.empty()) << op.op_type;
  }
}

}  // namespace
}  // namespace caesura::testing
