// SPDX-License-Identifier: Apache-2.0
// Many runs of one module in flight: each backward equals that of a run alone, bit for bit.
#include "training/session/split_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "core/execute/execution_observer.h"
#include "core/execute/execution_state.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/model_reader.h"
#include "tests/temporary_folder.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Doubles = std::vector<double>;

Model Parse(const std::string& signature, const std::string& body) {
  Model model = ParseModelText("<ir_version: 10, opset_import: [\"\": 22]>\ng " + signature + " {" +
                               body + "}")
                    .value();
  EXPECT_TRUE(InferShapes(model).ok());
  return model;
}

// Two outputs that share a middle, and a whole number beside them.
Model TwoHeads() {
  return Parse(
      "(double[n,3] x) => (double[n,2] y, double[n,3] z, int64[2] s) <double[3,2] w = "
      "{1,-2,3,4,-5,6}>",
      "h = Tanh(x) y = MatMul(h, w) z = Mul(h, h) s = Shape(x)");
}

Model Normalized() {
  return Parse(
      "(double[n,2] x) => (double[n,2] y) <double[2] scale = {1,2}, double[2] bias = {0,0}, "
      "double[2] mean = {0,0}, double[2] var = {1,1}>",
      "y = BatchNormalization<momentum = 0.5>(x, scale, bias, mean, var)");
}

SplitModuleOptions ByInput() {
  SplitModuleOptions options;
  options.inputs = {"x"};
  options.threads = 1;
  return options;
}

std::unique_ptr<SplitModule> Open(Model model, SplitModuleOptions options = ByInput()) {
  return SplitModule::Create(std::move(model), std::move(options)).value();
}

// Another batch for each k, of k + 1 rows.
Tensor DoubleBatch(int k, int columns = 3) {
  Doubles values;
  for (int i = 0; i < (k + 1) * columns; ++i)
    values.push_back(0.1 * (k + 1) - 0.3 * i + 0.05 * i * i);
  return Tensor::Of<double>(Shape{k + 1, columns}, values);
}

std::vector<RuntimeValue> Ones(const ForwardRun& run) {
  std::vector<RuntimeValue> out;
  for (const RuntimeValue& y : run.outputs) {
    if (y.tensor().dtype() != DType::kFloat64) out.push_back({});
    else out.push_back(Tensor::Of<double>(y.tensor().shape(), Doubles(y.tensor().elements(), 1)));
  }
  return out;
}

std::vector<Doubles> Values(const std::vector<RuntimeValue>& values) {
  std::vector<Doubles> out;
  for (const RuntimeValue& value : values) out.push_back(value.tensor().ToVector<double>());
  return out;
}

std::vector<Doubles> Alone(SplitModule& module, const Tensor& x) {
  ForwardRun run = module.Forward({{"x", x}}).value();
  const auto dys = Ones(run);
  return Values(run.Backward(dys).value());
}

TEST(SplitModule, ForwardAndBackward) {
  auto module = Open(TwoHeads());
  EXPECT_THAT(module->gradient_names(), ElementsAre("x", "w"));
  EXPECT_THAT(module->output_names(), ElementsAre("y", "z", "s"));
  EXPECT_THAT(module->ParameterNames(), ElementsAre("w"));
  const Tensor x = Tensor::Of<double>(Shape{1, 3}, {0, 0, 0});
  ForwardRun run = module->Forward({{"x", x}}).value();
  EXPECT_THAT(run.outputs[2].tensor().ToVector<int64_t>(), ElementsAre(1, 3));
  EXPECT_TRUE(run.pending());
  const RuntimeValue dy = Tensor::Of<double>(Shape{1, 2}, {1, 10});
  const auto gradients = Values(run.Backward({dy, {}, {}}).value());
  EXPECT_THAT(gradients[0], ElementsAre(-19, 43, 55));  // dy * w transposed; tanh'(0) is 1
  EXPECT_THAT(gradients[1], Each(0));
  EXPECT_FALSE(run.pending());
}

