// SPDX-License-Identifier: Apache-2.0
// Runs without a yield: fetches and where they go, random numbers, bodies, non-tensors.
#include "core/execute/execution_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernels/kernel_registry.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Fetches, AreTheCallersOwn) {
  auto graph =
      GraphOf(R"((float[2] x) => (float[2] y, float[2] y, float[2] v, float[2] x, float[2] k)
                          <float[2] k = {7, 8}> { y = Neg (x) v = Identity (y) })");
  auto plan = PlanOf(graph, {Ramp(Shape{2})});
  ExecutionState state(plan);
  for (int i = 0; i < 2; ++i) {
    const RuntimeValue x = Floats(Shape{2}, {1, 2});
    const Values results = Finish(state, {x}).value();
    EXPECT_THAT(ToFloats(results[4]), ElementsAre(7, 8));
    for (int r = 0; r < 3; ++r) EXPECT_THAT(ToFloats(results[r]), ElementsAre(-1, -2));
    for (size_t r = 0; r < results.size(); ++r) {
      std::memset(results[r].tensor().raw(), 0xff, results[r].tensor().bytes());
      for (size_t q = 0; q < r; ++q)
        EXPECT_NE(results[r].tensor().raw(), results[q].tensor().raw());
    }
    EXPECT_THAT(ToFloats(x), ElementsAre(1, 2));
  }
}

TEST(Fetches, GoToTheCallersBuffers) {
  auto graph = GraphOf(
      "(float[2] x) => (float[2] y, float[2] v, float[2] x) { y = Neg (x) v = Identity (y) }");
  auto plan = PlanOf(graph, {Ramp(Shape{2})});
  float y[2], v[2], x[2];
  RunOptions options;
  options.fetch_buffers = {Tensor::Borrow(DType::kFloat32, Shape{2}, y),
                           Tensor::Borrow(DType::kFloat32, Shape{2}, v),
                           Tensor::Borrow(DType::kFloat32, Shape{2}, x)};
  const Values results = RunPlan(plan, {Floats(Shape{2}, {1, 2})}, options);
  EXPECT_THAT(y, ElementsAre(-1, -2));
  EXPECT_THAT(v, ElementsAre(-1, -2));
  EXPECT_THAT(x, ElementsAre(1, 2));
  EXPECT_EQ(results[0].tensor().raw(), y);
  EXPECT_EQ(results[2].tensor().raw(), x);
}

TEST(Fetches, BuffersLastAcrossAYield) {
  auto graph = GraphOf(
      "(float[2] x) => (float[2] y) { a = Neg (x) d = ai.caesura.YieldOp (a) y = Add (d, x) }");
  auto plan = PlanOf(graph, {Ramp(Shape{2})});
  float y[2] = {};
  RunOptions options;
  options.fetch_buffers = {Tensor::Borrow(DType::kFloat32, Shape{2}, y)};
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {1, 2})}, options).ok());
  ASSERT_TRUE(PartialExecutor::Run(state).ok());
  state.TakeYielded();
  auto clone = state.Clone().value();
  ASSERT_TRUE(state.Resume({Floats(Shape{2}, {10, 10})}).ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  EXPECT_THAT(y, ElementsAre(11, 12));
  // The clone has a result of its own.
  ASSERT_TRUE(clone->Resume({RuntimeValue()}).ok());
  ASSERT_EQ(PartialExecutor::Run(*clone).value(), RunOutcome::kFinished);
  EXPECT_THAT(ToFloats(clone->TakeFetches()[0]), ElementsAre(1, 2));
  EXPECT_THAT(y, ElementsAre(11, 12));
}

TEST(Fetches, BuffersOfTheWrongKindAreRefused) {
  auto graph = GraphOf("(float[2] x) => (float[2] y, float[2] x) { y = Neg (x) }");
  auto plan = PlanOf(graph, {Ramp(Shape{2})});
  ExecutionState state(plan);
  RunOptions options;
  options.fetch_buffers = {Tensor::Zeros(DType::kFloat32, Shape{3})};
  EXPECT_THAT(Finish(state, {Ramp(Shape{2})}, options).status().message(),
              HasSubstr("buffer for output 'y' is float32[3], the output is float32[2]"));
  options.fetch_buffers = {Tensor(), Tensor::Zeros(DType::kFloat64, Shape{2})};
  EXPECT_THAT(Finish(state, {Ramp(Shape{2})}, options).status().message(),
              HasSubstr("buffer for output 'x'"));
}

TEST(Fetches, ComeFromTheAllocatorGivenForThem) {
  auto graph = GraphOf(R"((float[2] x) => (float[2] y, float[2] x, int64[1,n] at, float[2] z) {
    y = Neg (x)
    at = NonZero (x)
    z = Mul (x, x)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{2})});
  FailingAllocator allocators[3];  // counters, here
  RunOptions options;
  options.fetch_allocators = {&allocators[0], &allocators[1], &allocators[2]};  // none for z
  RunPlan(plan, {Ramp(Shape{2})}, options);
  for (const FailingAllocator& allocator : allocators) EXPECT_EQ(allocator.calls(), 1);
}

