// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/gradient_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class GradientBuilder : public ::testing::Test {
 protected:
  void Load(const std::string& signature, const std::string& body) {
    model_ = ParseModelText("<ir_version: 10, opset_import: [\"\": 28, \"ai.caesura\": 1]>\ng " +
                            signature + " {" + body + "}")
                 .value();
    graph_ = model_.graph.get();
    forward_nodes_ = graph_->nodes().size();
  }
  Value* V(const std::string& name) { return graph_->FindValue(name); }
  Result<GradientGraph> Differentiate(
      const std::vector<std::string>& xs,
      UnreachableGradient unreachable = UnreachableGradient::kZeros) {
    GradientOptions options;
    options.unreachable = unreachable;
    for (Value* y : graph_->outputs()) options.ys.push_back({y, nullptr});
    for (const std::string& x : xs) options.xs.push_back(V(x));
    return BuildGradient(*graph_, options);
  }
  static std::vector<std::string> OpTypes(const std::vector<Node*>& nodes) {
    std::vector<std::string> out;
    for (const Node* node : nodes) out.push_back(node->op_type());
    return out;
  }

  Model model_;
  Graph* graph_ = nullptr;
  size_t forward_nodes_ = 0;
};

TEST_F(GradientBuilder, OnlyNodesOnThePathGetBackwardNodes) {
  Load("(float[2,3] x, float[3,4] w) => (float[] loss)",
       "a = Exp(x) h = MatMul(a, w) loss = ReduceSum<keepdims = 0>(h)");
  const GradientGraph gradient = Differentiate({"w"}).value();
  EXPECT_THAT(OpTypes(gradient.nodes), ElementsAre("Expand", "FusedMatMul"));
  EXPECT_EQ(gradient.dxs[0]->type().ToString(), "float32[3, 4]");
}

// The product's saved value is read for the last time before the gradient that takes as many bytes
// is made.
TEST_F(GradientBuilder, WeightsComeBeforeWhatTheyMultiply) {
  for (const std::string op : {"MatMul", "Gemm"}) {
    Load("(float[5,3] x, float[3,4] w) => (float[5,4] y)", "a = Exp(x) y = " + op + "(a, w)");
    const GradientGraph gradient = Differentiate({"x", "w"}).value();
    const auto& nodes = gradient.nodes;
    const auto product = [](const Node* node) { return node->Is("FusedMatMul", kCaesuraDomain); };
    const auto first = std::find_if(nodes.begin(), nodes.end(), product);
    ASSERT_NE(first, nodes.end());
    EXPECT_EQ((*first)->output(0), gradient.dxs[1]) << op;
    EXPECT_EQ(std::count_if(first, nodes.end(), product), 2) << op;
  }
}

