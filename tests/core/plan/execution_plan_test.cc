// SPDX-License-Identifier: Apache-2.0
// What planning decides: folding, views, reuse of memory, what is late, what is cached, and what it
// refuses.
#include "core/plan/execution_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernels/kernel_registry.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using Kind = PlannedBuffer::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<PlanStep::Kind> Kinds(const ExecutionPlan& plan) {
  std::vector<PlanStep::Kind> kinds;
  for (const PlanStep& step : plan.steps()) kinds.push_back(step.kind);
  return kinds;
}

const PlannedValue& ValueNamed(const ExecutionPlan& plan, const std::string& name) {
  for (const PlannedValue& value : plan.values()) {
    if (value.value != nullptr && value.value->name() == name) return value;
  }
  ADD_FAILURE() << "no value " << name;
  return plan.values()[0];
}
const PlannedBuffer& BufferOf(const ExecutionPlan& plan, const std::string& name) {
  return plan.buffers()[ValueNamed(plan, name).buffer];
}

// y = x reshaped to [d0 * 1, -1] where d0 is read from x's own shape.
constexpr char kShapeChain[] =
    R"((float[N,3,4] x) => (float[M,K] y) <int64[1] zero = {0}, int64[1] rest = {-1}> {
  s = Shape (x)
  d = Gather (s, zero)
  to = Concat <axis = 0> (d, rest)
  y = Reshape (x, to)
})";

TEST(Folding, AShapeChainLeavesNoStep) {
  const RuntimeValue x = Ramp(Shape{2, 3, 4});
  auto plan = PlanOf(GraphOf(kShapeChain), {x});
  EXPECT_EQ(plan->steps().size(), 0u);
  EXPECT_EQ(plan->arena_bytes(), 0u);
  const Values results = RunPlan(plan, {x});
  EXPECT_EQ(results[0].tensor().shape(), (Shape{2, 12}));
  EXPECT_EQ(ToFloats(results[0]), ToFloats(x));
  EXPECT_NE(results[0].tensor().raw(), x.tensor().raw());  // the caller's own copy
}

TEST(Folding, CanBeSwitchedOff) {
  const RuntimeValue x = Ramp(Shape{2, 3, 4});
  auto plan = PlanOf(GraphOf(kShapeChain), {x}, {.fold_constants = false});
  EXPECT_EQ(plan->steps().size(), 4u);
  EXPECT_EQ(plan->steps().back().kind,
            PlanStep::Kind::kDynamic);  // the shape shows only at run time
  EXPECT_TRUE(SameBits(RunPlan(plan, {x}), RunPlan(PlanOf(GraphOf(kShapeChain), {x}), {x})));
}

TEST(Folding, LeavesNodesThatDifferFromCallToCall) {
  auto graph = GraphOf(R"(() => (float[2] y) <float[2] c = {1, 2}> { y = RandomUniformLike (c) })");
  EXPECT_EQ(PlanOf(graph, {})->steps().size(), 1u);
}

TEST(Folding, AFailureNamesNodeProviderAndReason) {
  auto graph = GraphOf(R"((float[2] x) => (int64[1] y) <int64[1] at = {5}> {
    s = Shape (x)
    [pick] y = Gather (s, at)
  })");
  graph->nodes()[1]->set_source("model.py:7");
  const Status status = TryPlan(graph, {Ramp(Shape{2})}).status();
  EXPECT_EQ(status.ToString(),
            "INVALID_ARGUMENT: [Gather 'pick' on tiny] index out of range (from model.py:7)");
}

TEST(Folding, DoesNotBlowUpAPlan) {
  // 12 kB in, 8 MB out: stays a step.
  auto graph = std::make_shared<Graph>();
  Value* a = graph->AddInitializer("a", Tensor::Zeros(DType::kFloat32, Shape{1024, 1}));
  Value* b = graph->AddInitializer("b", Tensor::Zeros(DType::kFloat32, Shape{1, 2048}));
  graph->AddOutput(graph->AddOp("MatMul", {a, b})->output(0));
  EXPECT_EQ(PlanOf(graph, {})->steps().size(), 1u);
}

