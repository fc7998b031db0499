// SPDX-License-Identifier: Apache-2.0
// A plan made from one for other sizes: the same steps, the same bits, and a new plan wherever a
// decision may differ.
#include "core/plan/execution_plan.h"

#include <gtest/gtest.h>

#include "core/execute/partial_executor.h"
#include "core/providers/cpu_provider.h"
#include "core/runtime/plan_cache.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

const ProviderList& Cpu() {
  static const ProviderList providers = {MakeCpuProvider()};
  return providers;
}

// A plan's text without offsets in the arena.
std::string WithoutOffsets(const ExecutionPlan& plan) {
  const std::string text = plan.ToString();
  std::string out;
  bool skip = false;
  for (size_t i = text.find('\n'); i < text.size(); ++i) {
    const bool offset = text.compare(i, 6, "arena+") == 0;
    skip = offset || (skip && !std::isspace(static_cast<unsigned char>(text[i])));
    if (!skip) out += text[i];
  }
  return out;
}

std::shared_ptr<const ExecutionPlan> ResizedTo(const ExecutionPlan& plan, const Values& feeds) {
  const auto resized = plan.Resized(SpecsOf(feeds));
  EXPECT_TRUE(resized.ok()) << resized.status().ToString();
  return resized.ok() ? *resized : nullptr;
}

// From the plan for `from` one for `to`; checked against one that is made anew. False where it has
// to be.
bool Resizes(const std::shared_ptr<Graph>& graph, const Values& from, const Values& to) {
  const auto base = PlanOf(graph, from, {}, Cpu());
  const auto fresh = PlanOf(graph, to, {}, Cpu());
  const Values before = RunPlan(base, from);
  const auto resized = ResizedTo(*base, to);
  if (resized == nullptr) return false;
  EXPECT_EQ(WithoutOffsets(*resized), WithoutOffsets(*fresh));
  EXPECT_EQ(resized->fingerprint(), fresh->fingerprint());
  EXPECT_EQ(resized->arena_bytes(), fresh->arena_bytes());
  EXPECT_TRUE(SameBits(RunPlan(resized, to), RunPlan(fresh, to)));
  EXPECT_TRUE(SameBits(RunPlan(base, from), before));  // the first plan is as it was
  return true;
}

// One token of attention over caches that come in and go out one longer.
constexpr char kDecoder[] = R"((float[1,2,1,4] x, float[1,2,N,4] k, float[1,2,N,4] v)
    => (float[1,2,1,4] y, float[1,2,M,4] nk, float[1,2,M,4] nv) <float[4,4] w = {0.5, 0.25, -1, 2, 1, -0.5, 0.75, 0.125,
    -0.25, 1.5, 0.5, 1, 0.5, -1, -2, 0.25}> {
  q = MatMul (x, w)
  nk = Concat <axis = 2> (k, q)
  nv = Concat <axis = 2> (v, x)
  t = Transpose <perm = [0, 1, 3, 2]> (nk)
  s = MatMul (q, t)
  p = Softmax (s)
  o = MatMul (p, nv)
  y = Add (o, x)
})";
Values DecoderFeeds(int64_t length) {
  return {Ramp(Shape{1, 2, 1, 4}, 0.5f), Ramp(Shape{1, 2, length, 4}),
          Ramp(Shape{1, 2, length, 4}, 0.125f)};
}

TEST(PlanResize, ACacheThatGrows) {
  auto graph = GraphOf(kDecoder);
  for (const auto& [from, to] :
       {std::pair<int64_t, int64_t>{3, 4}, {4, 3}, {1, 70}, {300, 2}, {5, 5}}) {
    EXPECT_TRUE(Resizes(graph, DecoderFeeds(from), DecoderFeeds(to))) << from << " to " << to;
  }
}

TEST(PlanResize, SharesTheKernelsThatOtherSizesDoNotReach) {
  auto graph = GraphOf(
      R"((float[2,N] x, float[3] z) => (float[2,N] y, float[3] w) { y = Exp (x)  w = Exp (z) })");
  auto counting = std::make_shared<FailingProvider>(MakeCpuProvider());
  const auto base = PlanOf(graph, {Ramp(Shape{2, 5}), Ramp(Shape{3})}, {}, {counting});
  const Values feeds = {Ramp(Shape{2, 9}), Ramp(Shape{3})};
  counting->FailAtCreation(-1);  // counts anew
  const auto resized = ResizedTo(*base, feeds);
  ASSERT_NE(resized, nullptr);
  EXPECT_EQ(counting->created(), 1);
  EXPECT_TRUE(
      SameBits(RunPlan(resized, feeds), RunPlan(PlanOf(graph, feeds, {}, {counting}), feeds)));
}

