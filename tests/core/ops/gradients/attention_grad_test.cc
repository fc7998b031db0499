// SPDX-License-Identifier: Apache-2.0
// AttentionGrad by hand and against plain loops, both as it is from Q, K and V alone and by tiles,
// from what the forward pass kept. (tests/core/ops/attention_test.cc has sizes that tiles do
// not divide.)
#include <cmath>

#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

// One sample of attention [1, heads, positions, size]; `mask` is absent, or bool.
struct AttentionSample {
  int heads, key_heads, queries, keys, size;
  bool causal = false;
  Tensor dy = RandomTensor({1, heads, queries, size}, 1),
         q = RandomTensor({1, heads, queries, size}, 2),
         k = RandomTensor({1, key_heads, keys, size}, 3),
         v = RandomTensor({1, key_heads, keys, size}, 4);
  RuntimeValue mask = {};  // [queries, keys]

  bool Sees(int i, int j) const {
    const bool hidden = mask.has_value() && !mask.tensor().data<bool>()[i * keys + j];
    return !hidden && (!causal || j <= i);
  }
};

// Y, and the logarithm of each query's sum of e^score.
std::pair<Tensor, Tensor> AttentionByLoops(const AttentionSample& a) {
  const Tensor y = Tensor::Zeros(DType::kFloat64, a.dy.shape()),
               lse = Tensor::Zeros(DType::kFloat64, {1, a.heads, a.queries});
  for (int row = 0; row < a.heads * a.queries; ++row) {
    const int shared = row / a.queries / (a.heads / a.key_heads) * a.keys * a.size;
    const double *q = a.q.data<double>() + row * a.size, *k = a.k.data<double>() + shared,
                 *v = a.v.data<double>() + shared;
    double total = 0, *out = y.data<double>() + row * a.size;
    for (int j = 0; j < a.keys; ++j) {
      double score = 0;
      for (int c = 0; c < a.size; ++c) score += q[c] * k[j * a.size + c];
      const double e = a.Sees(row % a.queries, j) ? std::exp(score / std::sqrt(a.size)) : 0;
      total += e;
      for (int c = 0; c < a.size; ++c) out[c] += e * v[j * a.size + c];
    }
    for (int c = 0; c < a.size && total > 0; ++c) out[c] /= total;
    lse.data<double>()[row] = total > 0 ? std::log(total) : INFINITY;
  }
  return {y, lse};
}

void ExpectAttentionGrad(const AttentionSample& a) {
  TrainingOutputs expected;
  for (const auto member : {&AttentionSample::q, &AttentionSample::k, &AttentionSample::v}) {
    expected.push_back(CentralDifferences(a.*member, [&](const Tensor& x) {
      AttentionSample moved = a;
      moved.*member = x;
      return Dot(a.dy, AttentionByLoops(moved).first);
    }));
  }
  const auto [y, lse] = AttentionByLoops(a);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    for (const bool tiles : {false, true}) {
      std::vector<RuntimeValue> inputs = {InDType(a.dy, dtype), InDType(a.q, dtype),
                                          InDType(a.k, dtype), InDType(a.v, dtype), a.mask};
      if (tiles) inputs.insert(inputs.end(), {InDType(y, dtype), InDType(lse, dtype)});
      const auto out =
          RunTrainingKernel("AttentionGrad", inputs, {{"is_causal", int64_t{a.causal}}}, 3);
      ASSERT_TRUE(out.ok()) << out.status().ToString();
      // Numbers up to some 10; those of float have 24 bits.
      const double tolerance = dtype == DType::kFloat64 ? 1e-9 : 5e-6;
      for (int i = 0; i < 3; ++i) EXPECT_THAT((*out)[i], AreNear(expected[i], tolerance));
    }
  }
}

TEST(AttentionGrad, OfOneKeyReachesTheValueAlone) {
  const AttentionSample a{.heads = 1, .key_heads = 1, .queries = 1, .keys = 1, .size = 4};
  ExpectAttentionGrad(a);
  const auto out = RunTrainingKernel("AttentionGrad", {a.dy, a.q, a.k, a.v}, {}, 3).value();
  const std::vector<double> zeros(4, 0.0);
  EXPECT_EQ(out, (TrainingOutputs{zeros, zeros, a.dy.ToVector<double>()}));
}

TEST(AttentionGrad, SumsTheHeadsThatShareAKey) {
  ExpectAttentionGrad({.heads = 6, .key_heads = 2, .queries = 3, .keys = 5, .size = 4});
  ExpectAttentionGrad(
      {.heads = 4, .key_heads = 1, .queries = 5, .keys = 5, .size = 3, .causal = true});
}