TEST(Views, DropStepsAndShareBytes) {
  auto graph = GraphOf(R"((float[2,3] x) => (float[6] y) <int64[1] flat = {-1}> {
    a = Neg (x)
    b = Identity (a)
    c = Reshape (b, flat)
    y = Neg (c)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{2, 3})});
  EXPECT_THAT(Kinds(*plan), ElementsAre(PlanStep::Kind::kCompute, PlanStep::Kind::kCompute));
  EXPECT_EQ(ValueNamed(*plan, "a").buffer, ValueNamed(*plan, "c").buffer);
  EXPECT_EQ(ValueNamed(*plan, "c").shape, (Shape{6}));
  EXPECT_EQ(ToFloats(RunPlan(plan, {Ramp(Shape{2, 3})})[0]), ToFloats(Ramp(Shape{2, 3})));
}

TEST(Views, OfAnotherSizeAreComputed) {
  // A definition may allow a view that this node cannot have.
  auto more = [](KernelRegistry& registry) {
    registry.Add({.op_type = "First",
                  .domain = "test",
                  .aliases = {View(0, 0)},
                  .create = [](KernelInfo& info) {
                    info.SetOutput(0, DType::kFloat32, Shape{1});
                    info.SetCompute(
                        [](KernelContext& c) { *c.Output<float>(0) = *c.Input<float>(0); });
                    return Status();
                  }});
  };
  auto graph = GraphOf("(float[3] x) => (float[1] y) { a = Neg (x) y = test.First (a) }");
  auto plan = PlanOf(graph, {Ramp(Shape{3})}, {}, {std::make_shared<TinyProvider>(nullptr, more)});
  EXPECT_EQ(plan->steps().size(), 2u);
  EXPECT_THAT(ToFloats(RunPlan(plan, {Floats(Shape{3}, {7, 8, 9})})[0]), ElementsAre(-7));
}

TEST(Reuse, HappensWhenNobodyReadsTheInputAfterwards) {
  auto graph = GraphOf(R"((float[4] x) => (float[4] y) {
    a = Neg (x)
    b = Neg (a)
    c = Mul (a, b)
    d = Neg (c)
    y = Add (d, x)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{4})});
  EXPECT_NE(ValueNamed(*plan, "a").buffer,
            ValueNamed(*plan, "x").buffer);  // never the caller's memory
  EXPECT_NE(ValueNamed(*plan, "b").buffer, ValueNamed(*plan, "a").buffer);  // a is read again
  EXPECT_EQ(ValueNamed(*plan, "c").buffer, ValueNamed(*plan, "a").buffer);
  EXPECT_EQ(ValueNamed(*plan, "d").buffer, ValueNamed(*plan, "c").buffer);
  // x=1: a=-1, b=1, c=-1, d=1, y=2
  EXPECT_THAT(ToFloats(RunPlan(plan, {Floats(Shape{4}, {1, 1, 1, 1})})[0]),
              ElementsAre(2, 2, 2, 2));
}

TEST(Reuse, SpecialCasesThatMustNotShare) {
  const char* cases[] = {
      // both operands are one value
      "(float[4] x) => (float[4] y) { a = Neg (x) b = Mul (a, a) y = Neg (b) }",
      // the other operand is a view of the same bytes
      "(float[4] x) => (float[4] y) { a = Neg (x) v = Identity (a) b = Mul (a, v) y = Neg (b) }",
      // a view is read later
      "(float[4] x) => (float[4] y) { a = Neg (x) v = Identity (a) b = Neg (a) y = Mul (b, v) }",
      // a view that is made later is read later still
      "(float[4] x) => (float[4] y) { a = Neg (x) b = Neg (a) v = Identity (a) y = Mul (b, v) }",
      // the value is a graph output too
      "(float[4] x) => (float[4] y, float[4] a) { a = Neg (x) b = Neg (a) y = Mul (b, b) }",
      // it is handed out by a yield later
      "(float[4] x) => (float[4] y) { a = Neg (x) b = Neg (a) d = ai.caesura.YieldOp (a, b) y = "
      "Mul (b, b) }",
  };
  for (const char* text : cases) {
    auto graph = GraphOf(text);
    auto plan = PlanOf(graph, {Ramp(Shape{4})});
    EXPECT_NE(ValueNamed(*plan, "b").buffer, ValueNamed(*plan, "a").buffer) << text;
  }
}