TEST(PlanResize, YieldsThatTakeNothingIn) {
  auto graph = GraphOf(
      "(float[N] x) => (float[N] z) { y = Exp (x) = ai.caesura.YieldOp (y) w = Abs (y) z = Neg (w) "
      "}");
  const Values feeds = {Ramp(Shape{900})};
  const auto fresh = PlanOf(graph, feeds, {}, Cpu());
  const auto resized = ResizedTo(*PlanOf(graph, {Ramp(Shape{4})}, {}, Cpu()), feeds);
  ASSERT_NE(resized, nullptr);
  EXPECT_EQ(WithoutOffsets(*resized), WithoutOffsets(*fresh));
  EXPECT_EQ(resized->arena_bytes(), fresh->arena_bytes());
}

// Products that write where a Transpose or a Concat wants their outputs, also through a Reshape.
TEST(PlanResize, ProducersThatWriteElsewhere) {
  auto permuted = GraphOf(R"((float[B,T,4] x) => (float[B,2,T,3] y, float[B,T,6] z)
      <float[4,6] w = {1, -2, 3, 0.5, 0.25, 1, 0, 1, 2, -1, 3, 1, 0.5, 2, 1, 4, -3, 1, 2, 0.125, 1, 1, 0, 2},
       float[3,3] c = {1, 2, -1, 0.5, 0, 1, 2, 1, 0.25}, int64[4] heads = {0, 0, 2, 3}, int64[3] merged = {0, 0, 6}> {
    p = MatMul (x, w)
    h = Reshape (p, heads)
    y = Transpose <perm = [0, 2, 1, 3]> (h)
    a = Softmax (y)
    b = MatMul (a, c)
    m = Transpose <perm = [0, 2, 1, 3]> (b)
    z = Reshape (m, merged)
  })");
  EXPECT_TRUE(Resizes(permuted, {Ramp(Shape{2, 5, 4})}, {Ramp(Shape{2, 9, 4})}));
  EXPECT_TRUE(Resizes(permuted, {Ramp(Shape{2, 5, 4})}, {Ramp(Shape{3, 2, 4})}));
  auto parts = GraphOf(R"((float[N,4] x, float[M,4] z) => (float[K,3] y)
      <float[4,3] w = {1, -2, 3, 0.5, 0.25, 1, 0, 1, 2, -1, 3, 1}> {
    p = MatMul (x, w)
    q = MatMul (z, w)
    y = Concat <axis = 0> (p, q)
  })");
  EXPECT_TRUE(Resizes(parts, {Ramp(Shape{3, 4}), Ramp(Shape{2, 4}, 0.5f)},
                      {Ramp(Shape{5, 4}), Ramp(Shape{2, 4}, 0.5f)}));
  EXPECT_TRUE(Resizes(parts, {Ramp(Shape{3, 4}), Ramp(Shape{2, 4}, 0.5f)},
                      {Ramp(Shape{3, 4}), Ramp(Shape{7, 4}, 0.5f)}));
}

TEST(PlanResize, AFailingProviderIsAnErrorThatNamesTheNode) {
  auto counting = std::make_shared<FailingProvider>(MakeCpuProvider(), "faulty");
  const auto base = PlanOf(GraphOf("(float[N] x) => (float[N] y) { [op] y = Exp (x) }"),
                           {Ramp(Shape{4})}, {}, {counting});
  counting->FailAtCreation(0);
  const Status status = base->Resized(SpecsOf({Ramp(Shape{5})})).status();
  EXPECT_EQ(status.ToString(),
            "PROVIDER_FAILURE: [Exp 'op' on faulty] planted failure of a factory");
}