TEST(AttentionGrad, OfARowThatSeesNothingIsZero) {
  AttentionSample a{.heads = 2, .key_heads = 2, .queries = 3, .keys = 4, .size = 2};
  const Tensor mask = Tensor::Zeros(DType::kBool, {3, 4});
  for (int i = 0; i < 12; ++i) mask.data<bool>()[i] = i / 4 != 1 && i % 3 != 0;
  a.mask = mask;
  ExpectAttentionGrad(a);
  const auto dq = FirstOutput("AttentionGrad", {a.dy, a.q, a.k, a.v, mask});
  for (const int i : {2, 3, 8, 9}) EXPECT_EQ(dq[i], 0);  // query 1 of each head
  EXPECT_NE(dq[0], 0);
}

// q = 1 and k = (0, ln 3) give P = (1/4, 3/4); with v = (0, 4) then Y = 3 and dS = P (v - 3).
TEST(AttentionGrad, OfTheMaskByHand) {
  const double log3 = std::log(3.0);
  const Tensor ones = Tensor::Of<double>({1, 1, 2, 1}, {1, 1}),
               k = Tensor::Of<double>({1, 1, 2, 1}, {0, log3}),
               v = Tensor::Of<double>({1, 1, 2, 1}, {0, 4});
  const Tensor mask = Tensor::Zeros(DType::kFloat64, {1, 2});  // two queries, alike, share it
  const auto out = RunTrainingKernel("AttentionGrad", {ones, ones, k, v, mask}, {}, 4).value();
  EXPECT_THAT(out[0], AreNear({0.75 * log3, 0.75 * log3}, 1e-14));
  EXPECT_THAT(out[2], AreNear({0.5, 1.5}, 1e-14));
  for (const int i : {1, 3}) EXPECT_THAT(out[i], AreNear({-1.5, 1.5}, 1e-14));
}

// A cap of 2 makes the scores (0, a) those of (0, 1), where a = 2 atanh(1/2); its slope there is
// 1 - 1/4.
TEST(AttentionGrad, GoesThroughTheCap) {
  const double a = 2 * std::atanh(0.5), p = std::exp(1.0) / (1 + std::exp(1.0)), ds = p * (1 - p);
  const Tensor one = Tensor::Of<double>({1, 1, 1, 1}, {1}),
               k = Tensor::Of<double>({1, 1, 2, 1}, {0, a}),
               v = Tensor::Of<double>({1, 1, 2, 1}, {0, 1});
  const Tensor y = Tensor::Of<double>({1, 1, 1, 1}, {p}),
               lse = Tensor::Of<double>({1, 1, 1}, {std::log(1 + std::exp(1.0))});
  for (const auto& kept : {std::pair<RuntimeValue, RuntimeValue>(), {y, lse}}) {
    const auto out =
        RunTrainingKernel("AttentionGrad", {one, one, k, v, {}, kept.first, kept.second},
                          {{"softcap", 2.0f}}, 3)
            .value();
    EXPECT_THAT(out[0], AreNear({0.75 * ds * a}, 1e-14));
    EXPECT_THAT(out[1], AreNear({-ds, 0.75 * ds}, 1e-14));
    EXPECT_THAT(out[2], AreNear({1 - p, p}, 1e-14));
  }
}

TEST(AttentionGrad, RefusesWhatTheForwardPassDidNotGive) {
  const Tensor x = Tensor::Zeros(DType::kFloat32, {1, 1, 2, 2}),
               mask = Tensor::Zeros(DType::kBool, {2, 2});
  EXPECT_THAT(WhyRefused("AttentionGrad", {x.Reshaped({1, 1, 4, 1}), x, x, x}, {}, 3),
              HasSubstr("input 0: Y's dtype and shape [1, 1, 2, 2] expected, got [1, 1, 4, 1]"));
  EXPECT_THAT(WhyRefused("AttentionGrad", {x, x, x, x, mask}, {}, 4),
              HasSubstr("dattn_mask is wanted where the mask is no float"));
  EXPECT_THAT(WhyRefused("AttentionGrad",
                         {x, x, x, x, {}, x, Tensor::Zeros(DType::kFloat32, {1, 2})}, {}, 3),
              HasSubstr("lse: float32 of [1, 1, 2] expected, got [1, 2]"));
}

}  // namespace
}  // namespace caesura
