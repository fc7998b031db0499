// SPDX-License-Identifier: Apache-2.0
// MatMulNBits and TransposedMatMulNBits beside sums in double over the dequantized weights, and
// what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "tests/core/execute/graph_fixture.h"
#include "tests/gradients/gradient_case.h"
#include "tests/kernel_case.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

enum class ZeroPoints { kNone, kPacked, kFloating };

// RandomNBits of `bits` each, lowest bits first, each row padded to whole bytes.
Tensor PackedNBits(const std::vector<int>& numbers, int64_t rows, int bits, Shape shape) {
  Tensor out = Tensor::Zeros(DType::kUInt8, std::move(shape));
  const int64_t of_row = static_cast<int64_t>(numbers.size()) / rows, bytes = out.elements() / rows;
  for (int64_t i = 0; i < static_cast<int64_t>(numbers.size()); ++i) {
    const int64_t bit = i % of_row * bits;
    out.data<uint8_t>()[i / of_row * bytes + bit / 8] |=
        static_cast<uint8_t>(numbers[i] << bit % 8);
  }
  return out;
}

// A random W [n, k], and the node that reads it.
struct NBitsProduct {
  int64_t n, k;
  int bits;
  int64_t block;
  ZeroPoints zeros = ZeroPoints::kNone;
  bool transposed = true;  // A W^T
  bool bias = false;
  DType dtype = DType::kFloat32;

  int64_t terms() const { return transposed ? k : n; }
  int64_t columns() const { return transposed ? n : k; }
};

struct NBitsCase {
  KernelCase kernel;
  std::vector<double> expected;
};

std::vector<double> RandomNumbers(std::mt19937& random, int64_t count, DType dtype) {
  std::uniform_real_distribution<double> draw(-1, 1);
  std::vector<double> out(count);
  for (double& x : out) x = draw(random);
  return FromDoubles(dtype, {count}, out).ToVector<double>();
}

NBitsCase MakeNBitsCase(const NBitsProduct& p, std::vector<int64_t> a_dims) {
  std::mt19937 random(static_cast<uint32_t>(p.n * 31 + p.k));
  const int64_t blocks = (p.k + p.block - 1) / p.block;
  std::vector<int> q(p.n * blocks * p.block), zeros(p.n * blocks);
  for (int& x : q) x = static_cast<int>(random() >> 8 & ((1u << p.bits) - 1));
  for (int& x : zeros) x = static_cast<int>(random() >> 8 & ((1u << p.bits) - 1));
  const std::vector<double> scales = RandomNumbers(random, p.n * blocks, p.dtype),
                            floating = RandomNumbers(random, p.n * blocks, p.dtype);
  std::vector<double> w(p.n * p.k);
  for (int64_t i = 0; i < p.n * p.k; ++i) {
    const int64_t b = i / p.k * blocks + i % p.k / p.block;
    double zero = 1 << (p.bits - 1);
    if (p.zeros == ZeroPoints::kPacked) zero = zeros[b];
    if (p.zeros == ZeroPoints::kFloating) zero = floating[b];
    w[i] = (q[i / p.k * blocks * p.block + i % p.k] - zero) * scales[b];
  }
  a_dims.push_back(p.terms());
  const Shape a_shape(a_dims);
  const std::vector<double> a = RandomNumbers(random, a_shape.elements(), p.dtype),
                            bias = RandomNumbers(random, p.columns(), p.dtype);
  std::vector<RuntimeValue> inputs = {
      FromDoubles(p.dtype, a_shape, a),
      PackedNBits(q, p.n, p.bits, {p.n, blocks, p.block * p.bits / 8}),
      FromDoubles(p.dtype, {p.n, blocks}, scales)};
  inputs.resize(6);
  if (p.zeros == ZeroPoints::kPacked)
    inputs[3] = PackedNBits(zeros, p.n, p.bits, {p.n, (blocks * p.bits + 7) / 8});
  if (p.zeros == ZeroPoints::kFloating) inputs[3] = FromDoubles(p.dtype, {p.n, blocks}, floating);
  if (p.bias) inputs[5] = FromDoubles(p.dtype, {p.columns()}, bias);
  NBitsCase node{
      KernelCase(p.transposed ? "MatMulNBits" : "TransposedMatMulNBits", std::move(inputs),
                 {{"K", p.k}, {"N", p.n}, {"bits", int64_t{p.bits}}, {"block_size", p.block}},
                 p.transposed ? kContribDomain : kCaesuraDomain),
      {}};
  const int64_t rows = a_shape.elements() / p.terms();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < p.columns(); ++j) {
      double sum = p.bias ? bias[j] : 0;
      for (int64_t t = 0; t < p.terms(); ++t)
        sum += a[i * p.terms() + t] * (p.transposed ? w[j * p.k + t] : w[t * p.k + j]);
      node.expected.push_back(sum);
    }
  }
  return node;
}