TEST(Reuse, SwitchedOffGivesTheSameBitsInMoreMemory) {
  auto graph = GraphOf(R"((float[8,8] x, float[8,8] w) => (float[8,8] y) {
    a = MatMul (x, w) b = Neg (a) c = MatMul (b, w) d = Mul (c, a) e = Neg (d) y = MatMul (e, w)
  })");
  const Values feeds = {Ramp(Shape{8, 8}), Ramp(Shape{8, 8}, 0.5f)};
  auto tight = PlanOf(graph, feeds), loose = PlanOf(graph, feeds, {.reuse_memory = false});
  EXPECT_LT(tight->arena_bytes(), loose->arena_bytes());
  EXPECT_TRUE(SameBits(RunPlan(tight, feeds), RunPlan(loose, feeds)));
  for (const auto& plan : {tight, loose}) {
    const std::vector<size_t> live = plan->LiveBytes();
    EXPECT_LE(*std::max_element(live.begin(), live.end()), plan->arena_bytes());
  }
}

TEST(LateSteps, StandWhereShapesShowOnlyInTheRun) {
  auto graph = GraphOf(R"((float[6] x, int64[2] to) => (float[a,b] y, float[c,d] z) {
    v = Neg (x)
    y = Reshape (v, to)
    z = Neg (y)
  })");
  const RuntimeValue to = Tensor::Of<int64_t>(Shape{2}, {2, 3});
  auto plan = PlanOf(graph, {Ramp(Shape{6}), to});
  EXPECT_THAT(Kinds(*plan), ElementsAre(PlanStep::Kind::kCompute, PlanStep::Kind::kDynamic,
                                        PlanStep::Kind::kDynamic));
  const Values first = RunPlan(plan, {Ramp(Shape{6}), to});
  EXPECT_EQ(first[0].tensor().shape(), (Shape{2, 3}));
  const Values second = RunPlan(plan, {Ramp(Shape{6}), Tensor::Of<int64_t>(Shape{2}, {3, -1})});
  EXPECT_EQ(second[1].tensor().shape(), (Shape{3, 2}));
  EXPECT_EQ(ToFloats(second[1]), ToFloats(Ramp(Shape{6})));
}

TEST(LateSteps, FollowDataDependentSizes) {
  auto graph = GraphOf(R"((float[5] x) => (int64[1,n] at, float[1,n] y) {
    at = NonZero (x)
    f = Cast <to = 1> (at)
    y = Mul (f, f)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{5})});
  EXPECT_EQ(plan->steps()[0].kind, PlanStep::Kind::kCompute);
  EXPECT_EQ(BufferOf(*plan, "at").kind, Kind::kDynamic);
  const Values results = RunPlan(plan, {Floats(Shape{5}, {0, 1, 0, 1, 1})});
  EXPECT_THAT(ToFloats(results[1]), ElementsAre(1, 9, 16));
  EXPECT_EQ(RunPlan(plan, {Floats(Shape{5}, {0, 0, 0, 0, 0})})[1].tensor().shape(), (Shape{1, 0}));
}

