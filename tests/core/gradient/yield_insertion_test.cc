// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/yield_insertion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ints = std::vector<int64_t>;

class YieldInsertion : public ::testing::Test {
 protected:
  void Load(const std::string& signature, const std::string& body) {
    model_ = ParseModelText("<ir_version: 10, opset_import: [\"\": 28]>\ng " + signature + " {" +
                            body + "}")
                 .value();
    graph_ = model_.graph.get();
  }
  Value* V(const std::string& name) { return graph_->FindValue(name); }
  Ints Attribute(const Node& yield, const std::string& name) {
    return yield.Attr<Ints>(name, Ints{-7});
  }
  void ExpectValid() { EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString(); }
  int Position(const Node* node) {
    for (size_t i = 0; i < graph_->nodes().size(); ++i) {
      if (graph_->nodes()[i].get() == node) return static_cast<int>(i);
    }
    return -1;
  }

  Model model_;
  Graph* graph_ = nullptr;
};

TEST_F(YieldInsertion, HandsOutputsOutAndTakesGradientsIn) {
  Load("(float[2,3] x) => (float[2,4] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}>",
       "h = MatMul(x, w) y = Tanh(h)");
  const ModuleGraph module =
      BuildModuleGraph(*graph_, {.parameters = {"w"}, .inputs = {"x"}}).value();
  EXPECT_THAT(module.yield->inputs(), ElementsAre(V("y")));
  EXPECT_THAT(module.gradient_of, ElementsAre(0));
  EXPECT_THAT(module.differentiated, ElementsAre("x", "w"));
  EXPECT_THAT(Attribute(*module.yield, "non_differentiable_outputs"), IsEmpty());
  EXPECT_THAT(Attribute(*module.yield, "full_shape_outputs"), ElementsAre(0));
  EXPECT_EQ(Position(module.yield), 2);
  EXPECT_EQ(graph_->outputs().size(), 2u);
  EXPECT_EQ(graph_->outputs()[0]->type().ToString(), "float32[2, 3]");
  ExpectValid();
}

TEST_F(YieldInsertion, InputsOfOneGradientHaveOutputsOfTheirOwn) {
  Load("(float[2] a, float[2] b) => (float[2] y)", "s = Add(a, b) y = Tanh(s)");
  ASSERT_TRUE(BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"a", "b"}}).ok());
  ASSERT_EQ(graph_->outputs().size(), 2u);
  EXPECT_NE(graph_->outputs()[0], graph_->outputs()[1]);
  ExpectValid();
}

TEST_F(YieldInsertion, OutputsThatNoGradientComesInFor) {
  Load("(float[2] x, float[2] z) => (float[2] y, int64[1] s, float[2] e)",
       "y = Sin(x) s = Shape(x) e = Exp(z)");
  const ModuleGraph module = BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"x"}}).value();
  EXPECT_THAT(Attribute(*module.yield, "non_differentiable_outputs"), ElementsAre(1, 2));
  EXPECT_THAT(module.gradient_of, ElementsAre(0));
  EXPECT_EQ(module.yield->inputs().size(), module.yield->outputs().size() + 2);
}

TEST_F(YieldInsertion, AnOutputThatFeedsAnotherMayReceiveAScalarZero) {
  Load("(float[2] x) => (float[2] y, float[2] z)", "y = Sin(x) z = Exp(y)");
  const ModuleGraph module = BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"x"}}).value();
  EXPECT_THAT(Attribute(*module.yield, "full_shape_outputs"), ElementsAre(1));
  ExpectValid();
}

TEST_F(YieldInsertion, OneOutputTwice) {
  Load("(float[2] x) => (float[2] y)", "y = Sin(x)");
  graph_->AddOutput(V("y"));
  const ModuleGraph module = BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"x"}}).value();
  EXPECT_THAT(module.gradient_of, ElementsAre(0, 1));
  EXPECT_THAT(Attribute(*module.yield, "full_shape_outputs"), ElementsAre(0, 1));
  ExpectValid();
}

TEST_F(YieldInsertion, ExtraValuesStandBehindTheOutputs) {
  Load("(float[2] x) => (float[2] y)", "h = Sin(x) y = Exp(h)");
  const ModuleGraph module =
      BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"x"}, .extra = {V("h")}}).value();
  EXPECT_THAT(module.yield->inputs(), ElementsAre(V("y"), V("h")));
  EXPECT_THAT(Attribute(*module.yield, "non_differentiable_outputs"), ElementsAre(1));
  EXPECT_THAT(module.gradient_of, ElementsAre(0));
  EXPECT_EQ(graph_->outputs().size(), 1u);
  ExpectValid();
}

