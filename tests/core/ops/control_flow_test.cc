// SPDX-License-Identifier: Apache-2.0
// If, Loop and Scan over bodies that are C++ functions.
#include <gtest/gtest.h>

#include <functional>

#include "tests/kernel_case.h"

namespace caesura {
namespace {

using Values = std::vector<RuntimeValue>;

class FunctionBody : public SubgraphRunner {
 public:
  FunctionBody(int inputs, int outputs, std::function<Result<Values>(Values)> fn)
      : fn_(std::move(fn)) {
    for (int i = 0; i < inputs; ++i) graph_.AddInput("", {});
    const ValueType pair = ValueType::Tensor(DType::kFloat32, Shape{2});
    for (int i = 0; i < outputs; ++i) graph_.AddOutput(graph_.AddValue("", pair));
  }
  Result<Values> Run(Values inputs, KernelContext&, uint64_t) override {
    ++runs;
    return fn_(std::move(inputs));
  }
  const Graph& graph() const override { return graph_; }
  int runs = 0;

 private:
  Graph graph_;
  std::function<Result<Values>(Values)> fn_;
};

Tensor Pair(float a, float b) { return Tensor::Of<float>({2}, {a, b}); }
Tensor Truth(bool value) { return Tensor::Scalar<bool>(value); }
float FirstFloat(const RuntimeValue& value) { return value.tensor().data<float>()[0]; }

// Carries v -> v + [i, 1] and scans out the new v; goes on while v[0] < 10.
std::shared_ptr<FunctionBody> Adder() {
  return std::make_shared<FunctionBody>(3, 3, [](Values in) -> Result<Values> {
    const float i = static_cast<float>(*in[0].tensor().data<int64_t>());
    const float* v = in[2].tensor().data<float>();
    const Tensor next = Pair(v[0] + i, v[1] + 1);
    return Values{Truth(v[0] + i < 10), next, next.Clone().value()};
  });
}

Result<Values> RunLoop(std::shared_ptr<SubgraphRunner> body, Values inputs, int outputs = 2) {
  KernelCase node("Loop", std::move(inputs), {}, "", outputs);
  node.body = std::move(body);
  return node.Run();
}

TEST(Loop, CountsTripsAndStacksScanOutputs) {
  const Values out =
      RunLoop(Adder(), {Tensor::Scalar<int64_t>(3), RuntimeValue(), Pair(0, 0)}).value();
  EXPECT_EQ(out[0].tensor().ToVector<float>(), (std::vector<float>{3, 3}));
  EXPECT_EQ(out[1].tensor().shape(), (Shape{3, 2}));
  EXPECT_EQ(out[1].tensor().ToVector<float>(), (std::vector<float>{0, 1, 1, 2, 3, 3}));
}

TEST(Loop, EndsByItsCondition) {
  auto body = Adder();
  const Values out = RunLoop(body, {RuntimeValue(), Truth(true), Pair(0, 0)}).value();
  EXPECT_EQ(FirstFloat(out[0]), 10);
  EXPECT_EQ(body->runs, 5);
}

TEST(Loop, WithoutAnIterationHandsOutCopiesAndEmptyScans) {
  const Tensor start = Pair(4, 5);
  auto body = Adder();
  const Tensor none = Tensor::Scalar<int64_t>(0), negative = Tensor::Scalar<int64_t>(-3);
  for (const Values& inputs :
       {Values{none, RuntimeValue(), start}, Values{RuntimeValue(), Truth(false), start},
        Values{negative, Truth(true), start}}) {
    const Values out = RunLoop(body, inputs).value();
    EXPECT_EQ(out[0].tensor().ToVector<float>(), (std::vector<float>{4, 5}));
    EXPECT_NE(out[0].tensor().raw(), start.raw());
    EXPECT_EQ(out[1].tensor().shape(), (Shape{0, 2}));
  }
  EXPECT_EQ(body->runs, 0);
}

TEST(Loop, CopiesWhatTheBodyPassesThrough) {
  const Tensor start = Pair(4, 5);
  auto body = std::make_shared<FunctionBody>(
      3, 2, [](Values in) -> Result<Values> { return Values{in[1], in[2]}; });
  const Values out = RunLoop(body, {Tensor::Scalar<int64_t>(2), Truth(true), start}, 1).value();
  EXPECT_EQ(FirstFloat(out[0]), 4);
  EXPECT_NE(out[0].tensor().raw(), start.raw());
}

TEST(Loop, NamesTheIterationThatFails) {
  auto changing = std::make_shared<FunctionBody>(2, 2, [](Values in) -> Result<Values> {
    return Values{Truth(true),
                  Tensor::Zeros(DType::kFloat32, Shape{*in[0].tensor().data<int64_t>()})};
  });
  EXPECT_EQ(RunLoop(changing, {Tensor::Scalar<int64_t>(2)}, 1).status().code(),
            StatusCode::kInvalidArgument);
  auto failing = std::make_shared<FunctionBody>(2, 1, [](Values in) -> Result<Values> {
    if (*in[0].tensor().data<int64_t>() == 1) return InvalidArgument("too much");
    return Values{Truth(true)};
  });
  const Status status = RunLoop(failing, {Tensor::Scalar<int64_t>(2)}, 0).status();
  EXPECT_NE(status.message().find("iteration 1: too much"), std::string::npos) << status.message();
  EXPECT_EQ(
      RunLoop(failing, {Tensor::Scalar<int64_t>(2), RuntimeValue(), Pair(1, 1)}, 0).status().code(),
      StatusCode::kInvalidArgument);
}

TEST(If, TakesOneBranch) {
  auto branch = std::make_shared<FunctionBody>(
      0, 1, [](Values) -> Result<Values> { return Values{Pair(1, 2)}; });
  KernelCase node("If", {Truth(true)});
  node.body = branch;
  EXPECT_EQ(FirstFloat(node.Run().value()[0]), 1);
  KernelCase wrong("If", {Pair(1, 1)});
  wrong.body = branch;
  EXPECT_EQ(wrong.Run().status().code(), StatusCode::kInvalidArgument);
}

// State: the sum so far; scan output: the slice times ten.
std::shared_ptr<FunctionBody> Summer() {
  return std::make_shared<FunctionBody>(2, 2, [](Values in) -> Result<Values> {
    const float* sum = in[0].tensor().data<float>();
    const float* x = in[1].tensor().data<float>();
    return Values{Pair(sum[0] + x[0], sum[1] + x[1]), Pair(10 * x[0], 10 * x[1])};
  });
}

Result<Values> RunScan(Values inputs, AttributeMap attributes, int version = 9) {
  attributes["num_scan_inputs"] = int64_t{1};
  KernelCase node("Scan", std::move(inputs), std::move(attributes), "", 2);
  node.since_version = version;
  node.body = Summer();
  return node.Run();
}
using Ints = std::vector<int64_t>;

TEST(Scan, WalksAxesInBothDirections) {
  const Tensor rows = Tensor::Of<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  Values out = RunScan({Pair(0, 0), rows}, {}).value();
  EXPECT_EQ(out[0].tensor().ToVector<float>(), (std::vector<float>{9, 12}));
  EXPECT_EQ(out[1].tensor().ToVector<float>(), (std::vector<float>{10, 20, 30, 40, 50, 60}));
  out = RunScan({Pair(0, 0), rows}, {{"scan_input_directions", Ints{1}}}).value();
  EXPECT_EQ(out[1].tensor().ToVector<float>(), (std::vector<float>{50, 60, 30, 40, 10, 20}));
  out = RunScan({Pair(0, 0), rows}, {{"scan_output_directions", Ints{1}}}).value();
  EXPECT_EQ(out[1].tensor().ToVector<float>(), (std::vector<float>{50, 60, 30, 40, 10, 20}));
  const Tensor columns = Tensor::Of<float>({2, 3}, {1, 3, 5, 2, 4, 6});
  out =
      RunScan({Pair(0, 0), columns}, {{"scan_input_axes", Ints{-1}}, {"scan_output_axes", Ints{1}}})
          .value();
  EXPECT_EQ(out[0].tensor().ToVector<float>(), (std::vector<float>{9, 12}));
  EXPECT_EQ(out[1].tensor().shape(), (Shape{2, 3}));
  EXPECT_EQ(out[1].tensor().ToVector<float>(), (std::vector<float>{10, 30, 50, 20, 40, 60}));
}

TEST(Scan, OfNothingAndOfABatch) {
  Values out = RunScan({Pair(7, 8), Tensor::Zeros(DType::kFloat32, Shape{0, 2})}, {}).value();
  EXPECT_EQ(out[0].tensor().ToVector<float>(), (std::vector<float>{7, 8}));
  EXPECT_EQ(out[1].tensor().shape(), (Shape{0, 2}));
  const Tensor state = Tensor::Zeros(DType::kFloat32, Shape{2, 2});
  out = RunScan({RuntimeValue(), state, Tensor::Of<float>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})}, {},
                8)
            .value();
  EXPECT_EQ(out[0].tensor().ToVector<float>(), (std::vector<float>{4, 6, 12, 14}));
  EXPECT_EQ(out[1].tensor().shape(), (Shape{2, 2, 2}));
}

TEST(Scan, ChecksItsAttributes) {
  const Tensor rows = Tensor::Of<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  for (const AttributeMap& attributes :
       {AttributeMap{{"scan_input_axes", Ints{2}}}, AttributeMap{{"scan_input_axes", Ints{0, 0}}},
        AttributeMap{{"scan_output_axes", Ints{3}}},
        AttributeMap{{"scan_input_directions", Ints{}}}}) {
    EXPECT_EQ(RunScan({Pair(0, 0), rows}, attributes).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace caesura
