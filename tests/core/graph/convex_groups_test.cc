// SPDX-License-Identifier: Apache-2.0
#include "core/graph/convex_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;

std::shared_ptr<Graph> ParseGraph(const std::string& body) {
  auto model =
      ParseModelText("<ir_version: 10, opset_import: [\"\": 23, \"ai.caesura\": 1]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model->graph;
}

// By the names of first outputs.
std::vector<std::string> Names(const std::vector<const Node*>& nodes) {
  std::vector<std::string> out;
  for (const Node* node : nodes) out.push_back(node->output(0)->name());
  return out;
}

TEST(ConvexGroups, RefusesWhatWouldWaitForItself) {
  const auto graph = ParseGraph(R"((float[2] x) => (float[2] c) {
      a = Neg (x) b = Abs (a) c = Add (a, b) })");
  ConvexGroups groups(*graph);
  EXPECT_FALSE(groups.Join(0, 2));  // b waits for a, and c for b
  EXPECT_THAT(groups.members(2), ElementsAre(2));
  EXPECT_TRUE(groups.Join(0, 1));
  EXPECT_TRUE(groups.Join(0, 2));
  EXPECT_THAT(groups.members(1), ElementsAre(0, 1, 2));
}

TEST(ConvexGroups, AGroupStandsWhereItsLastMemberDoes) {
  const auto graph = ParseGraph(R"((float[2] x) => (float[2] c, float[2] d, float[2] e) {
      a = Neg (x) e = Abs (a) b = Exp (x) c = Add (a, x) d = Tanh (b) })");
  ConvexGroups groups(*graph);
  EXPECT_TRUE(groups.Join(0, 3));
  EXPECT_THAT(Names(groups.Order()), ElementsAre("b", "a", "c", "e", "d"));
}

// An update of w waits for those that read w before it.
TEST(ConvexGroups, UpdatesStayAfterTheirReaders) {
  const auto graph = ParseGraph(R"((float[2] x, float[2] w) => (float[2] c, float[2] u) {
      a = Neg (x) r = Add (a, w) u = ai.caesura.Assign (w, a) b = Neg (u) c = Add (r, b) })");
  graph->nodes()[2]->set_phase(Phase::kOptimizer);
  ConvexGroups groups(*graph);
  EXPECT_TRUE(groups.Join(0, 1));
  EXPECT_FALSE(groups.Join(1, 4));  // the update waits for r, and c for what it makes
}

// Yields of one graph happen in their order, although the second reads nothing of the first.
TEST(ConvexGroups, YieldsKeepTheirOrder) {
  const auto graph = ParseGraph(R"((float[2] x) => (float[2] c, float[2] p) {
      a = Neg (x) p = ai.caesura.YieldOp (a) q = ai.caesura.YieldOp (x) b = Abs (q) c = Add (a, b) })");
  ConvexGroups groups(*graph);
  EXPECT_FALSE(groups.Join(0, 4));  // a, the first yield, the second yield, b, c
  EXPECT_TRUE(groups.Join(3, 4));
}

}  // namespace
}  // namespace caesura