TEST_F(YieldInsertion, NothingToTrain) {
  Load("(float[2] x) => (float[2] y)", "y = Sin(x)");
  const ModuleGraph module = BuildModuleGraph(*graph_, {}).value();
  EXPECT_THAT(module.yield->outputs(), IsEmpty());
  EXPECT_THAT(Attribute(*module.yield, "non_differentiable_outputs"), ElementsAre(0));
  EXPECT_THAT(graph_->outputs(), IsEmpty());
}

TEST_F(YieldInsertion, InputGradientsComeFirstInGraphOrder) {
  Load("(float[2] a, float[2] b) => (float[2] y) <float[2] p = {1,2}, float[2] q = {3,4}>",
       "ab = Mul(a, b) pq = Mul(p, q) y = Add(ab, pq)");
  const ModuleGraph module =
      BuildModuleGraph(*graph_, {.parameters = {"q", "p"}, .inputs = {"b", "a"}}).value();
  EXPECT_THAT(module.differentiated, ElementsAre("a", "b", "q", "p"));
}

TEST_F(YieldInsertion, GradientsThatPassThroughAreOutputsOfTheirOwn) {
  Load("(float[2] a, float[2] b) => (float[2] y)", "y = Add(a, b)");
  ASSERT_TRUE(BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"a", "b"}}).ok());
  EXPECT_NE(graph_->outputs()[0], graph_->outputs()[1]);
  for (const Value* output : graph_->outputs())
    EXPECT_EQ(output->producer()->op_type(), "Identity");
  ExpectValid();
}

TEST_F(YieldInsertion, UnusedParametersAreNamed) {
  Load("(float[2] a) => (float[2] y) <float[3] p = {1,2,3}>", "y = Sin(a) unused = Exp(p)");
  const ModuleGraph module =
      BuildModuleGraph(*graph_, {.parameters = {"p"}, .inputs = {"a"}}).value();
  EXPECT_THAT(module.unreachable, ElementsAre("p"));
}

TEST_F(YieldInsertion, FailureLeavesTheGraph) {
  Load("(float[4] x) => (float[4] y)", "y = BitCast<to = 1>(x)");
  const size_t nodes = graph_->nodes().size();
  EXPECT_EQ(BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"x"}}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(graph_->nodes().size(), nodes);
  EXPECT_THAT(BuildModuleGraph(*graph_, {.parameters = {"w"}, .inputs = {}}).status().message(),
              HasSubstr("no parameter 'w'"));
  EXPECT_THAT(BuildModuleGraph(*graph_, {.parameters = {}, .inputs = {"w"}}).status().message(),
              HasSubstr("no input 'w'"));
}

TEST_F(YieldInsertion, IdentityYieldTakesOverAllReaders) {
  Load("(float[2] x) => (float[2] y, float[2] a)",
       "a = Sin(x) b = Exp(a) c = Cos(x) y = Mul(a, b)");
  const Node* yield = InsertIdentityYield(*graph_, {V("a"), V("c")}).value();
  EXPECT_EQ(V("a")->uses().size(), 1u);
  EXPECT_EQ(graph_->outputs()[1], yield->outputs()[0]);
  EXPECT_EQ(Position(yield), Position(V("c")->producer()) + 1);
  EXPECT_TRUE(graph_->SortTopologically().ok());
  ExpectValid();
}

TEST_F(YieldInsertion, IdentityYieldOfDependentValuesIsRefused) {
  Load("(float[2] x) => (float[2] y)", "a = Sin(x) b = Exp(a) y = Mul(a, b)");
  EXPECT_THAT(InsertIdentityYield(*graph_, {V("a"), V("b")}).status().message(),
              HasSubstr("'b' depends on"));
  ASSERT_TRUE(InsertIdentityYield(*graph_, {V("a")}).ok());
  EXPECT_TRUE(InsertIdentityYield(*graph_, {V("b")}).ok());  // one after the other is fine
  EXPECT_TRUE(InsertIdentityYield(*graph_, {V("x")}).ok());
  EXPECT_TRUE(graph_->SortTopologically().ok());
  ExpectValid();
}

TEST_F(YieldInsertion, IdentityYieldReachesIntoBodies) {
  Load("(bool c, float[2] x) => (float[2] y)",
       "a = Sin(x) y = If(c) <then_branch = t () => (float[2] p) { p = Exp(a) }, else_branch = e "
       "() => (float[2] q) { q = Neg(a) }>");
  ASSERT_TRUE(InsertIdentityYield(*graph_, {V("a")}).ok());
  EXPECT_EQ(V("a")->uses().size(), 1u);
  ExpectValid();
}

}  // namespace
}  // namespace caesura