TEST_F(GradientBuilder, BackwardNodesAreMarked) {
  Load("(float[2] x) => (float[2] y)", "a = Sin(x) y = Exp(a)");
  graph_->nodes()[0]->set_source("net.py:7");
  const GradientGraph gradient = Differentiate({"x"}).value();
  for (const Node* node : gradient.nodes) EXPECT_EQ(node->phase(), Phase::kBackward);
  EXPECT_EQ(gradient.nodes.back()->source(), "net.py:7");
  EXPECT_GT(gradient.nodes.back()->since_version(), 0);
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

TEST_F(GradientBuilder, ContributionsAddUpAsTheyComeIn) {
  Load("(float[2] x) => (float[2] y)",
       "a = Sin(x) b = Cos(x) c = Exp(x) d = Add(a, b) y = Add(d, c)");
  const GradientGraph gradient = Differentiate({"x"}).value();
  // Exp, Cos, Sin from the last to the first; the first sum stands before the third contribution.
  EXPECT_THAT(OpTypes(gradient.nodes),
              ElementsAre("Expand", "Mul", "Sin", "Mul", "Neg", "Add", "Cos", "Mul", "Add"));
}

TEST_F(GradientBuilder, SlicesAreAddedToWhatIsThere) {
  Load("(float[4,3] w, int64[2] i, int64[2] j) => (float[2,4] y)",
       "a = Gather(w, i) b = Gather(w, j) c = Add(a, b) t = Transpose<perm = [1, 0]>(w) y = "
       "MatMul(c, t)");
  const GradientGraph gradient = Differentiate({"w"}).value();
  EXPECT_THAT(OpTypes(gradient.nodes), Not(::testing::Contains("Add")));
  const Node* last = gradient.dxs[0]->producer();
  ASSERT_EQ(last->op_type(), "GatherGrad");
  const Node* between = last->input(3)->producer();
  ASSERT_EQ(between->op_type(), "GatherGrad");
  EXPECT_EQ(between->input(3)->producer()->op_type(), "Transpose");
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

// The terms of a sum have one gradient: what is added for the one is not added for the other.
TEST_F(GradientBuilder, SlicesThatAnotherValueHasStayAlone) {
  Load("(float[4,3] u, float[4,3] v, int64[2] i) => (float[2,3] y, float[4,3] z)",
       "a = Exp(u) s = Add(a, v) y = Gather(s, i) z = Sin(a)");
  const GradientGraph gradient = Differentiate({"u", "v"}).value();
  ASSERT_EQ(gradient.dxs[1]->producer()->op_type(), "GatherGrad");
  EXPECT_EQ(gradient.dxs[1]->producer()->inputs().size(), 3);
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();

  Load("(float[4,3] u, int64[2] i) => (float[2,3] y)", "a = Exp(u) s = Add(a, a) y = Gather(s, i)");
  Differentiate({"u"}).value();
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

constexpr char kOwn[] =
    "a = Sin(x) y = ai.caesura.WithGradient<gradient_inputs = [%], gradient = own (float[2] dy, "
    "float[2] gx, "
    "float[2] ga) => (float[2] dx) { t = Mul(dy, ga) dx = Sub(t, dy) }>(a, x, a) loss = Exp(y)";

std::string Own(const std::string& inputs) {
  std::string text = kOwn;
  return text.replace(text.find('%'), 1, inputs);
}

TEST_F(GradientBuilder, AGradientOfItsOwn) {
  Load("(float[2] x) => (float[2] loss)", Own("1"));
  const GradientGraph gradient = Differentiate({"x"}).value();
  EXPECT_THAT(OpTypes(gradient.nodes), ElementsAre("Expand", "Mul", "Mul", "Sub"));
  const Node* product = gradient.nodes[2];
  EXPECT_EQ(product->input(1), V("a"));
  EXPECT_EQ(gradient.dxs[0], gradient.nodes[3]->output(0));
  EXPECT_EQ(V("y")->producer()->op_type(), "Identity");
  for (const Node* node : gradient.nodes) EXPECT_EQ(node->phase(), Phase::kBackward);
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

TEST_F(GradientBuilder, AGradientOfItsOwnThatDoesNotFit) {
  Load("(float[2] x) => (float[2] loss)", Own("1, 2"));
  const Status status = Differentiate({"x"}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("other inputs and outputs than gradient_inputs"));
}

// Files are not believed.
TEST_F(GradientBuilder, AGradientOfItsOwnThatIsNone) {
  for (const std::string node :
       {"y = ai.caesura.WithGradient(x)", "y = ai.caesura.WithGradient<gradient = 3>(x)",
        "y, z = ai.caesura.WithGradient<gradient_inputs = [0]>(x)"}) {
    Load("(float[2] x) => (float[2] loss)", node + " loss = Exp(y)");
    EXPECT_EQ(Differentiate({"x"}).status().code(), StatusCode::kUnsupported) << node;
  }
  Load("(float[2] x) => (float[2] loss)", Own("-1"));
  EXPECT_EQ(Differentiate({"x"}).status().code(), StatusCode::kUnsupported);
}

TEST_F(GradientBuilder, EqualShapesNeedNoSum) {
  Load("(float[N,3] a, float[N,3] b, float[3] c) => (float[N,3] y)", "s = Add(a, b) y = Add(s, c)");
  const GradientGraph gradient = Differentiate({"a", "b", "c"}).value();
  EXPECT_EQ(gradient.dxs[0], gradient.dxs[1]);
  EXPECT_EQ(gradient.dxs[2]->producer()->op_type(), "SumTo");
}

TEST_F(GradientBuilder, ShapesAreTakenWhereTheValueIsMade) {
  Load("(float[N,M] x, int64[2] s) => (float[P,Q] y)", "a = Exp(x) r = Reshape(a, s) y = Sin(r)");
  ASSERT_TRUE(Differentiate({"x"}).ok());
  EXPECT_EQ(graph_->nodes()[1]->op_type(), "Shape");
  EXPECT_EQ(graph_->nodes()[1]->phase(), Phase::kForward);
}

TEST_F(GradientBuilder, AllMissingNodesAreNamedAtOnce) {
  Load("(float[4] x) => (float[4] y)",
       "s = Constant<value_ints = [4]>() [first] a = BitCast<to = 1>(x) b = Sin(a) [second] u, i, "
       "j, c = Unique(b)"
       " d = Expand(u, s) y = Add(d, x)");
  V("a")->producer()->set_source("net.py:3");
  const Status status = Differentiate({"x"}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("2 nodes have no gradient"));
  EXPECT_THAT(status.message(), HasSubstr("[BitCast 'first'] (from net.py:3)"));
  EXPECT_THAT(status.message(), HasSubstr("[Unique 'second']"));
  EXPECT_THAT(status.message(), HasSubstr("not differentiable, as in PyTorch"));
  EXPECT_EQ(graph_->nodes().size(), forward_nodes_);  // nothing is left
  EXPECT_TRUE(CheckGraph(*graph_).ok());
}

TEST_F(GradientBuilder, InputsWithoutARuleAreRefusedOnlyWhereNeeded) {
  const std::string signature = "(float[3,4] x, int64[3] l, float[4] w) => (float[] y)";
  Load(signature, "y = SoftmaxCrossEntropyLoss(x, l, w)");
  EXPECT_TRUE(Differentiate({"x"}).ok());
  Load(signature, "y = SoftmaxCrossEntropyLoss(x, l, w)");
  EXPECT_THAT(Differentiate({"w"}).status().message(), HasSubstr("no gradient for its input 2"));
}

// Nobody writes log-probabilities that nobody reads.
TEST_F(GradientBuilder, CrossEntropyKeepsOneSumPerSample) {
  Load("(float16[3,4] x, int64[3] l) => (float16 y)", "y = SoftmaxCrossEntropyLoss(x, l)");
  const GradientGraph gradient = Differentiate({"x"}).value();
  const Node* node = gradient.dxs[0]->producer();
  ASSERT_EQ(node->op_type(), "SoftmaxCrossEntropyLossGrad");
  EXPECT_EQ(node->input(1), V("x"));
  EXPECT_EQ(node->input(4)->type().ToString(), "float32[3]");
  const Node* forward = V("y")->producer();
  EXPECT_TRUE(forward->Is("SoftmaxCrossEntropyLossTraining", kCaesuraDomain));
  EXPECT_EQ(forward->output(1), nullptr);
  EXPECT_EQ(forward->output(2), node->input(4));
  EXPECT_EQ(graph_->nodes()[0].get(), forward);  // in the place of the other
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
  const GradientGraph again = Differentiate({"x"}).value();
  EXPECT_EQ(again.dxs[0]->producer()->input(4), node->input(4));
}

TEST_F(GradientBuilder, LogProbabilitiesThatAreReadStay) {
  Load("(float[3,4] x, int64[3] l) => (float y, float[3,4] p)",
       "y, p = SoftmaxCrossEntropyLoss(x, l)");
  EXPECT_THAT(OpTypes(Differentiate({"x"}).value().nodes),
              ElementsAre("Expand", "LogSoftmaxGrad", "SoftmaxCrossEntropyLossGrad", "Add"));
  EXPECT_EQ(V("p")->producer(), V("y")->producer());
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
  Load("(float[3,4] x, int64[3] l) => (float[3,4] p)", "y, p = SoftmaxCrossEntropyLoss(x, l)");
  EXPECT_THAT(OpTypes(Differentiate({"x"}).value().nodes), ElementsAre("Expand", "LogSoftmaxGrad"));
  EXPECT_TRUE(V("p")->producer()->Is("SoftmaxCrossEntropyLoss"));
}

TEST_F(GradientBuilder, UnreachableInputs) {
  Load("(float[2] x, float[N] z, float[3] i) => (float[2] y)",
       "y = Sin(x) unused = Exp(z) f = Floor(i)");
  const GradientGraph zeros = Differentiate({"x", "z", "i"}).value();
  EXPECT_THAT(zeros.unreachable, ElementsAre(V("z"), V("i")));
  EXPECT_EQ(zeros.dxs[1]->producer()->op_type(), "Expand");
  const GradientGraph absent = Differentiate({"x", "z"}, UnreachableGradient::kAbsent).value();
  EXPECT_EQ(absent.dxs[1], nullptr);
  const Status status = Differentiate({"x", "z", "i"}, UnreachableGradient::kError).status();
  EXPECT_THAT(status.message(), HasSubstr("'z', 'i'"));
}

TEST_F(GradientBuilder, WholeNumbersCannotBeDifferentiated) {
  Load("(int64[2] i, float[2] x) => (float[2] y)", "c = Cast<to = 1>(i) y = Mul(c, x)");
  EXPECT_THAT(Differentiate({"i"}).status().message(),
              HasSubstr("'i' of type int64[2] is no floating value"));
}

TEST_F(GradientBuilder, GradientsStopWhereTold) {
  Load("(float[2] x) => (float[2] y)", "a = Sin(x) b = Mul(a, x) y = Exp(b)");
  GradientOptions options;
  options.ys = {{V("y"), nullptr}};
  options.xs = {V("x")};
  options.stop = {V("a")};
  const GradientGraph gradient = BuildGradient(*graph_, options).value();
  EXPECT_THAT(OpTypes(gradient.nodes), Not(::testing::Contains("Cos")));
}

TEST_F(GradientBuilder, NoGradientPassesADetach) {
  Load("(float[2] x) => (float[2] y)", "e = Exp(x) d = ai.caesura.Detach(e) y = Mul(e, d)");
  EXPECT_THAT(OpTypes(Differentiate({"x"}).value().nodes),
              ElementsAre("Expand", "Mul", "Mul"));  // dy, dy d, and that times e^x
  Load("(float[2] x) => (float[2] y)", "d = ai.caesura.Detach(x) y = Exp(d)");
  EXPECT_THAT(Differentiate({"x"}).value().unreachable, ElementsAre(V("x")));
}

TEST_F(GradientBuilder, SeedsAndSeveralOutputs) {
  Load("(float[2] x, float[2] d) => (float[2] y, float[2] z)", "y = Sin(x) z = Exp(y)");
  GradientOptions options;
  options.ys = {{V("y"), V("d")}, {V("z"), V("d")}};
  options.xs = {V("x")};
  const GradientGraph gradient = BuildGradient(*graph_, options).value();
  EXPECT_THAT(OpTypes(gradient.nodes), ElementsAre("Mul", "Add", "Cos", "Mul"));
}

TEST_F(GradientBuilder, ForwardNodesGainTheOutputsThatAreNeeded) {
  Load("(float[2,4] x, float[4] s) => (float[2,4] y)", "y = LayerNormalization(x, s)");
  ASSERT_TRUE(Differentiate({"x"}).ok());
  EXPECT_EQ(graph_->nodes()[0]->outputs().size(), 3u);
  // ds is not asked for: the kernel is told by an absent output.
  const Node& backward = *graph_->nodes().back();
  EXPECT_EQ(backward.op_type(), "LayerNormalizationGrad");
  EXPECT_EQ(backward.outputs().size(), 1u);
}

TEST_F(GradientBuilder, FunctionBodiesAreDifferentiated) {
  Load("(float[4,3] x) => (float[2,2] y)",
       "s = Constant<value_ints = [2, 2]>() y = CenterCropPad(x, s)");
  Value* y = V("y");
  ASSERT_TRUE(Differentiate({"x"}).ok());
  EXPECT_EQ(V("y"), y);
  for (const auto& node : graph_->nodes()) EXPECT_NE(node->op_type(), "CenterCropPad");
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

TEST_F(GradientBuilder, MixedPrecisionGradientsAreCast) {
  Load("(float[2] x) => (float16[2] y)", "y = Cast<to = 10>(x)");
  const GradientGraph gradient = Differentiate({"x"}).value();
  EXPECT_EQ(gradient.dxs[0]->dtype(), DType::kFloat32);
}

TEST_F(GradientBuilder, GradientsOfGradients) {
  Load("(float[2,3] x, float[3,4] w) => (float[2,4] y)", "h = MatMul(x, w) y = Tanh(h)");
  const GradientGraph first = Differentiate({"x"}).value();
  GradientOptions options;
  options.ys = {{first.dxs[0], nullptr}};
  options.xs = {V("x"), V("w")};
  const auto second = BuildGradient(*graph_, options);
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_TRUE(second->unreachable.empty());
}

TEST_F(GradientBuilder, BodiesReportTheirMissingNodesToo) {
  Load("(bool c, float[4] x) => (float[N] y)",
       "y = If(c) <then_branch = a () => (float[N] p) { p, i, j, k = Unique(x) },"
       " else_branch = b () => (float[M] q) { q = Sin(x) }>");
  const Status status = Differentiate({"x"}).status();
  EXPECT_THAT(status.message(), HasSubstr("then_branch"));
  EXPECT_THAT(status.message(), HasSubstr("Unique"));
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

}  // namespace
}  // namespace caesura