TEST(LateSteps, EndWhereAnExchangeAmongRanksStarts) {
  auto graph = GraphOf(R"((float[5] x, float[1,2] z) => (float[1,2] a, float[1,2] b) {
    at = NonZero (x)
    f = Cast <to = 1> (at)
    y = Mul (f, f)
    a, b = ai.caesura.CollectiveStart (y, z)
  })");
  graph->FindValue("y")->set_type(ValueType::Tensor(DType::kFloat32, Shape{1, 2}));
  const RuntimeValue z = Floats(Shape{1, 2}, {1, 2});
  auto plan = PlanOf(graph, {Ramp(Shape{5}), z}, {}, {MakeCpuProvider()});
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(BufferOf(*plan, "y").kind, Kind::kDynamic);
  EXPECT_EQ(plan->steps().back().kind, PlanStep::Kind::kCompute);
  EXPECT_TRUE(ValueNamed(*plan, "a").known);
  ExecutionState state(plan);
  const auto refusal = [&](const RuntimeValue& x) {
    return Finish(state, {x, z}, {}).status().message();
  };
  EXPECT_THAT(refusal(Floats(Shape{5}, {0, 1, 0, 1, 0})), HasSubstr("no communicator"));
  EXPECT_THAT(refusal(Floats(Shape{5}, {0, 1, 1, 1, 0})),
              HasSubstr("made [1, 3], and is exchanged as [1, 2]"));
}

TEST(InPlace, UpdatesTheParameterItself) {
  auto graph =
      GraphOf(R"((float[2] x) => () <float[2] w = {1, 2}> { updated = test.Accumulate (w, x) })");
  const Value* w = graph->FindValue("w");
  auto plan = PlanOf(graph, {Ramp(Shape{2})}, {.parameters = {w}});
  ParameterSet parameters;
  parameters.Add("w", Tensor::Of<float>(Shape{2}, {1, 2}));
  ExecutionState state(plan);
  for (int i = 0; i < 2; ++i) {
    RunOptions options;
    options.parameters = &parameters;
    ASSERT_TRUE(Finish(state, {Floats(Shape{2}, {10, 20})}, options).ok());
  }
  EXPECT_THAT(parameters.tensor(0).ToVector<float>(), ElementsAre(21, 42));
  EXPECT_THAT(graph->Initializer(w)->ToVector<float>(), ElementsAre(1, 2));
}

TEST(InPlace, IsRefusedOnWhatIsNotOurs) {
  auto status = [](const char* text, bool parameter) {
    auto graph = GraphOf(text);
    PlanOptions options;
    if (parameter) options.parameters = {graph->FindValue("w")};
    return TryPlan(graph, {Ramp(Shape{2})}, options).status().ToString();
  };
  EXPECT_THAT(
      status("(float[2] x) => () { [up] y = test.Accumulate (x, x) }", false),
      HasSubstr(
          "[test::Accumulate 'up' on tiny] updates 'x' in place, which is neither a parameter"));
  EXPECT_THAT(
      status("(float[2] x) => () <float[2] w = {1, 2}> { y = test.Accumulate (w, x) }", false),
      HasSubstr("updates 'w' in place"));
  EXPECT_THAT(status("(float[2] x) => (float[2] z) <float[2] w = {1, 2}> { y = test.Accumulate (w, "
                     "x) z = Neg (w) }",
                     true),
              HasSubstr("a later node or the graph's outputs still read the old value"));
  EXPECT_THAT(status("(float[2] x) => (float[2] z) <float[2] w = {1, 2}> "
                     "{ v = Identity (w) y = test.Accumulate (w, x) z = Neg (v) }",
                     true),
              HasSubstr("still read the old value"));
  EXPECT_EQ(status("(float[2] x) => (float[2] z) <float[2] w = {1, 2}> { o = Neg (w) y = "
                   "test.Accumulate (w, x) "
                   "z = Add (o, y) }",
                   true),
            "OK");
}

TEST(ValueCachePlan, KeepsWhatDependsOnParametersAlone) {
  auto graph = GraphOf(
      R"((float[1,2] x) => (float[1,3] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[1] two = {2}> {
    t = Transpose (w)
    v = Identity (t)
    s = Mul (v, two)
    y = MatMul (x, s)
  })");
  PlanOptions options{.parameters = {graph->FindValue("w")}};
  auto plan = PlanOf(graph, {Ramp(Shape{1, 2})}, options);
  EXPECT_THAT(Kinds(*plan), ElementsAre(PlanStep::Kind::kCached, PlanStep::Kind::kCached,
                                        PlanStep::Kind::kCompute));
  EXPECT_EQ(plan->cache_entries(), 2);
  EXPECT_THAT(plan->steps()[1].cache_parameters, ElementsAre(0));
  options.cache_values = false;
  EXPECT_EQ(PlanOf(graph, {Ramp(Shape{1, 2})}, options)->cache_entries(), 0);
}

