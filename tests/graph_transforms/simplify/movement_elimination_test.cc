// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/movement_elimination.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Moved(const std::string& body, const Values& feeds) {
  return OpsLeft(MakeMovementEliminationPass(), body, feeds);
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

// The first Reshape copies, as it reads a Transpose. The second is a view of that copy.
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

}  // namespace
}  // namespace caesura::testing
