// SPDX-License-Identifier: Apache-2.0
// Passes that leave fewer nodes and the same bits: movement_elimination, redundant_nodes,
// shape_simplification, split_slices and expand_sinking.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/dead_node_elimination.h"
#include "graph_transforms/expand_sinking.h"
#include "graph_transforms/movement_elimination.h"
#include "graph_transforms/redundant_nodes.h"
#include "graph_transforms/replacements.h"
#include "graph_transforms/shape_inference_pass.h"
#include "graph_transforms/shape_simplification.h"
#include "graph_transforms/split_sequences.h"
#include "graph_transforms/split_slices.h"
#include "tests/core/execute/graph_fixture.h"
#include "training/kernels/training_ops.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Values RunOnCpu(const std::shared_ptr<Graph>& graph, const Values& feeds) {
  return RunPlan(PlanOf(graph, feeds, {}, {MakeCpuProvider(RegisterTrainingKernels)}), feeds);
}

// The ops that are left, in order. Results are compared with those of the graph as it was.
std::vector<std::string> Left(const std::shared_ptr<Pass>& pass, const std::string& body,
                              const Values& feeds) {
  Model model;
  model.graph = GraphOf(body);
  const Values expected = RunOnCpu(GraphOf(body), feeds);
  const auto records =
      RunPasses({MakeShapeInferencePass(), pass, MakeDeadNodeEliminationPass()}, model);
  EXPECT_TRUE(records.ok()) << records.status().ToString();
  EXPECT_TRUE(SameBits(RunOnCpu(model.graph, feeds), expected));
  std::vector<std::string> ops;
  for (const auto& node : model.graph->nodes()) ops.push_back(node->op_type());
  return ops;
}
std::vector<std::string> Moved(const std::string& body, const Values& feeds) {
  return Left(MakeMovementEliminationPass(), body, feeds);
}
std::vector<std::string> Shaped(const std::string& body, const Values& feeds) {
  return Left(MakeShapeSimplificationPass(), body, feeds);
}
std::vector<std::string> SplitUp(const std::string& body, const Values& feeds) {
  EXPECT_TRUE(RegisterTrainingOpSchemas().ok());
  return Left(MakeSplitSlicesPass(), body, feeds);
}

// --- sequences ---

// A node of as many outputs as a dim has elements would be made for dims of any size.
TEST(SplitSequences, LongSequencesStay) {
  for (const auto& [size, op] : {std::pair("100", "Split"), {"1000000000", "SplitToSequence"}}) {
    Model model;
    model.graph =
        GraphOf("(float[" + std::string(size) + R"(] x) => (float[1] y) <int64 one = {1}> {
      s = SplitToSequence <axis = 0> (x) a = SequenceAt (s, one) y = Neg (a) })");
    ASSERT_TRUE(RunPasses({MakeShapeInferencePass(), MakeSplitSequencesPass()}, model).ok());
    EXPECT_EQ(model.graph->nodes()[0]->op_type(), op);
  }
}

// --- transposes ---

// Dim i of the second is dim perm2[i] of the first, which is dim perm1[perm2[i]] of x: {2, 0, 1}
// after {1, 2, 0} is {0, 1, 2}, which is x.
TEST(MovementElimination, TransposesThatUndoEachOther) {
  EXPECT_THAT(Moved(R"((float[2, 3, 4] x) => (float[2, 3, 4] y) {
    a = Transpose <perm = [1, 2, 0]> (x)
    b = Transpose <perm = [2, 0, 1]> (a)
    y = Neg (b)
  })",
                    {Ramp(Shape{2, 3, 4})}),
              ElementsAre("Neg"));
}

// {1, 0, 2} after {2, 0, 1} is {0, 2, 1}.
TEST(MovementElimination, TransposesInARow) {
  EXPECT_THAT(Moved(R"((float[2, 3, 4] x) => (float[2, 4, 3] y) {
    a = Transpose <perm = [2, 0, 1]> (x)
    y = Transpose <perm = [1, 0, 2]> (a)
  })",
                    {Ramp(Shape{2, 3, 4})}),
              ElementsAre("Transpose"));
}

// Without perm dims are reversed; twice, and nothing has happened. An output keeps its name, and so
// its node.
TEST(MovementElimination, TransposesWithoutPermutation) {
  EXPECT_THAT(Moved(R"((float[2, 3] x) => (float[2, 3] y, float[3, 2] z) {
    z = Transpose (x)
    b = Transpose (z)
    y = Abs (b)
  })",
                    {Ramp(Shape{2, 3})}),
              ElementsAre("Transpose", "Abs"));
}

