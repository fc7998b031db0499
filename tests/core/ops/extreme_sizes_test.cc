// SPDX-License-Identifier: Apache-2.0
// Sizes that no memory holds and windows that are mostly padding: what is not refused takes no
// longer than what it reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/ops/conv/conv_engine.h"
#include "core/ops/pool/pool_window.h"
#include "core/kernels/gemm/gemm.h"
#include "tests/kernel_case.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

constexpr int64_t kBeyond32Bits = int64_t{1} << 32, kWindow = int64_t{1} << 30;

// Which inputs each output sees, with how often.
std::multiset<std::pair<int64_t, int64_t>> Seen(const WindowGeometry& g) {
  std::multiset<std::pair<int64_t, int64_t>> out;
  for (int64_t o = 0; o < g.output[0]; ++o) {
    for (int64_t k = 0; k < g.kernel[0]; ++k) {
      const int64_t i = o * g.strides[0] - g.pads_begin[0] + k * g.dilations[0];
      if (i >= 0 && i < g.input[0]) out.emplace(o, i);
    }
  }
  return out;
}

TEST(WithoutUnseen, LeavesAllThatIsSeen) {
  int cropped = 0;
  for (int64_t input = 1; input <= 6; ++input) {
    for (int64_t kernel = 1; kernel <= 9; ++kernel) {
      for (int64_t pad = 0; pad <= 9; ++pad) {
        for (int64_t step = 1; step <= 3; ++step) {
          for (int64_t dilation = 1; dilation <= 3; ++dilation) {
            WindowGeometry g{{input}, {kernel}, {}, {step}, {dilation}, {pad}, {9 - pad}};
            const int64_t room = input + 9 - g.Extent(0);
            if (room < 0) continue;
            g.output = {room / step + 1};
            const WindowGeometry part = WithoutUnseen(g);
            ASSERT_EQ(Seen(part), Seen(g))
                << input << " " << kernel << " " << pad << " " << step << " " << dilation;
            cropped += part.kernel[0] < kernel;
          }
        }
      }
    }
  }
  EXPECT_GT(cropped, 1000);
}

TEST(Pools, WindowsFarLargerThanTheirInput) {
  const Tensor x = Tensor::Of<float>({1, 1, 2, 3}, {1, 5, 2, 4, 3, 8});
  const AttributeMap same = {{"kernel_shape", std::vector<int64_t>{1, kWindow}},
                             {"auto_pad", std::string("SAME_LOWER")}};
  const auto run = [&](const char* op, AttributeMap attributes) {
    return KernelCase(op, {x}, std::move(attributes)).Run().value()[0].tensor().ToVector<float>();
  };
  EXPECT_EQ(run("MaxPool", same), (Floats{5, 5, 5, 8, 8, 8}));
  EXPECT_EQ(run("AveragePool", same), (Floats{8.0f / 3, 8.0f / 3, 8.0f / 3, 5, 5, 5}));
  AttributeMap padded = same;
  padded["count_include_pad"] = int64_t{1};
  EXPECT_THAT(run("AveragePool", padded), Each(::testing::Lt(1e-7f)));
  AttributeMap sum = same;
  sum["p"] = int64_t{1};
  EXPECT_EQ(run("LpPool", sum), (Floats{8, 8, 8, 15, 15, 15}));
}

TEST(Pools, ManyOutputsAreRefused) {
  const std::vector<int64_t> ones = {1, 1, 1}, pads(6, kWindow);
  const Status status =
      KernelCase("MaxPool", {Tensor::Zeros(DType::kFloat32, Shape{1, 1, 1, 1, 1})},
                 {{"kernel_shape", ones}, {"pads", pads}})
          .Run()
          .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("too large"));
}

TEST(RoiAlign, RegionsFarLargerThanTheImage) {
  for (const char* mode : {"avg", "max"}) {
    const auto y = KernelCase("RoiAlign",
                              {Tensor::Of<float>({1, 1, 2, 2}, {1, 2, 3, 4}),
                               Tensor::Of<float>({1, 4}, {-1e9f, -1e9f, 1e9f, 1e9f}),
                               Tensor::Of<int64_t>({1}, {0})},
                              {{"output_height", int64_t{2}},
                               {"output_width", int64_t{2}},
                               {"mode", std::string(mode)}})
                       .Run();
    ASSERT_TRUE(y.ok()) << y.status().ToString();
    EXPECT_THAT((*y)[0].tensor().ToVector<float>(),
                Each(::testing::AllOf(::testing::Ge(0.0f), ::testing::Le(4.0f))));
  }
}