// row_fusion drops values that nothing uses.
TEST(SplitModule, AParameterThatNothingReadsHasAGradientOfZeros) {
  SplitModuleOptions options;
  options.inputs = {"x"};
  options.trainable = {"spare"};
  const auto module =
      SplitModule::Create(Parse("(double[n,3] x) => (double[n,3] y) <double[2] spare = {7,8}>",
                                "a = Exp(x) b = Neg(a) y = Add(b, x)"),
                          options)
          .value();
  ForwardRun run = module->Forward({{"x", DoubleBatch(0)}}).value();
  const std::vector<RuntimeValue> gradients = run.Backward({DoubleBatch(0)}).value();
  ASSERT_EQ(module->gradient_names(), (std::vector<std::string>{"x", "spare"}));
  EXPECT_THAT(gradients[1].tensor().ToVector<double>(), ElementsAre(0, 0));
}

TEST(SplitModule, ManyForwardsThenBackwardsInAnyOrder) {
  auto module = Open(TwoHeads());
  std::vector<std::vector<Doubles>> expected;
  for (int k = 0; k < 4; ++k) expected.push_back(Alone(*module, DoubleBatch(k)));
  std::vector<int> order = {0, 1, 2, 3};
  do {
    std::vector<ForwardRun> runs;
    for (int k = 0; k < 4; ++k) runs.push_back(module->Forward({{"x", DoubleBatch(k)}}).value());
    for (int k : order) {
      const auto dys = Ones(runs[k]);
      EXPECT_EQ(Values(runs[k].Backward(dys).value()), expected[k]) << k;
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SplitModule, AKeptRunGivesTheSameBitsAgain) {
  auto module = Open(TwoHeads());
  const auto expected = Alone(*module, DoubleBatch(2));
  ForwardRun run = module->Forward({{"x", DoubleBatch(2)}}).value();
  const auto dys = Ones(run);
  EXPECT_EQ(Values(run.Backward(dys, /*keep=*/true).value()), expected);
  EXPECT_EQ(Alone(*module, DoubleBatch(2)), expected);  // takes the memory of the first backward
  EXPECT_EQ(Values(run.Backward(dys, /*keep=*/true).value()), expected);
  EXPECT_EQ(Values(run.Backward(dys).value()), expected);
  const auto over = run.Backward(dys);
  EXPECT_EQ(over.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(over.status().message(), HasSubstr("the run is over"));
}

// Saved runs are taken up by another module of the model, in any order, with the parameters that
// they began with and the batch statistics of their own forward.
TEST(SplitModule, SavedRunsGoOnInAnotherModule) {
  caesura::testing::TemporaryFolder folder;
  for (const auto make : {TwoHeads, Normalized}) {
    auto begins = Open(make()), ends = Open(make());
    const int columns = make == TwoHeads ? 3 : 2;
    std::vector<std::vector<Doubles>> outputs, gradients;
    for (int k = 1; k < 4; ++k) {
      ForwardRun run = begins->Forward({{"x", DoubleBatch(k, columns)}}).value();
      outputs.push_back(Values(run.outputs));
      ASSERT_TRUE(run.Save(folder.path(std::to_string(k))).ok());
      gradients.push_back(Values(run.Backward(Ones(run)).value()));
      EXPECT_THAT(run.Save(folder.path("over")).message(), HasSubstr("the run is over"));
    }
    for (const int k : {2, 1, 3}) {
      auto run = ends->LoadRun(folder.path(std::to_string(k)));
      ASSERT_TRUE(run.ok()) << run.status().ToString();
      EXPECT_EQ(Values(run->outputs), outputs[k - 1]);
      EXPECT_EQ(Values(run->Backward(Ones(*run)).value()), gradients[k - 1]);
    }
  }
  EXPECT_EQ(Open(TwoHeads())->LoadRun(folder.path("1")).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SplitModule, OutputsMayBeOverwrittenBeforeTheBackward) {
  auto module = Open(TwoHeads());
  const auto expected = Alone(*module, DoubleBatch(1));
  ForwardRun run = module->Forward({{"x", DoubleBatch(1)}}).value();
  const auto dys = Ones(run);
  for (const RuntimeValue& y : run.outputs) std::memset(y.tensor().raw(), 0x7f, y.tensor().bytes());
  run.outputs.clear();
  EXPECT_EQ(Values(run.Backward(dys).value()), expected);
}

// A dropped run's arena is the next one's: the pool hands the state out again, so no second one is
// made.
TEST(SplitModule, ADroppedRunGivesItsMemoryBack) {
  class Watch : public ExecutionObserver {
   public:
    void OnEnter(const ExecutionPlan&, const ExecutionState& state) override {
      states.push_back(&state);
    }
    std::vector<const ExecutionState*> states;
  } watch;
  auto module = Open(TwoHeads());
  for (int k = 0; k < 3; ++k) {
    ForwardRun dropped = module->Forward({{"x", DoubleBatch(1)}}, {&watch}).value();
  }
  EXPECT_EQ(watch.states[1], watch.states[0]);
  EXPECT_EQ(watch.states[2], watch.states[0]);
  ForwardRun held = module->Forward({{"x", DoubleBatch(1)}}, {&watch}).value();
  ForwardRun other = module->Forward({{"x", DoubleBatch(1)}}, {&watch}).value();
  EXPECT_EQ(watch.states[3], watch.states[0]);
  EXPECT_NE(watch.states[4], watch.states[0]);
  held = std::move(other);  // drops what it held
  EXPECT_FALSE(other.pending());
  ForwardRun again = module->Forward({{"x", DoubleBatch(1)}}, {&watch}).value();
  EXPECT_EQ(watch.states[5], watch.states[0]);
}

TEST(SplitModule, AbsentAndSpreadGradients) {
  auto module = Open(TwoHeads());
  ForwardRun run = module->Forward({{"x", DoubleBatch(1)}}).value();
  EXPECT_THAT(Values(run.Backward({{}, {}, {}}, true).value()), Each(Each(0)));
  const RuntimeValue one = Tensor::Scalar<double>(1);
  EXPECT_EQ(Values(run.Backward({one, one, {}}).value()), Alone(*module, DoubleBatch(1)));
}

TEST(SplitModule, WrongGradientsLoseNothing) {
  auto module = Open(TwoHeads());
  const auto expected = Alone(*module, DoubleBatch(1));
  ForwardRun run = module->Forward({{"x", DoubleBatch(1)}}).value();
  const auto dys = Ones(run);
  const auto fails = [&](std::vector<RuntimeValue> gradients, const std::string& text) {
    for (const bool keep : {false, true}) {
      const auto result = run.Backward(gradients, keep);
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(result.status().message(), HasSubstr(text));
    }
  };
  fails({dys[0], Tensor::Zeros(DType::kFloat64, Shape{3, 3}), {}}, "'z' must be float64[2, 3]");
  fails({dys[0], Tensor::Zeros(DType::kFloat32, Shape{2, 3}), {}}, "got float32[2, 3]");
  fails({dys[0], dys[1]}, "has 3 outputs, got 2 gradients");
  fails({dys[0], dys[1], Tensor::Scalar<int64_t>(1)},
        "output 's' depends on nothing that is differentiated");
  EXPECT_EQ(Values(run.Backward(dys).value()), expected);
}

TEST(SplitModule, WrongFeedsAndNames) {
  auto module = Open(TwoHeads());
  EXPECT_THAT(module->Forward({}).status().message(), HasSubstr("no value given for input(s) 'x'"));
  EXPECT_THAT(module->Forward({{"x", DoubleBatch(0)}, {"q", DoubleBatch(0)}}).status().message(),
              HasSubstr("no input(s) 'q'"));
  EXPECT_EQ(module->Parameter("q").status().code(), StatusCode::kNotFound);
  SplitModuleOptions options;
  options.inputs = {"q"};
  EXPECT_THAT(SplitModule::Create(TwoHeads(), options).status().message(),
              HasSubstr("no input 'q'"));
  options.inputs.clear();
  options.trainable = {"v*"};
  EXPECT_THAT(SplitModule::Create(TwoHeads(), options).status().message(),
              HasSubstr("no floating initializer 'v*'"));
}

TEST(SplitModule, FrozenParametersAndNothingToTrain) {
  SplitModuleOptions options;
  options.frozen = {"*"};
  auto module = Open(TwoHeads(), options);
  EXPECT_THAT(module->gradient_names(), IsEmpty());
  ForwardRun run = module->Forward({{"x", DoubleBatch(1)}}).value();
  EXPECT_THAT(run.Backward({{}, {}, {}}).value(), IsEmpty());
}

TEST(SplitModule, UnreachableOnesHaveZeros) {
  SplitModuleOptions options = ByInput();
  options.inputs = {"x", "q"};
  auto module = Open(Parse("(double[2] x, double[2] q) => (double[2] y)", "y = Sin(x)"), options);
  EXPECT_THAT(module->unreachable(), ElementsAre("q"));
  const RuntimeValue zero = Tensor::Of<double>(Shape{2}, {0, 0}),
                     one = Tensor::Of<double>(Shape{2}, {1, 1});
  ForwardRun run = module->Forward({{"x", zero}, {"q", one}}).value();
  EXPECT_THAT(Values(run.Backward({one}).value()),
              ElementsAre(ElementsAre(1, 1), ElementsAre(0, 0)));
}

// Also an output that is listed twice, and one that is an input: two gradients that add up.
TEST(SplitModule, OneValueUnderSeveralOutputs) {
  Model model = Parse("(double[2] x) => (double[2] y, double[2] x)", "y = Mul(x, x)");
  model.graph->AddOutput(model.graph->outputs()[0]);
  auto module = Open(std::move(model));
  const RuntimeValue x = Tensor::Of<double>(Shape{2}, {3, 5});
  ForwardRun run = module->Forward({{"x", x}}).value();
  EXPECT_THAT(Values(run.outputs),
              ElementsAre(ElementsAre(9, 25), ElementsAre(3, 5), ElementsAre(9, 25)));
  EXPECT_NE(run.outputs[1].tensor().raw(), x.tensor().raw());
  const auto dy = [](double v) { return RuntimeValue(Tensor::Of<double>(Shape{2}, {v, v})); };
  EXPECT_THAT(Values(run.Backward({dy(1), dy(100), dy(10)}).value()),
              ElementsAre(ElementsAre(166, 210)));
}

TEST(SplitModule, RunsKeepTheParametersThatTheyBeganWith) {
  auto module = Open(TwoHeads());
  const auto before = Alone(*module, DoubleBatch(1));
  ForwardRun old = module->Forward({{"x", DoubleBatch(1)}}).value();
  const Tensor w = module->Parameter("w").value();
  const Tensor twice = Tensor::Of<double>(Shape{3, 2}, {2, -4, 6, 8, -10, 12});
  ASSERT_TRUE(module->SetParameters({{"w", twice}}).ok());
  ForwardRun fresh = module->Forward({{"x", DoubleBatch(1)}}).value();
  const Doubles y = old.outputs[0].tensor().ToVector<double>(),
                y2 = fresh.outputs[0].tensor().ToVector<double>();
  for (size_t i = 0; i < y.size(); ++i) EXPECT_DOUBLE_EQ(y2[i], 2 * y[i]);
  EXPECT_EQ(module->Predict({{"x", DoubleBatch(1)}}).value()[0].tensor().ToVector<double>(), y2);
  const auto dys = Ones(old);
  EXPECT_EQ(Values(old.Backward(dys).value()), before);
  EXPECT_NE(Values(fresh.Backward(dys).value()), before);
  EXPECT_THAT(w.ToVector<double>(), ElementsAre(1, -2, 3, 4, -5, 6));

  const auto wrong = module->SetParameters({{"w", Tensor::Zeros(DType::kFloat64, Shape{2, 3})}});
  EXPECT_THAT(wrong.message(), HasSubstr("parameter 'w' is float64[3, 2], got float64[2, 3]"));
  EXPECT_EQ(module->SetParameters({{"q", w}}).code(), StatusCode::kNotFound);
  EXPECT_EQ(module->Parameter("w").value().ToVector<double>(), twice.ToVector<double>());
}

TEST(SplitModule, RunningStatisticsAreWrittenByTheForward) {
  auto module = Open(Normalized());
  EXPECT_THAT(module->ParameterNames(), ElementsAre("scale", "bias", "mean", "var"));
  const Tensor x = Tensor::Of<double>(Shape{2, 2}, {1, 10, 3, 30});
  const auto read = [&](const char* name) {
    return module->Parameter(name).value().ToVector<double>();
  };
  EXPECT_THAT(module->Predict({{"x", x}}).value()[0].tensor().ToVector<double>()[3],
              ::testing::DoubleNear(60, 1e-2));
  EXPECT_THAT(read("mean"), ElementsAre(0, 0));
  {
    ForwardRun dropped = module->Forward({{"x", x}}).value();
    ASSERT_EQ(dropped.outputs.size(), 1u);
    EXPECT_THAT(dropped.outputs[0].tensor().ToVector<double>()[0], ::testing::DoubleNear(-1, 1e-4));
  }
  EXPECT_THAT(read("mean"), ElementsAre(1, 10));   // half of the batch's, momentum 0.5
  EXPECT_THAT(read("var"), ElementsAre(1, 50.5));  // of the biased variance 1, 100
  ForwardRun run = module->Forward({{"x", x}}).value();
  EXPECT_THAT(read("mean"), ElementsAre(1.5, 15));
  const auto dys = Ones(run);
  ASSERT_TRUE(run.Backward(dys).ok());
  EXPECT_THAT(read("mean"), ElementsAre(1.5, 15));
}

TEST(SplitModule, EvaluationModeHasGradientsToo) {
  SplitModuleOptions options = ByInput();
  options.training = false;
  auto module = Open(Normalized(), options);
  const Tensor x = Tensor::Of<double>(Shape{2, 2}, {1, 10, 3, 30});
  ForwardRun run = module->Forward({{"x", x}}).value();
  EXPECT_EQ(Values(run.outputs), Values(module->Predict({{"x", x}}).value()));
  const auto dys = Ones(run);
  const auto gradients = Values(run.Backward(dys).value());
  EXPECT_THAT(gradients[0][1], ::testing::DoubleNear(2, 1e-4));  // scale over a deviation of one
  EXPECT_THAT(module->Parameter("mean").value().ToVector<double>(), ElementsAre(0, 0));
}

TEST(SplitModule, EachForwardDropsOtherElementsAndItsBackwardTheSame) {
  auto module = Open(Parse("(double[40] x) => (double[40] y)", "y = Dropout(x)"));
  const Tensor x = Tensor::Of<double>(Shape{40}, Doubles(40, 1));
  ForwardRun first = module->Forward({{"x", x}}).value(),
             second = module->Forward({{"x", x}}).value();
  const auto a = Values(first.outputs), b = Values(second.outputs);
  EXPECT_NE(a, b);
  EXPECT_EQ(Values(second.Backward(Ones(second)).value()), b);
  EXPECT_EQ(Values(first.Backward(Ones(first)).value()), a);
  EXPECT_EQ(Values(module->Predict({{"x", x}}).value()), std::vector<Doubles>{Doubles(40, 1)});
}

TEST(SplitModule, ARunMayOutliveItsModule) {
  auto module = Open(TwoHeads());
  const auto expected = Alone(*module, DoubleBatch(1));
  ForwardRun run = module->Forward({{"x", DoubleBatch(1)}}).value();
  module.reset();
  const auto dys = Ones(run);
  EXPECT_EQ(Values(run.Backward(dys, true).value()), expected);
  EXPECT_EQ(Values(run.Backward(dys).value()), expected);
}

TEST(SplitModule, TwoThreadsEachWithTheirOwnRuns) {
  auto module = Open(TwoHeads());
  const std::vector<std::vector<Doubles>> expected = {Alone(*module, DoubleBatch(1)),
                                                      Alone(*module, DoubleBatch(2))};
  std::vector<int> wrong(2, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        ForwardRun run = module->Forward({{"x", DoubleBatch(1 + t)}}).value();
        const auto dys = Ones(run);
        const bool keep = i % 2 == 0;
        if (keep && Values(run.Backward(dys, true).value()) != expected[t]) ++wrong[t];
        if (Values(run.Backward(dys).value()) != expected[t]) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0));
}

// A run begun in one thread may end in another, while parameters are replaced in a third.
TEST(SplitModule, RunsMoveBetweenThreads) {
  auto module = Open(TwoHeads());
  const auto expected = Alone(*module, DoubleBatch(1));
  const Tensor w = module->Parameter("w").value();
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(module->SetParameters({{"w", w}}).ok());
  });
  for (int i = 0; i < 50; ++i) {
    ForwardRun run = module->Forward({{"x", DoubleBatch(1)}}).value();
    std::thread([&] { EXPECT_EQ(Values(run.Backward(Ones(run)).value()), expected); }).join();
  }
  writer.join();
}

}  // namespace
}  // namespace caesura