// --- random numbers ---

TEST(RandomKeys, DependOnSeedStepAndNodeAlone) {
  auto graph = GraphOf(
      "(float[8] x) => (float[8] a, float[8] b) { a = RandomUniformLike (x) b = RandomUniformLike "
      "(x) }");
  auto plan = PlanOf(graph, {Ramp(Shape{8})});
  auto run = [&](uint64_t seed, uint64_t step) {
    RunOptions options;
    options.seed = seed;
    options.step = step;
    return RunPlan(plan, {Ramp(Shape{8})}, options);
  };
  const Values base = run(1, 1);
  EXPECT_TRUE(SameBits(run(1, 1), base));
  EXPECT_FALSE(SameBits(run(2, 1), base));
  EXPECT_FALSE(SameBits(run(1, 2), base));
  EXPECT_FALSE(SameBits(base[0], base[1]));
}

// --- bodies ---

constexpr char kLoop[] =
    R"((int64 trips, float[2] x, float[2] k) => (float[2] last, float[n,2] all) {
  start = Neg (x)
  last, all = Loop (trips, , start) <body = b (int64 i, bool c, float[2] v) => (bool go, float[2] next, float[2] seen) {
    go = Identity (c)
    r = RandomUniformLike (v)
    z = Sub (r, r)
    t = Add (v, z)
    next = Add (t, k)
    seen = Mul (next, x)
  }>
})";

TEST(Bodies, ALoopCarriesValuesAndCollectsScans) {
  const Values feeds = {Tensor::Scalar<int64_t>(3), Floats(Shape{2}, {1, 2}),
                        Floats(Shape{2}, {10, 100})};
  auto plan = PlanOf(GraphOf(kLoop), feeds);
  ExecutionState state(plan);
  for (int i = 0; i < 2; ++i) {
    const Values results = Finish(state, feeds).value();
    EXPECT_THAT(ToFloats(results[0]), ElementsAre(29, 298));
    EXPECT_EQ(results[1].tensor().shape(), (Shape{3, 2}));
    EXPECT_THAT(ToFloats(results[1]), ElementsAre(9, 196, 19, 396, 29, 596));
  }
  const Values none = {Tensor::Scalar<int64_t>(0), feeds[1], feeds[2]};
  EXPECT_THAT(ToFloats(Finish(state, none).value()[0]), ElementsAre(-1, -2));
}

TEST(Bodies, NestedOnesReadValuesOfAllLevels) {
  auto graph = GraphOf(R"((bool c, bool d, float[2] x) => (float[2] y) {
    a = Neg (x)
    y = If (c) <
      then_branch = outer () => (float[2] p) {
        b = Add (a, a)
        p = If (d) <
          then_branch = i1 () => (float[2] q) { q = Add (b, x) },
          else_branch = i2 () => (float[2] r) { r = Add (a, x) }
        >
      },
      else_branch = other () => (float[2] s) { s = Identity (x) }
    >
  })");
  auto run = [&](bool c, bool d) {
    const Values feeds = {Tensor::Scalar<bool>(c), Tensor::Scalar<bool>(d),
                          Floats(Shape{2}, {1, 2})};
    return ToFloats(RunPlan(PlanOf(graph, feeds), feeds)[0]);
  };
  EXPECT_THAT(run(true, true), ElementsAre(-1, -2));
  EXPECT_THAT(run(true, false), ElementsAre(0, 0));
  EXPECT_THAT(run(false, true), ElementsAre(1, 2));
}

TEST(Bodies, ResultsAreNotTheOuterValuesThemselves) {
  // The branch returns an outer value as it is; overwriting the result must not reach it.
  auto graph = GraphOf(R"((bool c, float[2] x) => (float[2] y, float[2] a) {
    a = Neg (x)
    y = If (c) <then_branch = t () => (float[2] p) { p = Identity (a) },
                else_branch = e () => (float[2] q) { q = Identity (x) }>
  })");
  const Values feeds = {Tensor::Scalar<bool>(true), Floats(Shape{2}, {1, 2})};
  const Values results = RunPlan(PlanOf(graph, feeds), feeds);
  std::memset(results[0].tensor().raw(), 0xff, results[0].tensor().bytes());
  EXPECT_THAT(ToFloats(results[1]), ElementsAre(-1, -2));
}

