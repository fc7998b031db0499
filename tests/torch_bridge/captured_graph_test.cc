// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/captured_graph.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "torch_bridge/captured_call.h"

namespace caesura::torch {
namespace {

using c10::IValue;

template <typename... T>
IValue TupleOf(T... items) {
  return c10::ivalue::Tuple::create({IValue(items)...});
}
IValue ValueAt(int64_t i) { return TupleOf(std::string("value"), i); }

c10::intrusive_ptr<CapturedGraph> Graph(int64_t values) {
  return c10::make_intrusive<CapturedGraph>(values, c10::make_intrusive<CallCounters>());
}

int64_t SizeOf(const std::string& name, int64_t a, int64_t b) {
  const auto graph = Graph(2);
  graph->AddSize(name, TupleOf(ValueAt(0), b), 1, {});
  CapturedGraph::Values values = graph->Begin();
  values[0] = a;
  graph->Run(values);
  return values[1].toInt();
}

TEST(CapturedGraphTest, SizesAreRoundedAsPythonDoes) {
  EXPECT_EQ(SizeOf("add", 7, 2), 9);
  EXPECT_EQ(SizeOf("sub", 7, 2), 5);
  EXPECT_EQ(SizeOf("mul", 7, 2), 14);
  EXPECT_EQ(SizeOf("floordiv", 7, 2), 3);
  EXPECT_EQ(SizeOf("floordiv", -7, 2), -4);
  EXPECT_EQ(SizeOf("floordiv", -8, 2), -4);
  EXPECT_EQ(SizeOf("mod", 7, 3), 1);
  EXPECT_EQ(SizeOf("mod", -7, 3), 2);
  EXPECT_EQ(SizeOf("mod", 7, -3), -2);
  EXPECT_THROW(SizeOf("floordiv", 7, 0), c10::Error);
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = ~kLeast;
  EXPECT_EQ(SizeOf("mod", kLeast, -1), 0);
  EXPECT_EQ(SizeOf("mod", 3, kMost), 3);
  EXPECT_EQ(SizeOf("mod", -3, kMost), kMost - 3);
  EXPECT_EQ(SizeOf("floordiv", kLeast, 1), kLeast);
  EXPECT_EQ(SizeOf("add", kMost, kLeast), -1);
  EXPECT_THROW(SizeOf("mod", 7, 0), c10::Error);
  EXPECT_THROW(SizeOf("floordiv", kLeast, -1), c10::Error);  // ended the process
  EXPECT_THROW(SizeOf("add", kMost, 1), c10::Error);
  EXPECT_THROW(SizeOf("sub", kLeast, 1), c10::Error);
  EXPECT_THROW(SizeOf("mul", kMost, 2), c10::Error);
  EXPECT_THROW(SizeOf("neg", kLeast, 0), c10::Error);
  EXPECT_THROW(SizeOf("pow", 7, 2), c10::Error);
}

TEST(CapturedGraphTest, OperatorsTakeValuesListsAndNumbers) {
  const auto graph = Graph(5);
  // view(x, [n, -1]), its halves, 2 * the second one
  graph->AddOperator("aten::view", "",
                     TupleOf(ValueAt(0), TupleOf(std::string("list"), ValueAt(1), int64_t{-1})), 2,
                     false, {0, 1});
  graph->AddOperator("aten::split", "Tensor", TupleOf(ValueAt(2), int64_t{1}, int64_t{0}), 3, false,
                     {});
  graph->AddElement(3, 1, 4, {3});
  graph->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(4), int64_t{2}), 4, true, {});
  CapturedGraph::Values values = graph->Begin();
  values[0] = at::arange(6, at::kFloat);
  values[1] = int64_t{2};
  graph->Run(values);
  EXPECT_TRUE(at::equal(values[4].toTensor(), at::tensor({6.0f, 8.0f, 10.0f}).view({1, 3})));
  EXPECT_TRUE(values[0].isNone() && values[1].isNone() && values[3].isNone());
}