TEST(Contiguous, InputsLieInOneBlockInTheArena) {
  auto graph = GraphOf(R"((float[3] x, float[2] z) => (float total) {
    a = Neg (x)
    b = Neg (z)
    c = Neg (x)
    [sum] total = test.SumBlock (a, b, c)
  })");
  const Values feeds = {Floats(Shape{3}, {1, 2, 3}), Floats(Shape{2}, {10, 20})};
  auto plan = PlanOf(graph, feeds);
  ASSERT_EQ(plan->contiguous().size(), 1u);
  EXPECT_EQ(BufferOf(*plan, "b").offset, BufferOf(*plan, "a").offset + 12);
  EXPECT_EQ(BufferOf(*plan, "c").offset, BufferOf(*plan, "b").offset + 8);
  EXPECT_THAT(ToFloats(RunPlan(plan, feeds)[0]), ElementsAre(-42));
}

TEST(Contiguous, FeedsAreVerifiedBeforeTheFirstStep) {
  auto graph =
      GraphOf("(float[2] a, float[2] b) => (float total) { [sum] total = test.SumBlock (a, b) }");
  float block[5] = {1, 2, 3, 4, 5};
  const Values right = {Tensor::Borrow(DType::kFloat32, Shape{2}, block),
                        Tensor::Borrow(DType::kFloat32, Shape{2}, block + 2)};
  const Values gap = {right[0], Tensor::Borrow(DType::kFloat32, Shape{2}, block + 3)};
  auto plan = PlanOf(graph, right);
  EXPECT_THAT(ToFloats(RunPlan(plan, right)[0]), ElementsAre(10));
  ExecutionState state(plan);
  EXPECT_THAT(state.Start(gap, {}).ToString(),
              HasSubstr("[test::SumBlock 'sum' on tiny] wants its inputs in one block"));
  ASSERT_TRUE(Finish(state, right).ok());  // the state is as good as new
}

TEST(Contiguous, WhatCannotBeLaidOutIsRefused) {
  const char* cases[] = {
      "(float[2] x) => (float t) { a = Neg (x) [sum] t = test.SumBlock (a, a) }",
      "(float[2] x) => (float t) { a = Neg (x) v = Identity (a) [sum] t = test.SumBlock (a, v) }",
      "(float[2] x) => (float t) { a = Neg (x) [sum] t = test.SumBlock (a, x) }",
      "(float[2] x) => (float t, float u) { a = Neg (x) b = Neg (x) [sum] t = test.SumBlock (a, b) "
      "u = test.SumBlock (b, a) }",
  };
  for (const char* text : cases) {
    const Status status = TryPlan(GraphOf(text), {Ramp(Shape{2})}).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << text;
    EXPECT_THAT(status.message(), HasSubstr("SumBlock")) << text;
  }
}

