// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {
namespace {

std::vector<GradientCase> ConvAndPoolCases() {
  const std::string x = "double[1,2,5,4] x";
  return {
      {"Conv", "double[2,2,4,5] x, double[3,2,2,3] w, double[3] b", "y = Conv(x, w, b)"},
      {"ConvStrided", "double[1,4,6,5] x, double[4,2,3,2] w",
       "y = Conv<group = 2, strides = [2,1], pads = [1,0,1,1], dilations = [1,2]>(x, w)"},
      {"ConvSame", "double[1,2,5] x, double[2,2,3] w, double[2] b",
       "y = Conv<auto_pad = \"SAME_UPPER\", strides = [2]>(x, w, b)"},
      {"Conv3d", "double[1,1,3,3,3] x, double[2,1,2,2,2] w", "y = Conv(x, w)"},
      {"ConvEmptyBatch", "double[0,2,4] x, double[3,2,2] w", "y = Conv(x, w)"},
      {"ConvTranspose", "double[1,2,3,4] x, double[2,3,2,3] w, double[3] b",
       "y = ConvTranspose(x, w, b)"},
      {"ConvTransposeStrided", "double[1,4,3,3] x, double[4,1,3,2] w",
       "y = ConvTranspose<group = 2, strides = [2,1], pads = [1,0,0,1], output_padding = [1,0]>(x, "
       "w)"},
      {"DeformConv",
       "double[1,2,4,4] x, double[2,2,2,2] w, double[1,8,3,3] o, double[2] b, double[1,4,3,3] m",
       "y = DeformConv(x, w, o, b, m)"},
      {"MaxPool", x, "y = MaxPool<kernel_shape = [2,2], strides = [2,1], pads = [1,0,0,1]>(x)"},
      {"MaxPoolDilated", x,
       "y = MaxPool<kernel_shape = [2,2], dilations = [2,2], ceil_mode = 1>(x)"},
      {"AveragePool", x,
       "y = AveragePool<kernel_shape = [2,3], strides = [2,1], pads = [1,1,0,1]>(x)"},
      {"AveragePoolPadCounted", x,
       "y = AveragePool<kernel_shape = [2,3], pads = [1,1,0,1], count_include_pad = 1>(x)"},
      {"LpPool", x, "y = LpPool<kernel_shape = [2,2], p = 3>(x)"},
      {"GlobalAveragePool", x, "y = GlobalAveragePool(x)"},
      {"GlobalMaxPool", x, "y = GlobalMaxPool(x)"},
      {"GlobalLpPool", x, "y = GlobalLpPool<p = 2>(x)"},
      {"GlobalLpPool3", x, "y = GlobalLpPool<p = 3>(x)"},
      {.name = "MaxUnpool",
       .inputs = "double[1,1,2,2] x, int64[1,1,2,2] i",
       .body = "y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i)",
       .feeds = {{"i", {5, 7, 13, 15}}}},
      {.name = "MaxUnpoolShaped",
       .inputs = "double[1,1,2,2] x, int64[1,1,2,2] i",
       .body = "y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i, s)",
       .feeds = {{"i", {5, 7, 13, 15}}},
       .initializers = "<int64[4] s = {1, 1, 5, 5}>"},
  };
}

std::vector<GradientCase> NormalizationCases() {
  const std::string bn = "double[3,2,2] x, double[2] s, double[2] b, double[2] m, double[2] v";
  return {
      {"Softmax", "double[2,3,4] x", "y = Softmax<axis = 1>(x)"},
      {"SoftmaxLast", "double[2,5] x", "y = Softmax(x)"},
      {"LogSoftmax", "double[2,5] x", "y = LogSoftmax(x)"},
      {.name = "BatchNormalization",
       .inputs = bn,
       .body = "y = BatchNormalization(x, s, b, m, v)",
       .low = 0.3},
      {.name = "BatchNormalizationTrained",
       .inputs = "double[4,2,3] x, double[2] s, double[2] b",
       .body = "y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v)",
       .initializers = "<double[2] m = {0, 0}, double[2] v = {1, 1}>"},
      {.name = "BatchNormalizationTraining",
       .inputs = "double[4,2,3] x, double[2] s, double[2] b",
       .body = "y, rm, rv = ai.caesura.BatchNormalizationTraining(x, s, b, m, v)",
       .initializers = "<double[2] m = {0, 0}, double[2] v = {1, 1}>"},
      {"LayerNormalization", "double[2,3,4] x, double[4] s, double[4] b",
       "y = LayerNormalization(x, s, b)"},
      {"LayerNormalizationAxis", "double[2,3,4] x, double[3,4] s",
       "y = LayerNormalization<axis = 1>(x, s)"},
      {"RMSNormalization", "double[2,3,4] x, double[4] s", "y = RMSNormalization(x, s)"},
      {"InstanceNormalization", "double[2,3,4] x, double[3] s, double[3] b",
       "y = InstanceNormalization(x, s, b)"},
      {"GroupNormalization", "double[2,4,3] x, double[4] s, double[4] b",
       "y = GroupNormalization<num_groups = 2>(x, s, b)"},
      {"MeanVarianceNormalization", "double[2,3,2,2] x", "y = MeanVarianceNormalization(x)"},
      {"LpNormalization", "double[2,3] x", "y = LpNormalization(x)"},
      {"LpNormalization1", "double[3,2] x", "y = LpNormalization<axis = 0, p = 1>(x)"},
      {"LRN", "double[2,5,2,2] x", "y = LRN<size = 3, alpha = 0.5, beta = 0.6, bias = 1.5>(x)"},
      {"LRNEven", "double[1,5,3] x", "y = LRN<size = 4, alpha = 0.5>(x)"},
      {"DropoutOff", "double[2,3] x", "y = Dropout(x)"},
      {.name = "Dropout",
       .inputs = "double[4,5] x",
       .body = "y, mask = Dropout<seed = 7>(x, r, t)",
       .initializers = "<double r = {0.4}, bool t = {1}>"},
      {.name = "DropoutNoMask",
       .inputs = "double[4,5] x",
       .body = "y = Dropout<seed = 7>(x, r, t)",
       .initializers = "<double r = {0.4}, bool t = {1}>"},
  };
}

std::vector<GradientCase> LossCases() {
  const std::string scores = "double[3,4] x, int64[3] l", deep = "double[2,3,2] x, int64[2,2] l";
  const std::map<std::string, std::vector<double>> labels = {{"l", {1, 3, 0}}},
                                                   deep_labels = {{"l", {1, 2, 0, 2}}};
  const std::string weights = "<double[4] w = {0.2, 0.5, 0.3, 0.9}>";
  return {
      {.name = "SoftmaxCrossEntropyLoss",
       .inputs = scores,
       .body = "y = SoftmaxCrossEntropyLoss(x, l)",
       .feeds = labels},
      {.name = "SoftmaxCrossEntropyLossSum",
       .inputs = scores,
       .body = "y = SoftmaxCrossEntropyLoss<reduction = \"sum\">(x, l, w)",
       .feeds = labels,
       .initializers = weights},
      {.name = "SoftmaxCrossEntropyLossWeighted",
       .inputs = scores,
       .body = "y = SoftmaxCrossEntropyLoss(x, l, w)",
       .feeds = labels,
       .initializers = weights},
      {.name = "SoftmaxCrossEntropyLossNone",
       .inputs = deep,
       .body = "y = SoftmaxCrossEntropyLoss<reduction = \"none\">(x, l)",
       .feeds = deep_labels},
      {.name = "SoftmaxCrossEntropyLossIgnored",
       .inputs = scores,
       .body = "y = SoftmaxCrossEntropyLoss<ignore_index = 3>(x, l)",
       .feeds = labels},
      {.name = "SoftmaxCrossEntropyLossLogProb",
       .inputs = scores,
       .body = "y, p = SoftmaxCrossEntropyLoss(x, l)",
       .outputs = "y, p",
       .feeds = labels},
      {.name = "NegativeLogLikelihoodLoss",
       .inputs = scores,
       .body = "y = NegativeLogLikelihoodLoss(x, l)",
       .feeds = labels},
      {.name = "NegativeLogLikelihoodLossWeighted",
       .inputs = scores,
       .body = "y = NegativeLogLikelihoodLoss(x, l, w)",
       .feeds = labels,
       .initializers = weights},
      {.name = "NegativeLogLikelihoodLossNone",
       .inputs = deep,
       .body = "y = NegativeLogLikelihoodLoss<reduction = \"none\", ignore_index = 2>(x, l)",
       .feeds = deep_labels},
      // The slopes are those of what log_probs are the log-softmax of.
      {.name = "CtcLoss",
       .inputs = "double[6,2,4] x, int64[2,3] l",
       .body = "p = LogSoftmax(x)\ny, slopes = ai.caesura.CtcLoss(p, l, n, k)",
       .feeds = {{"l", {1, 1, 3, 2, 0, 0}}},
       .initializers = "<int64[2] n = {6, 4}, int64[2] k = {3, 1}>"},
      {.name = "CtcLossInARow",
       .inputs = "double[6,2,4] x, int64[4] l",
       .body = "p = LogSoftmax(x)\ny, slopes = ai.caesura.CtcLoss<blank = 2>(p, l, n, k)",
       .feeds = {{"l", {1, 1, 3, 0}}},
       .initializers = "<int64[2] n = {6, 4}, int64[2] k = {3, 1}>"},
  };
}

std::vector<GradientCase> RecurrentCases() {
  const std::string n = "<int32[2] n = {3, 2}>";
  return {
      {"RNN", "double[3,2,2] x, double[1,3,2] w, double[1,3,3] r, double[1,6] b",
       "y, h = RNN<hidden_size = 3>(x, w, r, b)", "y, h"},
      {.name = "RNNReverse",
       .inputs =
           "double[3,2,2] x, double[1,3,2] w, double[1,3,3] r, double[1,6] b, double[1,2,3] h0",
       .body = "y, h = RNN<hidden_size = 3, direction = \"reverse\", activations = "
               "[\"Sigmoid\"]>(x, w, r, b, n, h0)",
       .outputs = "y, h",
       .initializers = n},
      {"GRU", "double[3,2,2] x, double[1,9,2] w, double[1,9,3] r, double[1,18] b, double[1,2,3] h0",
       "y, h = GRU<hidden_size = 3>(x, w, r, b, , h0)", "y, h"},
      {"GRULinearBeforeReset", "double[3,2,2] x, double[1,9,2] w, double[1,9,3] r, double[1,18] b",
       "y, h = GRU<hidden_size = 3, linear_before_reset = 1>(x, w, r, b)", "y, h"},
      {.name = "GRUBidirectional",
       .inputs = "double[3,2,2] x, double[2,6,2] w, double[2,6,2] r",
       .body = "y, h = GRU<hidden_size = 2, direction = \"bidirectional\">(x, w, r, , n)",
       .outputs = "y, h",
       .initializers = n},
      {"LSTM",
       "double[3,2,2] x, double[1,12,2] w, double[1,12,3] r, double[1,24] b, double[1,2,3] h0, "
       "double[1,2,3] c0, double[1,9] p",
       "y, h, c = LSTM<hidden_size = 3>(x, w, r, b, , h0, c0, p)", "y, h, c"},
      {"LSTMLastOnly", "double[3,2,2] x, double[1,12,2] w, double[1,12,3] r",
       "a, h = LSTM<hidden_size = 3>(x, w, r)", "h"},
      {.name = "LSTMBidirectional",
       .inputs = "double[3,2,2] x, double[2,8,2] w, double[2,8,2] r, double[2,16] b",
       .body = "y, h, c = LSTM<hidden_size = 2, direction = \"bidirectional\">(x, w, r, b, n)",
       .outputs = "y, h, c",
       .initializers = n},
  };
}

const char kNoDouble[] = "the schema knows no double";

std::vector<GradientCase> AttentionCases() {
  const std::string qkv = "double[1,2,3,4] q, double[1,2,5,4] k, double[1,2,5,3] v";
  return {
      {"Attention", qkv, "y = Attention(q, k, v)"},
      {"AttentionCausal", "double[1,2,4,4] q, double[1,2,4,4] k, double[1,2,4,4] v",
       "y = Attention<is_causal = 1>(q, k, v)"},
      {"AttentionGrouped", "double[2,4,3,2] q, double[2,2,3,2] k, double[2,2,3,2] v",
       "y = Attention<scale = 0.5>(q, k, v)"},
      {"AttentionPacked", "double[2,3,8] q, double[2,3,4] k, double[2,3,4] v",
       "y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v)"},
      {"AttentionMask", qkv + ", double[3,5] m", "y = Attention(q, k, v, m)"},
      {"AttentionSoftcap", qkv, "y = Attention<softcap = 2.0>(q, k, v)"},
      {"AttentionCache", qkv + ", double[1,2,2,4] pk, double[1,2,2,3] pv",
       "y, a, b = Attention(q, k, v, , pk, pv)", "y, a, b"},
      {"AttentionScores", qkv, "y, a, b, s = Attention<qk_matmul_output_mode = 3>(q, k, v)",
       "y, s"},
      {.name = "RotaryEmbedding",
       .inputs = "double[1,2,3,4] x, int64[1,3] i",
       .body = "y = RotaryEmbedding(x, c, s, i)",
       .feeds = {{"i", {2, 0, 1}}},
       .initializers = "<double[3,2] c = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, double[3,2] s = {0.6, "
                       "0.5, 0.4, 0.3, 0.2, 0.1}>",
       .no_double = kNoDouble},
      {.name = "RotaryEmbeddingTables",
       .inputs = "double[1,2,3,4] x, double[1,3,2] c, double[1,3,2] s",
       .body = "y = RotaryEmbedding(x, c, s)",
       .no_double = kNoDouble},
      {.name = "RotaryEmbeddingInterleaved",
       .inputs = "double[1,3,8] x",
       .body = "y = RotaryEmbedding<interleaved = 1, num_heads = 2>(x, c, s)",
       .initializers = "<double[1,3,2] c = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, double[1,3,2] s = {0.6, "
                       "0.5, 0.4, 0.3, 0.2, 0.1}>",
       .no_double = kNoDouble},
      {.name = "CausalConvWithState",
       .inputs = "double[1,2,4] x, double[2,1,3] w, double[2] b, double[1,2,2] p",
       .body = "y, s = CausalConvWithState<activation = \"silu\">(x, w, b, p)",
       .outputs = "y, s",
       .no_double = kNoDouble},
      {.name = "LinearAttention",
       .inputs =
           "double[1,3,4] q, double[1,3,4] k, double[1,3,4] v, double[1,3,4] d, double[1,3,2] b",
       .body = "y, s = LinearAttention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, , d, b)",
       .outputs = "y, s",
       .low = -1,
       .high = 0.5,
       .no_double = kNoDouble},
      {.name = "LinearAttentionLinear",
       .inputs = "double[1,3,4] q, double[1,3,2] k, double[1,3,2] v, double[1,1,2,2] p",
       .body = "y, s = LinearAttention<q_num_heads = 2, kv_num_heads = 1, update_rule = "
               "\"linear\">(q, k, v, p)",
       .outputs = "y, s",
       .no_double = kNoDouble},
  };
}

}  // namespace

std::vector<GradientCase> NnCases() {
  std::vector<GradientCase> out;
  for (const auto& family : {ConvAndPoolCases(), NormalizationCases(), LossCases(),
                             RecurrentCases(), AttentionCases()}) {
    out.insert(out.end(), family.begin(), family.end());
  }
  return out;
}

}  // namespace caesura