TEST(Bodies, ErrorsNameTheWayDown) {
  auto graph = GraphOf(R"((bool c, float[2] x, int64[1] i) => (int64[1] y) {
    s = Shape (x)
    [choose] y = If (c) <then_branch = t () => (int64[1] p) { [inner] p = Gather (s, i) },
                         else_branch = e () => (int64[1] q) { q = Identity (i) }>
  })");
  const Values feeds = {Tensor::Scalar<bool>(true), Ramp(Shape{2}),
                        Tensor::Of<int64_t>(Shape{1}, {9})};
  ExecutionState state(PlanOf(graph, feeds));
  const std::string message = Finish(state, feeds).status().message();
  EXPECT_THAT(message, HasSubstr("[If 'choose' on tiny]"));
  EXPECT_THAT(message, HasSubstr("[Gather 'inner' on tiny] index out of range"));
}

TEST(Bodies, AYieldInsideIsRefused) {
  auto graph = GraphOf(R"((bool c, float[2] x) => (float[2] y) {
    y = If (c) <then_branch = t () => (float[2] p) { d = ai.caesura.YieldOp (x) p = Neg (d) },
                else_branch = e () => (float[2] q) { q = Identity (x) }>
  })");
  EXPECT_EQ(TryPlan(graph, {Tensor::Scalar<bool>(true), Ramp(Shape{2})}).status().code(),
            StatusCode::kUnsupported);
}

// --- strings, optionals, sequences ---

TEST(NonNumeric, StringsPassThroughAndAreConcatenated) {
  auto graph = GraphOf(
      "(string[2] a, string[1] b) => (string[3] y, string[2] v) { y = Concat <axis = 0> (a, b) v = "
      "Identity (a) }");
  const Values feeds = {Tensor::Of<std::string>(Shape{2}, {"one", "two"}),
                        Tensor::Of<std::string>(Shape{1}, {"three"})};
  auto plan = PlanOf(graph, feeds);
  ExecutionState state(plan);
  for (int i = 0; i < 2; ++i) {
    const Values results = Finish(state, feeds).value();
    EXPECT_EQ(results[0].tensor().data<std::string>()[2], "three");
    EXPECT_EQ(results[1].tensor().data<std::string>()[1], "two");
    EXPECT_NE(results[1].tensor().raw(), feeds[0].tensor().raw());
  }
}

// test.Pack (x) -> [x], test.First (s) -> s[0]
ProviderList WithSequences() {
  auto more = [](KernelRegistry& registry) {
    registry.Add({.op_type = "Pack", .domain = "test", .create = [](KernelInfo& info) {
                    info.SetOutputSizedInCompute(0);
                    info.SetCompute([](KernelContext& c) {
                      c.SetOutputValue(
                          0, RuntimeValue::Sequence({c.InputValue(0).tensor().Clone().value()}));
                    });
                    return Status();
                  }});
    registry.Add({.op_type = "First", .domain = "test", .create = [](KernelInfo& info) {
                    info.SetOutputSizedInCompute(0);
                    info.SetCompute([](KernelContext& c) {
                      c.SetOutputValue(0, c.InputValue(0).sequence()[0]);
                    });
                    return Status();
                  }});
  };
  return {std::make_shared<TinyProvider>(nullptr, more)};
}

TEST(NonNumeric, SequencesAreFeedsAndFetches) {
  auto graph = GraphOf(
      "(seq(float[2]) s, float[2] x) => (float[2] p, seq(float[2]) s) { p = test.First (s) }");
  const Values feeds = {RuntimeValue::Sequence({Floats(Shape{2}, {5, 6})}), Ramp(Shape{2})};
  ExecutionState state(PlanOf(graph, feeds, {}, WithSequences()));
  for (int i = 0; i < 2; ++i) {
    const Values results = Finish(state, feeds).value();
    EXPECT_THAT(ToFloats(results[0]), ElementsAre(5, 6));
    std::memset(results[0].tensor().raw(), 0xff, results[0].tensor().bytes());
    EXPECT_THAT(ToFloats(results[1].sequence()[0]), ElementsAre(5, 6));
  }
  EXPECT_THAT(Finish(state, {feeds[1], feeds[1]}).status().message(), HasSubstr("feed 's'"));
}

TEST(NonNumeric, SequencesFlowByValue) {
  auto graph = GraphOf(R"((float[2] x) => (float[2] p, float[2] q) {
    s = test.Pack (x)
    p = test.First (s)
    d = ai.caesura.YieldOp (p)
    q = test.First (s)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{2})}, {}, WithSequences());
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {1, 2})}, {}).ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kYielded);
  const Values yielded = state.TakeYielded();
  std::memset(yielded[0].tensor().raw(), 0xff,
              yielded[0].tensor().bytes());  // the sequence's element is not hit
  ASSERT_TRUE(state.Resume({Ramp(Shape{2})}).ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  const Values results = state.TakeFetches();
  std::memset(results[0].tensor().raw(), 0xff, results[0].tensor().bytes());
  EXPECT_THAT(ToFloats(results[1]), ElementsAre(1, 2));
}

}  // namespace
}  // namespace caesura::testing
