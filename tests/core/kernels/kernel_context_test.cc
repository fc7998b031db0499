// SPDX-License-Identifier: Apache-2.0
// A kernel's view of one call, on arguments that are laid out by hand.
#include "core/kernels/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernels/kernel_registry.h"
#include "tests/kernel_case.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;

// Remembers what it is asked for, by the argument's buffer id.
class RecordingHost : public KernelHost {
 public:
  RuntimeValue ArgumentValue(const uint32_t* argument) override {
    ids.push_back(*argument);
    return Tensor::Scalar<float>(static_cast<float>(*argument));
  }
  Result<Tensor> AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) override {
    ids.push_back(*argument);
    if (shape.elements() > 100) return OutOfMemory("too large");
    return Tensor::Allocate(dtype, std::move(shape));
  }
  void SetArgumentValue(const uint32_t* argument, RuntimeValue value) override {
    ids.push_back(*argument);
    given = std::move(value);
  }
  RandomKey random_key(uint32_t subsequence) const override { return {11, 22, subsequence}; }
  Result<Tensor> CopyOf(const Tensor& tensor) const override { return tensor.Clone(); }

  std::vector<uint32_t> ids;
  RuntimeValue given;
};

// Buffers a, b, c and d have the ids 1 to 4; 0 is absent. Two inputs, one of them left out, one
// implicit input of a body, and two outputs.
class KernelContextTest : public ::testing::Test {
 protected:
  float a_ = 1, b_ = 2, c_ = 3, d_ = 4;
  alignas(kBufferAlignment) char scratch_[256] = {};
  void* const addresses_[5] = {nullptr, &a_, &b_, &c_, &d_};
  const uint32_t ids_[5] = {4, 0, 2, 1, 3};  // inputs d, none, b; outputs a, c
  RecordingHost host_;
  KernelContext context_{addresses_, ids_, /*first_output=*/3, scratch_, /*stream=*/77, &host_};
};

TEST_F(KernelContextTest, ArgumentsAreFoundByTheirBuffers) {
  EXPECT_EQ(context_.Input<float>(0), &d_);
  EXPECT_EQ(context_.Input<float>(1), nullptr);  // absent
  EXPECT_EQ(context_.Input<float>(2), &b_);      // read by a body
  EXPECT_EQ(context_.Output<float>(0), &a_);
  EXPECT_EQ(context_.Output<float>(1), &c_);
  *context_.Output<float>(1) = 9;
  EXPECT_EQ(c_, 9);
}

// Beyond the inputs there are outputs, which a kernel must not take for an optional input.
TEST_F(KernelContextTest, InputsEndWhereOutputsBegin) {
  for (const int i : {3, 4, 5, 1000, -1}) EXPECT_EQ(context_.Input<float>(i), nullptr) << i;
}

TEST_F(KernelContextTest, ScratchIsCutByItsHandles) {
  Graph graph;
  KernelInfo info(*graph.AddOp("Op", {}, {}, "test"), {}, 1);
  const size_t first = info.BookScratch(3), second = info.BookScratch(8);
  EXPECT_EQ(context_.Scratch<char>(first), scratch_);
  double* const numbers = context_.Scratch<double>(second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(numbers) % kBufferAlignment, 0u);
  EXPECT_GE(reinterpret_cast<char*>(numbers), scratch_ + 3);
  EXPECT_LE(reinterpret_cast<char*>(numbers) + 8, scratch_ + info.scratch_bytes());
}

TEST_F(KernelContextTest, RandomKeysAreOfTheNodesSubsequence) {
  const RandomKey key = context_.random_key();
  EXPECT_EQ(key.seed, 11u);
  EXPECT_EQ(key.step, 22u);
  EXPECT_EQ(key.subsequence, 77u);
}

TEST_F(KernelContextTest, ValuesGoThroughTheHost) {
  EXPECT_EQ(context_.InputValue(2).tensor().data<float>()[0], 2);
  const Tensor made = context_.AllocateOutput(1, DType::kInt64, Shape{2, 3}).value();
  EXPECT_EQ(made.dtype(), DType::kInt64);
  EXPECT_EQ(made.shape(), (Shape{2, 3}));
  context_.SetOutputValue(0, RuntimeValue::Sequence({Tensor::Scalar<float>(5)}));
  EXPECT_TRUE(host_.given.is_sequence());
  EXPECT_THAT(host_.ids, ElementsAre(2, 3, 1));  // b, c, a
  EXPECT_EQ(context_.AllocateOutput(0, DType::kFloat32, Shape{101}).status().code(),
            StatusCode::kOutOfMemory);
  const Tensor copy = context_.CopyOf(made).value();
  EXPECT_NE(copy.raw(), made.raw());
}

TEST_F(KernelContextTest, OnTheHostThereIsNoDeviceAndNoOtherRank) {
  EXPECT_EQ(context_.device_random_key(), nullptr);
  EXPECT_EQ(context_.device_stream(), nullptr);
  EXPECT_EQ(context_.collectives(), nullptr);
}

// test.Repeat (x, times?) -> x `times` times (twice without it).
void RegisterRepeat(KernelRegistry& registry) {
  registry.Add({.op_type = "Repeat", .domain = "test", .create = [](KernelInfo& info) -> Status {
                  const int64_t count = info.InputShape(0).elements();
                  info.SetOutputSizedInCompute(0);
                  info.SetCompute([count](KernelContext& context) -> Status {
                    const int64_t* given = context.Input<int64_t>(1);
                    const int64_t times = given == nullptr ? 2 : *given;
                    ASSIGN_OR_RETURN(
                        const Tensor out,
                        context.AllocateOutput(0, DType::kFloat32, Shape{count * times}));
                    for (int64_t i = 0; i < count * times; ++i)
                      out.data<float>()[i] = context.Input<float>(0)[i % count];
                    return {};
                  });
                  return {};
                }});
}

TEST(KernelCalls, SizeTheirOutputsByWhatTheyRead) {
  const auto run = [](RuntimeValue times) {
    KernelCase repeat("Repeat", {Tensor::Of<float>({2}, {5, 6}), std::move(times)}, {}, "test");
    KernelRegistry registry;
    RegisterRepeat(registry);
    return repeat.Run(registry).value()[0].tensor().ToVector<float>();
  };
  EXPECT_THAT(run(Tensor::Scalar<int64_t>(3)), ElementsAre(5, 6, 5, 6, 5, 6));
  EXPECT_THAT(run(Tensor::Scalar<int64_t>(0)), ElementsAre());
  EXPECT_THAT(run(RuntimeValue()), ElementsAre(5, 6, 5, 6));
}

}  // namespace
}  // namespace caesura