TEST(PlanResize, FromPlanToPlan) {
  auto graph = GraphOf(kDecoder);
  auto plan = PlanOf(graph, DecoderFeeds(1), {}, Cpu());
  for (int64_t length = 2; length < 40; ++length) {
    plan = ResizedTo(*plan, DecoderFeeds(length));
    ASSERT_NE(plan, nullptr);
    const Values feeds = DecoderFeeds(length);
    EXPECT_TRUE(SameBits(RunPlan(plan, feeds), RunPlan(PlanOf(graph, feeds, {}, Cpu()), feeds)))
        << length;
  }
}

// Constants that follow from sizes are folded anew, and what they decide is decided anew.
TEST(PlanResize, AShapeChain) {
  auto graph =
      GraphOf(R"((float[N,6] x) => (float[K,2] y, int64 n, float[N,6] z) <int64[1] zero = {0},
      int64[1] three = {3}, int64[1] two = {2}> {
    shape = Shape (x)
    rows = Gather (shape, zero)
    more = Mul (rows, three)
    to = Concat <axis = 0> (more, two)
    flat = Reshape (x, to)
    y = Neg (flat)
    n = Size (x)
    real = Cast <to = 1> (rows)
    z = Mul (x, real)
  })");
  EXPECT_TRUE(Resizes(graph, {Ramp(Shape{2, 6})}, {Ramp(Shape{7, 6})}));
  EXPECT_TRUE(Resizes(graph, {Ramp(Shape{7, 6})}, {Ramp(Shape{1, 6})}));
}

TEST(PlanResize, StepsWhoseSizesShowInTheRun) {
  auto graph = GraphOf(R"((float[N] x) => (float[M] y, float[N] z) {
    at = NonZero (x)
    flat = Squeeze (at)
    part = Gather (x, flat)
    y = Neg (part)
    z = Exp (x)
  })");
  EXPECT_TRUE(
      Resizes(graph, {Floats(Shape{4}, {0, 1, 0, 2})}, {Floats(Shape{6}, {3, 0, 0, 1, 2, 0})}));
}

// Sharing of bytes that other sizes forbid, or other ranks, or nothing at all to compute.
TEST(PlanResize, MakesAnewWhatMayBeDecidedOtherwise) {
  auto broadcast =
      GraphOf(R"((float[N,3] x, float[1,3] z) => (float[M,3] y) { a = Exp (x)  y = Add (a, z) })");
  EXPECT_TRUE(Resizes(broadcast, {Ramp(Shape{4, 3}), Ramp(Shape{1, 3})},
                      {Ramp(Shape{5, 3}), Ramp(Shape{1, 3})}));
  auto may_reuse = GraphOf(
      R"((float[A,3] x, float[B,3] z) => (float[M,3] y) { a = Exp (x)  b = Add (a, z)  y = Neg (b) })");
  // b takes a's bytes where it is as large
  EXPECT_FALSE(Resizes(may_reuse, {Ramp(Shape{4, 3}), Ramp(Shape{4, 3})},
                       {Ramp(Shape{1, 3}), Ramp(Shape{4, 3})}));
  auto unary = GraphOf(R"((float[N] x) => (float[N] y) { y = Exp (x) })");
  EXPECT_FALSE(Resizes(unary, {Ramp(Shape{4})}, {Ramp(Shape{0})}));
  EXPECT_FALSE(Resizes(unary, {Ramp(Shape{0})}, {Ramp(Shape{4})}));
  const auto plan = PlanOf(unary, {Ramp(Shape{4})}, {}, Cpu());
  EXPECT_EQ(ResizedTo(*plan, {Tensor::Of<double>(Shape{5}, {1, 2, 3, 4, 5})}), nullptr);
  EXPECT_EQ(ResizedTo(*plan, {}), nullptr);
}

TEST(PlanResize, WrongSizesGetTheErrorOfANewPlan) {
  PlanCache cache(GraphOf("(float[A] x, float[B] z) => (float[C] y) { y = Add (x, z) }"), Cpu(),
                  {});
  ASSERT_TRUE(cache.Get({Ramp(Shape{3}), Ramp(Shape{3})}).ok());
  const Status status = cache.Get({Ramp(Shape{3}), Ramp(Shape{4})}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
  ASSERT_TRUE(cache.Get({Ramp(Shape{4}), Ramp(Shape{4})}).ok());
}

}  // namespace
}  // namespace caesura::testing
