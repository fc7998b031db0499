// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/kernel_case.h"

namespace caesura {
namespace {

using Values = std::vector<RuntimeValue>;

Tensor FloatTensor(Shape shape, const std::vector<float>& values) {
  return Tensor::Of<float>(std::move(shape), values);
}
Tensor At(int64_t position) { return Tensor::Scalar<int64_t>(position); }
RuntimeValue Three() {
  return RuntimeValue::Sequence(
      {FloatTensor({1}, {1}), FloatTensor({2}, {2, 2}), FloatTensor({3}, {3, 3, 3})});
}
Result<Values> RunSequenceOp(const char* op, Values inputs, AttributeMap attributes = {}) {
  return KernelCase(op, std::move(inputs), std::move(attributes)).Run();
}
std::vector<int64_t> Sizes(const RuntimeValue& sequence) {
  std::vector<int64_t> out;
  for (const RuntimeValue& element : sequence.sequence())
    out.push_back(element.tensor().elements());
  return out;
}
using Ints = std::vector<int64_t>;

TEST(Sequence, KeepsItsOwnCopies) {
  const Tensor x = FloatTensor({1}, {7});
  const RuntimeValue sequence = RunSequenceOp("SequenceConstruct", {x, x}).value()[0];
  x.data<float>()[0] = 0;
  EXPECT_EQ(sequence.sequence()[1].tensor().data<float>()[0], 7);
  const Values element = RunSequenceOp("SequenceAt", {sequence, At(0)}).value();
  element[0].tensor().data<float>()[0] = 5;
  EXPECT_EQ(sequence.sequence()[0].tensor().data<float>()[0], 7);
}

TEST(Sequence, InsertsErasesAndCounts) {
  const Tensor four = FloatTensor({4}, {4, 4, 4, 4});
  EXPECT_EQ(Sizes(RunSequenceOp("SequenceInsert", {Three(), four}).value()[0]), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(Sizes(RunSequenceOp("SequenceInsert", {Three(), four, At(0)}).value()[0]),
            (Ints{4, 1, 2, 3}));
  EXPECT_EQ(Sizes(RunSequenceOp("SequenceInsert", {Three(), four, At(3)}).value()[0]),
            (Ints{1, 2, 3, 4}));
  EXPECT_EQ(Sizes(RunSequenceOp("SequenceInsert", {Three(), four, At(-3)}).value()[0]),
            (Ints{4, 1, 2, 3}));
  EXPECT_EQ(Sizes(RunSequenceOp("SequenceErase", {Three()}).value()[0]), (Ints{1, 2}));
  EXPECT_EQ(
      Sizes(RunSequenceOp("SequenceErase", {Three(), Tensor::Scalar<int32_t>(-3)}).value()[0]),
      (Ints{2, 3}));
  EXPECT_EQ(RunSequenceOp("SequenceLength", {Three()}).value()[0].tensor().ToVector<int64_t>(),
            (Ints{3}));
  EXPECT_EQ(
      Sizes(RunSequenceOp("SequenceInsert", {RunSequenceOp("SequenceEmpty", {}).value()[0], four})
                .value()[0]),
      (Ints{4}));
}

TEST(Sequence, ChecksPositionsAndTypes) {
  const RuntimeValue empty = RuntimeValue::Sequence({});
  const Tensor four = FloatTensor({4}, {4, 4, 4, 4});
  for (const Result<Values>& result :
       {RunSequenceOp("SequenceInsert", {Three(), four, At(4)}),
        RunSequenceOp("SequenceInsert", {Three(), four, At(-4)}),
        RunSequenceOp("SequenceErase", {Three(), At(3)}), RunSequenceOp("SequenceErase", {empty}),
        RunSequenceOp("SequenceAt", {empty, At(0)}), RunSequenceOp("SequenceAt", {Three(), At(-4)}),
        RunSequenceOp("SequenceAt", {four, At(0)}),
        RunSequenceOp("SequenceInsert", {Three(), At(1)}),
        RunSequenceOp("ConcatFromSequence", {empty}, {{"axis", int64_t{0}}}),
        RunSequenceOp("ConcatFromSequence", {Three()}, {{"axis", int64_t{1}}}),
        RunSequenceOp("SequenceConstruct", {four, At(1)})}) {
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(SplitToSequence, CutsAlongAnyAxis) {
  const Tensor x = FloatTensor({2, 3}, {0, 1, 2, 3, 4, 5});
  auto split = [&](Values inputs, AttributeMap attributes) {
    return RunSequenceOp("SplitToSequence", std::move(inputs), std::move(attributes));
  };
  const Attribute last = int64_t{-1};
  const RuntimeValue pairs = split({x, At(2)}, {{"axis", last}}).value()[0];
  EXPECT_EQ(pairs.sequence()[0].tensor().ToVector<float>(), (std::vector<float>{0, 1, 3, 4}));
  EXPECT_EQ(pairs.sequence()[1].tensor().ToVector<float>(), (std::vector<float>{2, 5}));
  const RuntimeValue rows = split({x}, {{"keepdims", int64_t{0}}}).value()[0];
  EXPECT_EQ(rows.sequence()[1].tensor().shape(), (Shape{3}));
  const RuntimeValue given =
      split({x, Tensor::Of<int64_t>({3}, {0, 2, 1})}, {{"axis", last}}).value()[0];
  EXPECT_EQ(Sizes(given), (Ints{0, 4, 2}));
  for (const std::vector<int64_t>& wrong : {Ints{1, 1}, Ints{4, -1}, Ints{5}}) {
    const Tensor lengths = Tensor::Of<int64_t>({static_cast<int64_t>(wrong.size())}, wrong);
    EXPECT_EQ(split({x, lengths}, {{"axis", last}}).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(split({x, At(0)}, {}).status().code(), StatusCode::kInvalidArgument);
  const Tensor none = Tensor::Zeros(DType::kFloat32, Shape{0, int64_t{1} << 40});
  EXPECT_EQ(split({none}, {{"axis", last}}).status().code(), StatusCode::kInvalidArgument);
}

TEST(ConcatFromSequence, JoinsAndStacks) {
  const RuntimeValue rows =
      RuntimeValue::Sequence({FloatTensor({1, 2}, {1, 2}), FloatTensor({1, 2}, {3, 4})});
  auto join = [&](int64_t axis, int64_t new_axis) {
    return RunSequenceOp("ConcatFromSequence", {rows}, {{"axis", axis}, {"new_axis", new_axis}})
        .value()[0]
        .tensor();
  };
  EXPECT_EQ(join(0, 0).shape(), (Shape{2, 2}));
  EXPECT_EQ(join(-1, 0).ToVector<float>(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(join(-1, 1).shape(), (Shape{1, 2, 2}));
  EXPECT_EQ(join(-1, 1).ToVector<float>(), (std::vector<float>{1, 3, 2, 4}));
}

TEST(Optional, HoldsOrIsEmpty) {
  const Tensor x = FloatTensor({1}, {7});
  EXPECT_EQ(RunSequenceOp("Optional", {x}).value()[0].tensor().ToVector<float>(),
            (std::vector<float>{7}));
  EXPECT_FALSE(RunSequenceOp("Optional", {}).value()[0].has_value());
  auto has = [](Values inputs) {
    return *RunSequenceOp("OptionalHasElement", std::move(inputs)).value()[0].tensor().data<bool>();
  };
  EXPECT_TRUE(has({x}));
  EXPECT_TRUE(has({Three()}));
  EXPECT_FALSE(has({}));
  EXPECT_FALSE(has({RuntimeValue()}));
  EXPECT_EQ(Sizes(RunSequenceOp("OptionalGetElement", {Three()}).value()[0]), (Ints{1, 2, 3}));
}

}  // namespace
}  // namespace caesura