TEST(CapturedGraphTest, WhatIsNoArgumentIsRefused) {
  const auto graph = Graph(2);
  EXPECT_THROW(graph->AddOperator("aten::no_such_operator", "", TupleOf(ValueAt(0)), 1, false, {}),
               c10::Error);
  EXPECT_THROW(graph->AddOperator("aten::relu", "", TupleOf(ValueAt(0), int64_t{1}), 1, false, {}),
               c10::Error);
  EXPECT_THROW(graph->AddProgram(at::zeros({3}, at::kByte), {0}, {1}, {}), c10::Error);
  EXPECT_THROW(graph->AddPart({1}, {}), c10::Error);  // of no program
}

TEST(CapturedGraphTest, NumbersOfNoValueAreRefused) {
  const auto graph = Graph(2);
  EXPECT_THROW(graph->AddOperator("aten::relu", "", TupleOf(ValueAt(2)), 1, false, {}), c10::Error);
  EXPECT_THROW(graph->AddOperator("aten::relu", "", TupleOf(ValueAt(-7)), 1, false, {}),
               c10::Error);
  EXPECT_THROW(graph->AddOperator("aten::relu", "", TupleOf(ValueAt(0)), -1, false, {}),
               c10::Error);
  EXPECT_THROW(graph->AddOperator("aten::relu", "", TupleOf(ValueAt(0)), 1, false, {2}),
               c10::Error);
  EXPECT_THROW(graph->AddSize("add", TupleOf(), 1, {}), c10::Error);
  EXPECT_THROW(graph->AddElement(2, 0, 1, {}), c10::Error);
  EXPECT_THROW(Graph(-1), c10::Error);
  EXPECT_THROW(Graph(int64_t{1} << 62), c10::Error);
  graph->AddElement(0, 5, 1, {});
  for (IValue list : {TupleOf(int64_t{1}), IValue(int64_t{1})}) {
    CapturedGraph::Values values = graph->Begin();
    values[0] = list;
    EXPECT_THROW(graph->Run(values), c10::Error);
  }
}

// y = x * x, its gradient 2 * x * dy.
std::vector<std::vector<int64_t>> SquareLayout() {
  return {{0}, {}, {1}, {0}, {}, {}, {0}, {}, {0}, {}, {1}, {3}, {1}, {0}};
}

c10::intrusive_ptr<CapturedCall> Square(int64_t key) {
  const auto forward = Graph(2), backward = Graph(4);
  forward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(0), ValueAt(0)), 1, false, {});
  backward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(0), ValueAt(1)), 2, false, {0, 1});
  backward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(2), int64_t{2}), 3, false, {2});
  return c10::make_intrusive<CapturedCall>(forward, backward, SquareLayout(), false, key, nullptr);
}

TEST(CapturedCallTest, TheNodeOutlivesTheCall) {
  at::Tensor x = at::tensor({1.0f, -3.0f}).requires_grad_();
  at::Tensor y = Square(1)->Run({x}, {})[0];
  y.backward(at::tensor({1.0f, 10.0f}), /*retain_graph=*/true);
  y.backward(at::tensor({1.0f, 10.0f}));
  EXPECT_TRUE(at::equal(x.grad(), at::tensor({4.0f, -120.0f})));
  EXPECT_THROW(y.backward(at::tensor({1.0f, 10.0f})), c10::Error);
}