// --- reshapes ---

TEST(MovementElimination, ReshapesInARow) {
  EXPECT_THAT(
      Moved(
          R"((float[2, 3, 4] x) => (float[4, 6] y) <int64[2] six = {6, 4}, int64[2] four = {4, -1}, int64[1] zero = {0}> {
    a = Reshape (x, six)
    b = Unsqueeze (a, zero)
    c = Flatten <axis = 1> (b)
    y = Reshape (c, four)
  })",
          {Ramp(Shape{2, 3, 4})}),
      ElementsAre("Reshape"));
}

// Behind a Transpose the first copies; the second shows its copy.
TEST(MovementElimination, AReshapeThatOthersReadStays) {
  const char* body =
      R"((float[2, 3, 4] x) => (float[4, 6] y, float[24] z) <int64[2] rows = {4, 6}, int64[1] flat = {24}> {
    t = Transpose <perm = [2, 1, 0]> (x)
    r = Reshape (t, rows)
    f = Reshape (r, flat)
    y = Neg (r)
    z = Neg (f)
  })";
  auto graph = GraphOf(body);
  Model model;
  model.graph = graph;
  ASSERT_TRUE(RunPasses({MakeMovementEliminationPass()}, model).ok());
  const Value* first = graph->FindValue("r");
  EXPECT_EQ(graph->FindValue("f")->producer()->input(0), first);
  EXPECT_THAT(Moved(body, {Ramp(Shape{2, 3, 4})}),
              ElementsAre("Transpose", "Reshape", "Reshape", "Neg", "Neg"));
}

// A zero stands for a dim of the input, which is another one then.
TEST(MovementElimination, LeavesZerosAlone) {
  EXPECT_THAT(
      Moved(
          R"((float[2, 6] x) => (float[3, 4] y) <int64[2] three = {3, 4}, int64[2] same = {0, 4}> {
    a = Reshape (x, three)
    y = Reshape (a, same)
  })",
          {Ramp(Shape{2, 6})}),
      ElementsAre("Reshape", "Reshape"));
}

TEST(MovementElimination, LeavesShapesThatAreFedAlone) {
  EXPECT_THAT(Moved(R"((float[2, 6] x, int64[2] to) => (float[A, B] y) <int64[2] three = {3, 4}> {
    a = Reshape (x, three)
    y = Reshape (a, to)
  })",
                    {Ramp(Shape{2, 6}), Tensor::Of<int64_t>(Shape{2}, {0, 4})}),
              ElementsAre("Reshape", "Reshape"));
}

// --- casts ---

// int32 -> int64 -> int32 and float -> double -> float lose nothing; so does int16 -> float on the
// way to double.
TEST(MovementElimination, CastsThroughWiderTypes) {
  EXPECT_THAT(Moved(R"((float[3] x) => (float[3] y) {
    wide = Cast <to = 11> (x)
    back = Cast <to = 1> (wide)
    y = Neg (back)
  })",
                    {Ramp(Shape{3})}),
              ElementsAre("Neg"));
  EXPECT_THAT(Moved(R"((int16[2] x) => (double[2] y) {
    a = Cast <to = 1> (x)
    y = Cast <to = 11> (a)
  })",
                    {Tensor::Of<int16_t>(Shape{2}, {-32768, 77})}),
              ElementsAre("Cast"));
}

// 2^24 + 1 is no float, 300 no byte, 0.25 no integer.
TEST(MovementElimination, LeavesCastsThatLose) {
  EXPECT_THAT(Moved(R"((int32[1] x) => (int32[1] y) {
    a = Cast <to = 1> (x)
    y = Cast <to = 6> (a)
  })",
                    {Tensor::Of<int32_t>(Shape{1}, {16777217})}),
              ElementsAre("Cast", "Cast"));
  EXPECT_THAT(Moved(R"((float[3] x) => (float[3] y) {
    a = Cast <to = 7> (x)
    y = Cast <to = 1> (a)
  })",
                    {Ramp(Shape{3})}),
              ElementsAre("Cast", "Cast"));
  EXPECT_THAT(Moved(R"((float[3] x) => (float[3] y) {
    a = Cast <to = 10> (x)
    y = Cast <to = 1> (a)
  })",
                    {Ramp(Shape{3}, 0.1f)}),
              ElementsAre("Cast", "Cast"));
}