void ExpectNBitsProduct(const NBitsProduct& p, const std::vector<int64_t>& a_dims,
                        int threads = 1) {
  SCOPED_TRACE("W [" + std::to_string(p.n) + ", " + std::to_string(p.k) + "] in blocks of " +
               std::to_string(p.block) + " x " + std::to_string(p.bits) + " bits, zero points " +
               std::to_string(static_cast<int>(p.zeros)) + (p.transposed ? "" : ", A W"));
  NBitsCase node = MakeNBitsCase(p, a_dims);
  node.kernel.threads = threads;
  const auto out = node.kernel.Run();
  ASSERT_TRUE(out.ok()) << out.status().ToString();
  const Tensor& y = (*out)[0].tensor();
  std::vector<int64_t> dims = a_dims;
  dims.push_back(p.columns());
  EXPECT_EQ(y.shape(), Shape(dims));
  EXPECT_EQ(y.dtype(), p.dtype);
  const std::vector<double> found = y.ToVector<double>();
  ASSERT_EQ(found.size(), node.expected.size());
  double most = 0;
  for (const double x : node.expected) most = std::max(most, std::abs(x));
  const double allowed = (p.dtype == DType::kFloat32   ? 2e-6
                          : p.dtype == DType::kFloat16 ? 1e-3
                                                       : 8e-3) *
                         most;
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], node.expected[i], allowed) << "element " << i;
}

TEST(MatMulNBits, AllBitsBlocksAndZeroPoints) {
  for (const bool transposed : {true, false}) {
    for (const int bits : {2, 4, 8}) {
      for (const ZeroPoints zeros :
           {ZeroPoints::kNone, ZeroPoints::kPacked, ZeroPoints::kFloating}) {
        for (const int64_t block : {16, 32, 128}) {
          for (const int64_t k : {64, 49, 200})
            ExpectNBitsProduct({7, k, bits, block, zeros, transposed, k == 49}, {5});
        }
      }
    }
  }
}

// More than one tile both ways, of which the last are smaller; blocks longer than a tile.
TEST(MatMulNBits, ManyTiles) {
  for (const bool transposed : {true, false}) {
    ExpectNBitsProduct({600, 2100, 4, 32, ZeroPoints::kPacked, transposed, true}, {3});
    ExpectNBitsProduct({2100, 600, 4, 1024, ZeroPoints::kNone, transposed, true}, {3});
    ExpectNBitsProduct({300, 520, 4, 512, ZeroPoints::kFloating, transposed}, {64}, 3);
  }
}

TEST(MatMulNBits, HalvesAndBatches) {
  for (const bool transposed : {true, false}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      for (const ZeroPoints zeros : {ZeroPoints::kPacked, ZeroPoints::kFloating})
        ExpectNBitsProduct({24, 96, 4, 32, zeros, transposed, true, dtype}, {2, 3});
    }
    ExpectNBitsProduct({24, 96, 4, 32, ZeroPoints::kPacked, transposed}, {2, 3, 4});
    ExpectNBitsProduct({24, 96, 4, 32, ZeroPoints::kPacked, transposed}, {});  // a vector
    ExpectNBitsProduct({24, 96, 4, 32, ZeroPoints::kPacked, transposed}, {0, 4});
  }
}