class Creation : public ::testing::Test {
 protected:
  Graph graph_;
  Node* node_ = graph_.AddNode("Test", {}, {graph_.AddValue("y")}, {});
  KernelInfo info_{*node_, {}, 1};
};

// A view of one element that is as wide as this takes no memory; oneDNN divides by its width modulo
// 2^32.
TEST_F(Creation, OfProductsThatDoNotFitOneDnn) {
  GemmSpec spec{
      .dtype = DType::kFloat32, .m = 1, .n = 3, .k = 1, .a = {0, 0}, .b = {0, 1}, .c = {3, 1}};
  for (const int64_t k : {kBeyond32Bits, kBeyond32Bits * 2, (int64_t{1} << 31), int64_t{1} << 40}) {
    spec.k = k;
    const auto made = Gemm::Create(info_, spec);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
  }
  spec.dtype = DType::kBFloat16;
  EXPECT_EQ(Gemm::Create(info_, spec).status().code(), StatusCode::kDeclined);
}

TEST_F(Creation, OfConvolutionsThatDoNotFitOneDnn) {
  const auto make = [&](ConvGeometry g) {
    for (const auto direction :
         {ConvDirection::kForward, ConvDirection::kBackwardData, ConvDirection::kBackwardWeights}) {
      const auto made = ConvEngine::Make(info_, DType::kFloat32, direction, g);
      EXPECT_TRUE(made.ok()) << made.status().ToString();
    }
  };
  const auto geometry = [](int64_t input, int64_t kernel, int64_t output, int64_t stride,
                           int64_t dilation) {
    ConvGeometry g;
    g.batch = 1;
    g.channels = g.outputs = 2;
    g.window = {{input}, {kernel}, {output}, {stride}, {dilation}, {0}, {0}};
    return g;
  };
  make(geometry(kBeyond32Bits, kBeyond32Bits, 1, 1, 1));
  make(geometry(kBeyond32Bits, 1, kBeyond32Bits, 1, 1));
  make(geometry(1 << 20, 2, 1 << 20, int64_t{1} << 40, 1));
  make(geometry(1 << 20, 2, 1 << 20, 1, int64_t{1} << 32));
}

TEST(CreateKernel, RefusesWhatNoMemoryHolds) {
  const auto status = [](std::vector<int64_t> shape) {
    return KernelCase("Expand", {Tensor::Zeros(DType::kFloat32, Shape{1}),
                                 Tensor::Of<int64_t>({2}, std::move(shape))})
        .Run()
        .status();
  };
  EXPECT_EQ(status({1, int64_t{1} << 50}).code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(status({1, int64_t{1} << 50}).message(),
              HasSubstr("[Expand 'Expand'] output 0, float32[1, 1125899906842624], takes "
                        "4503599627370496 bytes"));
  EXPECT_EQ(status({kBeyond32Bits, kBeyond32Bits}).code(), StatusCode::kInvalidArgument);
}

TEST(Tensors, OfSizesThatOverflowAreNotAllocated) {
  EXPECT_EQ(Tensor::Allocate(DType::kFloat32, Shape{kBeyond32Bits, kBeyond32Bits}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Tensor::Allocate(DType::kFloat32, Shape{int64_t{1} << 50}).status().code(),
            StatusCode::kOutOfMemory);
}

TEST(TfIdfVectorizer, ColumnsThatDoNotExist) {
  for (const int64_t column :
       {int64_t{-1}, int64_t{1} << 31, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    const Status status = KernelCase("TfIdfVectorizer", {Tensor::Of<int64_t>({4}, {2, 3, 5, 4})},
                                     {{"mode", std::string("TF")},
                                      {"min_gram_length", int64_t{1}},
                                      {"max_gram_length", int64_t{1}},
                                      {"max_skip_count", int64_t{0}},
                                      {"ngram_counts", std::vector<int64_t>{0}},
                                      {"ngram_indexes", std::vector<int64_t>{0, column}},
                                      {"pool_int64s", std::vector<int64_t>{2, 3}}})
                              .Run()
                              .status();
    EXPECT_THAT(status.message(), HasSubstr("attribute 'ngram_indexes'")) << column;
  }
}

}  // namespace
}  // namespace caesura