// --- shapes ---

// Dims 1 and 2 of [N, 3, 8] are 3 and 8 whatever N is; -1 counts from the end.
TEST(ShapeSimplification, MakesKnownDimsConstants) {
  EXPECT_THAT(
      Shaped(
          R"((float[N, 3, 8] x) => (int64[2] y, int64 z) <int64[2] at = {1, -1}, int64 two = {2}, int64[2] none = {0, 0}> {
    s = Shape (x)
    d = Gather (s, at)
    y = Add (d, none)
    e = Gather (s, two)
    z = Neg (e)
  })",
          {Ramp(Shape{5, 3, 8})}),
      ElementsAre("Add", "Neg"));
}

// [N, 3, 8] and [N, 8, 3] of another node: one Gather for both.
TEST(ShapeSimplification, ComputesASymbolOnce) {
  EXPECT_THAT(
      Shaped(R"((float[N, 3, 8] x) => (float[A, B] y, float[C, D] z)
      <int64[1] first = {0}, int64[1] rest = {-1}> {
    t = Transpose <perm = [0, 2, 1]> (x)
    s = Shape (x)
    n = Gather (s, first)
    to = Concat <axis = 0> (n, rest)
    y = Reshape (x, to)
    s2 = Shape (t)
    n2 = Gather (s2, first)
    to2 = Concat <axis = 0> (n2, rest)
    z = Reshape (t, to2)
  })",
             {Ramp(Shape{5, 3, 8})}),
      ElementsAre("Transpose", "Shape", "Gather", "Concat", "Reshape", "Concat", "Reshape"));
}

// Two inputs say N, and nothing makes the caller keep to that.
TEST(ShapeSimplification, DoesNotTrustSymbolsOfSeveralInputs) {
  EXPECT_THAT(Shaped(R"((float[N] x, float[N] z) => (int64[1] y) <int64[1] first = {0}> {
    s = Shape (x)
    n = Gather (s, first)
    s2 = Shape (z)
    n2 = Gather (s2, first)
    y = Sub (n, n2)
  })",
                     {Ramp(Shape{5}), Ramp(Shape{2})}),
              ElementsAre("Shape", "Gather", "Shape", "Gather", "Sub"));
}

// Shape [1:3] is [3, 8]; its slice [1:] is 8; joined with 3 * 8 = 24, the size of [3, 8], it is [8,
// 24].
TEST(ShapeSimplification, FollowsSlicesJoinsAndSizes) {
  EXPECT_THAT(Shaped(R"((float[3, 8] x) => (int64[2] y)
      <int64[1] one = {1}, int64[1] end = {9}, int64[1] zero = {0}, int64[2] none = {0, 0}> {
    s = Shape <start = 0, end = 2> (x)
    d = Slice (s, one, end)
    n = Size (x)
    u = Unsqueeze (n, zero)
    j = Concat <axis = 0> (d, u)
    y = Add (j, none)
  })",
                     {Ramp(Shape{3, 8})}),
              ElementsAre("Add"));
}

// --- replacements ---

// A chain of replacements, the first of which a body exports.
TEST(Replacements, ReachTheOutputsOfBodies) {
  std::shared_ptr<Graph> graph = GraphOf(R"((float[2] x, bool c) => (float[2] y) {
    a = Identity (x)
    b = Identity (a)
    y = If (c) <then_branch = t () => (float[2] s) { s = Identity (b) }, else_branch = e () => (float[2] n) { n = Neg (b) }>
  })");
  ASSERT_NE(graph, nullptr);
  for (Graph* body : graph->nodes().back()->Subgraphs()) {  // text cannot say that a body puts out
                                                            // what is outside of it
    if (body->name() == "t") body->SetOutput(0, graph->FindValue("b"));
  }
  Value *x = graph->FindValue("x"), *a = graph->FindValue("a"), *b = graph->FindValue("b");
  Replacements replacements;
  replacements.Replace(b, a);
  replacements.Replace(a, x);
  replacements.Finish(*graph);
  graph->RemoveNodes({a->producer(), b->producer()});
  ASSERT_TRUE(CheckGraph(*graph).ok()) << CheckGraph(*graph).ToString();
  const Values feeds = {Ramp(Shape{2}), Tensor::Scalar<bool>(true)};
  EXPECT_TRUE(SameBits(RunOnCpu(graph, feeds)[0], feeds[0]));
}