// y = (a * b) * c in two parts: the first hands out the gradient of c, the second those of a and b.
c10::intrusive_ptr<CapturedCall> Product(int64_t key) {
  const auto forward = Graph(5), backward = Graph(9);
  forward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(0), ValueAt(1)), 3, false, {});
  forward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(3), ValueAt(2)), 4, false, {});
  // 0 to 2: the inputs, 3: a * b, 4: dy
  backward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(4), ValueAt(3)), 5, false, {3});
  backward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(4), ValueAt(2)), 6, false, {2, 4});
  backward->AddCut();
  backward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(6), ValueAt(1)), 7, false, {1});
  backward->AddOperator("aten::mul", "Tensor", TupleOf(ValueAt(6), ValueAt(0)), 8, false, {0, 6});
  return c10::make_intrusive<CapturedCall>(forward, backward,
                                           std::vector<std::vector<int64_t>>{{0, 1, 2},
                                                                             {},
                                                                             {4},
                                                                             {0},
                                                                             {},
                                                                             {},
                                                                             {0, 1, 2, 3},
                                                                             {},
                                                                             {0, 1, 2, 3},
                                                                             {},
                                                                             {4},
                                                                             {7, 8, 5},
                                                                             {1, 1, 1},
                                                                             {1, 1, 0}},
                                           false, key, nullptr);
}

TEST(CapturedCallTest, HooksRunBetweenTheParts) {
  at::Tensor a = at::tensor({2.0f}).requires_grad_(), b = at::tensor({3.0f}).requires_grad_();
  at::Tensor c = at::tensor({5.0f}).requires_grad_();
  const auto call = Product(3);
  at::Tensor y = call->Run({a, b, c}, {})[0];
  bool early = false;
  c.register_hook([&](const at::Tensor& gradient) {
    early = gradient.item<float>() == 6.0f && !a.grad().defined();
    at::NoGradGuard no_grad;
    c.mul_(7);  // nothing that is still to run reads it
  });
  y.backward();
  EXPECT_TRUE(early);
  EXPECT_EQ(a.grad().item<float>(), 15.0f);
  EXPECT_EQ(b.grad().item<float>(), 10.0f);
  EXPECT_EQ(c.grad().item<float>(), 6.0f);
}

TEST(CapturedCallTest, AHookThatChangesWhatIsStillReadIsAnError) {
  at::Tensor a = at::tensor({2.0f}).requires_grad_(), b = at::tensor({3.0f}).requires_grad_();
  at::Tensor c = at::tensor({5.0f}).requires_grad_();
  at::Tensor y = Product(4)->Run({a, b, c}, {})[0];
  c.register_hook([&](const at::Tensor&) {
    at::NoGradGuard no_grad;
    a.mul_(7);
  });
  EXPECT_THROW(y.backward(), c10::Error);
  EXPECT_FALSE(a.grad().defined());
}

TEST(CapturedCallTest, OneTensorsGradientNeedsItsPartsOnly) {
  at::Tensor a = at::tensor({2.0f}).requires_grad_(), b = at::tensor({3.0f}),
             c = at::tensor({5.0f});
  Product(5)->Run({a, b, c}, {})[0].backward();
  EXPECT_EQ(a.grad().item<float>(), 15.0f);
  EXPECT_FALSE(b.grad().defined() || c.grad().defined());
}

TEST(CapturedCallTest, ALayoutThatDoesNotFitIsRefused) {
  std::vector<std::vector<int64_t>> layout = SquareLayout();
  for (size_t i = 0; i < layout.size(); ++i) {
    for (int64_t wrong : {-2, 4}) {
      layout = SquareLayout();
      layout[i].push_back(wrong);
      EXPECT_THROW(
          c10::make_intrusive<CapturedCall>(Graph(2), Graph(4), layout, false, 100 + i, nullptr),
          c10::Error)
          << i;
    }
  }
}

TEST(CapturedCallTest, AnInputThatWasChangedIsAnError) {
  at::Tensor x = at::tensor({1.0f, -3.0f}).requires_grad_();
  const auto call = Square(2);
  at::Tensor y = call->Run({x}, {})[0];
  at::NoGradGuard no_grad;
  x.add_(1);
  EXPECT_THROW(y.backward(at::ones({2})), c10::Error);
  EXPECT_FALSE(call->Run({x}, {})[0].requires_grad());
  EXPECT_THROW(call->Run({x, x}, {}), c10::Error);
}

}  // namespace
}  // namespace caesura::torch