TEST(MissingKernels, AreListedAllAtOnce) {
  auto graph = GraphOf(R"((float[2] x, bool c) => (float[2] y) {
    [one] a = Sin (x)
    [two] b = Cos (a)
    [three] y = If (c) <
      then_branch = t () => (float[2] p) { [inner] p = Tan (b) },
      else_branch = e () => (float[2] q) { q = Neg (b) }
    >
  })");
  const Status status = TryPlan(graph, {Ramp(Shape{2}), Tensor::Scalar<bool>(true)}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  for (const char* part : {"3 node(s) have no kernel", "[Sin 'one'] has no kernel on tiny",
                           "[Cos 'two']", "[Tan 'inner'] in the body 't' has no kernel on tiny"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

TEST(MissingKernels, SayWhyACandidateLost) {
  auto graph = GraphOf("(double[2] x) => (double[2] y) { [n] y = Neg (x) }");
  const Status status = TryPlan(graph, {Tensor::Zeros(DType::kFloat64, Shape{2})}).status();
  EXPECT_THAT(status.message(), HasSubstr("input 0 is float64, the kernel takes float32"));
}

TEST(WrongInputs, AreErrorsOfTheNode) {
  auto graph = GraphOf("(float[N,3] x, float[K,2] w) => (float[N,2] y) { [mm] y = MatMul (x, w) }");
  const Status status = TryPlan(graph, {Ramp(Shape{2, 3}), Ramp(Shape{4, 2})}).status();
  EXPECT_EQ(status.ToString(), "INVALID_ARGUMENT: [MatMul 'mm' on tiny] shapes do not fit");
}

TEST(Fingerprint, ChangesWithWhatMayChangeRounding) {
  const char* text =
      "(float[N,3] x, float[3,3] w) => (float[N,3] y) { a = MatMul (x, w) y = Add (a, a) }";
  const Values feeds = {Ramp(Shape{2, 3}), Ramp(Shape{3, 3})};
  const uint64_t base = PlanOf(GraphOf(text), feeds)->fingerprint();
  EXPECT_EQ(PlanOf(GraphOf(text), feeds)->fingerprint(), base);
  EXPECT_NE(PlanOf(GraphOf(text), feeds, {.threads = 2})->fingerprint(), base);
  EXPECT_NE(PlanOf(GraphOf(text), {Ramp(Shape{4, 3}), Ramp(Shape{3, 3})})->fingerprint(), base);
  auto other = GraphOf(
      "(float[N,3] x, float[3,3] w) => (float[N,3] y) { a = MatMul (x, w) y = Mul (a, a) }");
  EXPECT_NE(PlanOf(other, feeds)->fingerprint(), base);
  auto swapped = GraphOf(
      "(float[N,3] x, float[3,3] w) => (float[N,3] y) { a = MatMul (x, w) b = Neg (a) y = Sub (a, "
      "b) }");
  auto straight = GraphOf(
      "(float[N,3] x, float[3,3] w) => (float[N,3] y) { a = MatMul (x, w) b = Neg (a) y = Sub (b, "
      "a) }");
  EXPECT_NE(PlanOf(swapped, feeds)->fingerprint(), PlanOf(straight, feeds)->fingerprint());
  // A second kernel of the same op.
  auto more = [](KernelRegistry& registry) {
    registry.Add({.op_type = "Slow", .domain = "test", .create = CreateNeg});
    registry.Add({.op_type = "Slow", .domain = "test", .create = CreateNeg});
  };
  auto less = [](KernelRegistry& registry) {
    registry.Add({.op_type = "Slow", .domain = "test", .create = [](KernelInfo& i) {
                    return i.Refuse("not today");
                  }});
    registry.Add({.op_type = "Slow", .domain = "test", .create = CreateNeg});
  };
  auto graph = GraphOf("(float[2] x) => (float[2] y) { y = test.Slow (x) }");
  auto first = PlanOf(graph, {Ramp(Shape{2})}, {}, {std::make_shared<TinyProvider>(nullptr, more)});
  auto second =
      PlanOf(graph, {Ramp(Shape{2})}, {}, {std::make_shared<TinyProvider>(nullptr, less)});
  EXPECT_NE(first->fingerprint(), second->fingerprint());
}

TEST(PlanText, SaysWhereEverythingIs) {
  auto graph = GraphOf(R"((float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}> {
    a = Mul (x, w)
    d = ai.caesura.YieldOp <names = ["loss"]> (a)
    y = Mul (d, a)
    z = Identity (x)
  })");
  const std::string text =
      PlanOf(graph, {Ramp(Shape{2})}, {.parameters = {graph->FindValue("w")}})->ToString();
  for (const char* part :
       {"3 steps of 4 nodes", "1 yield(s)", "0 compute [Mul",
        "on tiny x:float32[2]@feed w:float32[2]@parameter -> a:", "1 yield [ai.caesura::YieldOp",
        "hands out a copy of a:float32[2]@fetch", "d:float32[2]@resume",
        "output y:float32[2]@fetch", "output (a copy) z:float32[2]@feed"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace caesura::testing