// --- slices ---

// The halves of rows, the second one first; ends after the last element, and counted from it.
TEST(SplitSlices, PartsOfAllAreASplit) {
  const char* body = R"((float[2, 3, 8] x) => (float[2, 3, 4] y, float[2, 3, 4] a, float[2, 3, 4] b)
      <int64[1] none = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}, int64[1] back = {-4}> {
    b = Slice (x, half, end, last)
    a = Slice (x, none, back, last)
    y = Sub (b, a)
  })";
  EXPECT_THAT(SplitUp(body, {Ramp(Shape{2, 3, 8})}), ElementsAre("Split", "Sub"));
}

TEST(SplitSlices, UnevenPartsOfAnotherAxis) {
  const char* body = R"((float[5, 2] x) => (float[1, 2] y, float[3, 2] z, float[1, 2] w)
      <int64[1] none = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] end = {99}> {
    a = Slice (x, none, one)
    b = Slice (x, one, four)
    c = Slice (x, four, end)
    y = Neg (a)
    z = Neg (b)
    w = Neg (c)
  })";
  EXPECT_THAT(SplitUp(body, {Ramp(Shape{5, 2})}), ElementsAre("Split", "Neg", "Neg", "Neg"));
}

// An empty part stays, and the others are a Split.
TEST(SplitSlices, PartsBesideAnEmptyOne) {
  const char* body = R"((float[4] x) => (float[2] y, float[2] z, float[0] w)
      <int64[1] none = {0}, int64[1] half = {2}, int64[1] end = {4}> {
    a = Slice (x, none, half)
    c = Slice (x, end, end)
    b = Slice (x, half, end)
    y = Neg (a)
    z = Neg (b)
    w = Neg (c)
  })";
  EXPECT_THAT(SplitUp(body, {Ramp(Shape{4})}), ElementsAre("Split", "Slice", "Neg", "Neg", "Neg"));
}

// A gap, an overlap, a stride, two axes, integers, a size that is not known: as they stand.
TEST(SplitSlices, OthersStay) {
  const std::string constants =
      "<int64[1] none = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] "
      "axis = {0}>";
  for (const auto& [b, c] : {std::pair("none, one", "two, four"),
                             {"none, two", "one, four"},
                             {"none, two, axis, one", "two, four, axis, two"},
                             {"none, two, none", "two, four, one"}}) {
    const std::string slices = " { b = Slice (x, " + std::string(b) + ") c = Slice (x, " +
                               std::string(c) + ") y = Neg (b) z = Neg (c) }";
    EXPECT_THAT(SplitUp("(float[4, 4] x) => (float[P, Q] y, float[R, S] z) " + constants + slices,
                        {Ramp(Shape{4, 4})}),
                ElementsAre("Slice", "Slice", "Neg", "Neg"))
        << slices;
  }
  const std::string halves =
      " { b = Slice (x, none, two) c = Slice (x, two, four) y = Neg (b) z = Neg (c) }";
  EXPECT_THAT(SplitUp("(float[N, 4] x) => (float[P, 4] y, float[R, 4] z) " + constants + halves,
                      {Ramp(Shape{4, 4})}),
              ElementsAre("Slice", "Slice", "Neg", "Neg"));
  EXPECT_THAT(SplitUp("(int64[4] x) => (int64[P] y, int64[R] z) " + constants + halves,
                      {Tensor::Of<int64_t>(Shape{4}, {1, 2, 3, 4})}),
              ElementsAre("Slice", "Slice", "Neg", "Neg"));
}

// --- gradients of slices ---

