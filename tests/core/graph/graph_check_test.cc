// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph_check.h"

#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

void ExpectFault(const Graph& graph, const std::string& part) {
  Status status = CheckGraph(graph);
  ASSERT_FALSE(status.ok()) << "expected: " << part;
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
}

class GraphCheckTest : public ::testing::Test {
 protected:
  GraphCheckTest() {
    model_ = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21]>
      g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        h = Add (x, w)
        y = If (c) <then_branch = t () => (float[2] a) { a = Relu (h) },
                    else_branch = e () => (float[2] b) { b = Abs (w) }>
      })")
                 .value();
  }
  Graph& graph() { return *model_.graph; }
  Model model_;
};

TEST_F(GraphCheckTest, PassesAGoodGraphAndItsBodies) {
  EXPECT_TRUE(CheckGraph(graph()).ok());
  EXPECT_TRUE(CheckGraph(*graph().nodes()[1]->Subgraphs()[0]).ok());
}

TEST_F(GraphCheckTest, OrderIsChecked) {
  Node* late = graph().AddOp("Neg", {graph().FindValue("x")});
  graph().nodes()[0]->SetInput(1, late->output(0));
  ExpectFault(graph(), "before anything makes it");
}

TEST_F(GraphCheckTest, BodiesReadOnlyWhatIsMadeBefore) {
  Node* late = graph().AddOp("Neg", {graph().FindValue("x")});
  Graph* body = graph().nodes()[1]->Subgraphs()[0];
  body->nodes()[0]->SetInput(0, late->output(0));
  ExpectFault(graph(), "before anything makes it");
}

TEST_F(GraphCheckTest, ValuesAreMadeOnce) {
  graph().AddNode("Neg", {graph().FindValue("x")}, {graph().FindValue("h")});
  ExpectFault(graph(), "makes 'h', which is made already");
}

TEST_F(GraphCheckTest, OutputsAreMade) {
  graph().AddOutput(graph().AddValue("loose"));
  ExpectFault(graph(), "puts out 'loose', which nothing makes");
}

TEST_F(GraphCheckTest, RemovedValuesAreNoticed) {
  auto other = std::make_unique<Graph>();
  Value* gone = other->AddInput("gone", {});
  graph().nodes()[0]->SetInput(1, gone);
  graph().AddOutput(gone);
  other = nullptr;
  ExpectFault(graph(), "a removed value");
}

TEST_F(GraphCheckTest, ValuesOfOtherGraphsAreNoticed) {
  Graph other;
  Value* foreign = other.AddInput("foreign", {});
  graph().nodes()[0]->SetInput(1, foreign);
  ExpectFault(graph(), "before anything makes it");
}

TEST_F(GraphCheckTest, ReleasedOutputsAreNoticed) {
  graph().ReleaseOutputs(graph().nodes()[0].get());
  ExpectFault(graph(), "reads 'h' before anything makes it");
}

}  // namespace
}  // namespace caesura