// Scales and packed zero points may be flat, as older exporters write them.
TEST(MatMulNBits, FlatScalesAndZeroPoints) {
  NBitsCase node = MakeNBitsCase({6, 96, 4, 32, ZeroPoints::kPacked}, {2});
  const auto expected = node.kernel.Run().value();
  NBitsCase flat = MakeNBitsCase({6, 96, 4, 32, ZeroPoints::kPacked}, {2});
  for (const int i : {2, 3}) {
    const Tensor& tensor = flat.kernel.inputs[i].tensor();
    flat.kernel.inputs[i] = tensor.Reshaped(Shape{tensor.elements()});
  }
  EXPECT_TRUE(SameBits(expected[0], flat.kernel.Run().value()[0]));
}

struct NBitsDamage {
  const char* message;
  std::function<void(KernelCase&)> apply;
};

TEST(MatMulNBits, RefusesWhatDoesNotFit) {
  const auto attribute = [](const char* name, int64_t value) {
    return [=](KernelCase& k) { k.attributes[name] = value; };
  };
  const auto input = [](int i, DType dtype, const Shape& shape) {
    return [=](KernelCase& k) { k.inputs[i] = Tensor::Zeros(dtype, shape); };
  };
  constexpr DType kByte = DType::kUInt8, kFloat = DType::kFloat32, kHalf = DType::kFloat16;
  const NBitsDamage damages[] = {
      {"bits: expected 2, 4 or 8, got 3", attribute("bits", 3)},
      {"bits: expected 2, 4 or 8, got 16", attribute("bits", 16)},
      {"bits: expected a positive number, got -4", attribute("bits", -4)},
      {"block_size: expected a power of two from 16 on, got 24", attribute("block_size", 24)},
      {"block_size: expected a power of two from 16 on, got 8", attribute("block_size", 8)},
      {"block_size: expected a positive number, got 0", attribute("block_size", 0)},
      {"K: expected a positive number, got -96", attribute("K", -96)},
      {"N: expected a positive number, got 0", attribute("N", 0)},
      {"B: expected [6, 4, 16], got [6, 3, 16]", attribute("K", 97)},
      {"B: expected [7, 3, 16], got [6, 3, 16]", attribute("N", 7)},
      {"B: expected [6, 3, 32], got [6, 3, 16]", attribute("bits", 8)},
      {"B: expected [6, 3, 16], got [6, 48]", input(1, kByte, {6, 48})},
      {"B: expected uint8, got int8", input(1, DType::kInt8, {6, 3, 16})},
      {"A: expected a last dim of 96, got [2, 95]", input(0, kFloat, {2, 95})},
      {"A: expected a last dim of 96, got []", input(0, kFloat, {})},
      {"scales: expected [6, 3], got [6, 2]", input(2, kFloat, {6, 2})},
      {"scales: expected float32, got float16", input(2, kHalf, {6, 3})},
      {"zero_points: expected [6, 2], got [6, 1]", input(3, kByte, {6, 1})},
      {"zero_points: expected [6, 3], got [5, 3]", input(3, kFloat, {5, 3})},
      {"zero_points that are not uint8: expected float32, got int8",
       input(3, DType::kInt8, {6, 2})},
      {"g_idx: blocks in another order are not supported", input(4, DType::kInt32, {96})},
      {"bias: expected [6], got [5]", input(5, kFloat, {5})},
      {"bias: expected float32, got float16", input(5, kHalf, {6})},
  };
  for (const NBitsDamage& damage : damages) {
    NBitsCase node = MakeNBitsCase({6, 96, 4, 32, ZeroPoints::kPacked}, {2});
    damage.apply(node.kernel);
    const Status status = node.kernel.Run().status();
    EXPECT_THAT(status.message(), HasSubstr(damage.message));
    EXPECT_THAT(status.message(), HasSubstr("[com.microsoft::MatMulNBits"));
  }
}

}  // namespace
}  // namespace caesura::testing