// The gradient of halves, the second one first, that something is added to; an empty part; and a
// graph output.
TEST(SplitSlices, GradientsOfAllPartsAreAConcat) {
  const char* body =
      R"((float[2, 3] a, float[2, 5] b, float[2, 0] none, float[2, 8] c) => (float[2, 8] y, float[2, 8] z)
      <int64[2] shape = {2, 8}, int64[1] start = {0}, int64[1] cut = {3}, int64[1] end = {9223372036854775807}, int64[1] axis = {1}> {
    da = ai.caesura.SliceGrad (a, shape, start, cut, axis)
    db = ai.caesura.SliceGrad (b, shape, cut, end, axis)
    empty = ai.caesura.SliceGrad (none, shape, end, end, axis)
    first = Add (db, c)
    second = Add (empty, first)
    y = Add (second, da)
    na = Neg (a)
    dna = ai.caesura.SliceGrad (na, shape, start, cut, axis)
    dnb = ai.caesura.SliceGrad (b, shape, cut, end, axis)
    z = Add (dnb, dna)
  })";
  const Values feeds = {Ramp(Shape{2, 3}), Ramp(Shape{2, 5}), Tensor::Of<float>(Shape{2, 0}, {}),
                        Ramp(Shape{2, 8})};
  EXPECT_THAT(SplitUp(body, feeds), ElementsAre("Concat", "Add", "Neg", "Concat"));
}

// A part that is read twice, a gap, an overlap: as they stand.
TEST(SplitSlices, OtherGradientsStay) {
  for (const auto& [size, a, b, last] : {std::tuple("4", "zero, two", "two, four", "Mul (y, da)"),
                                         {"5", "zero, two", "three, five", "Neg (y)"},
                                         {"4", "one, three", "two, four", "Neg (y)"}}) {
    const std::string n(size),
        body = "(float[2] a, float[2] b) => (float[" + n + "] y, float[" + n +
               "] z) <int64[1] shape = {" + n +
               R"(}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
                int64[1] three = {3}, int64[1] four = {4}, int64[1] five = {5}> {
      da = ai.caesura.SliceGrad (a, shape, )" +
               a + R"()
      db = ai.caesura.SliceGrad (b, shape, )" +
               b + R"()
      y = Add (da, db)
      z = )" + last +
               "}";
    EXPECT_THAT(SplitUp(body, {Ramp(Shape{2}), Ramp(Shape{2})}),
                ElementsAre("SliceGrad", "SliceGrad", "Add", ::testing::_))
        << body;
  }
}

// --- what is handed on ---

TEST(RedundantNodes, ConcatOfOnePart) {
  const char* body = R"((float[2, 3] a, float[2, 0] none) => (float[2, 3] y, float[2, 6] z) {
    whole = Concat <axis = 1> (none, a, none)
    y = Neg (whole)
    both = Concat <axis = 1> (a, none, a)
    z = Neg (both)
  })";
  EXPECT_THAT(
      Left(MakeRedundantNodesPass(), body, {Ramp(Shape{2, 3}), Tensor::Of<float>(Shape{2, 0}, {})}),
      ElementsAre("Neg", "Concat", "Neg"));
}

// --- expands ---

// The gradient of a mean: divided before it is spread, and spread by what it is multiplied with.
TEST(ExpandSinking, ArithmeticBroadcasts) {
  const char* body =
      R"((float[2, 3, 1] dy, float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] z)
      <int64[3] shape = {2, 3, 4}, float count = {4}> {
    e = Expand (dy, shape)
    d = Div (e, count)
    y = Mul (x, d)
    z = Sub (count, e)
  })";
  EXPECT_THAT(Left(MakeExpandSinkingPass(), body, {Ramp(Shape{2, 3, 1}), Ramp(Shape{2, 3, 4})}),
              ElementsAre("Div", "Mul", "Sub", "Expand"));
}

// Where the other side needs the spread tensor, is spread itself, or no shape is known.
TEST(ExpandSinking, OthersStay) {
  const Values feeds = {Ramp(Shape{1, 4}), Ramp(Shape{3, 1})};
  const std::string head =
      "<int64[2] shape = {3, 4}, int64[2] square = {2, 2}> { e = Expand (x, shape) ";
  EXPECT_THAT(
      Left(MakeExpandSinkingPass(),
           "(float[1, 4] x, float[3, 1] b) => (float[3, 4] y) " + head + "y = Exp (e) }", feeds),
      ElementsAre("Expand", "Exp"));
  EXPECT_THAT(
      Left(MakeExpandSinkingPass(),
           "(float[N, 4] x, float[3, 1] b) => (float[3, 4] y) " + head + "y = Add (e, b) }", feeds),
      ElementsAre("Expand", "Add"));
  EXPECT_THAT(
      Left(MakeExpandSinkingPass(),
           "(float[1, 4] x, float[3, 1] b) => (float[3, 4] y) " + head + "y = Add (e, e) }", feeds),
      ElementsAre("Expand", "Add"));
}

}  // namespace
}  // namespace caesura::testing
