// SPDX-License-Identifier: Apache-2.0
// A step's graph by its options: what it takes, hands out and writes. The numbers are checked where
// sessions run such programs.
#include "training/step/step_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Names = std::vector<std::string>;

class StepPrograms : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 20]>
        g (float[2, 3] x) => (float[2, 4] y, float[2, 4] h)
        <float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4] b = {1, 2, 3, 4}> {
          h = MatMul (x, w) y = Add (h, b) })")
                 .value();
    ASSERT_TRUE(InferShapes(model_).ok());
    options_.loss = Loss::MeanSquaredError();
    options_.optimizer = Sgd{.momentum = 0.5};
  }
  Result<StepProgram> Build(bool with_update = true) {
    auto program = BuildStepProgram(model_, {"w", "b"}, options_, with_update, ranks_);
    if (program.ok()) {
      EXPECT_TRUE(program->graph->SortTopologically().ok());
      EXPECT_TRUE(CheckGraph(*program->graph).ok()) << CheckGraph(*program->graph).ToString();
    }
    return program;
  }
  std::string Refusal() { return Build().status().message(); }

  static Names InputsOf(const StepProgram& program) {
    Names out;
    for (const Value* value : program.graph->inputs()) out.push_back(value->name());
    return out;
  }
  static std::vector<std::string> OutputTypes(const StepProgram& program) {
    std::vector<std::string> out;
    for (const Value* value : program.graph->outputs()) out.push_back(value->type().ToString());
    return out;
  }
  static int Count(const StepProgram& program, const std::string& op) {
    int count = 0;
    for (const auto& node : program.graph->nodes()) count += node->op_type() == op;
    return count;
  }

  Model model_;
  StepOptions options_;
  RankSetup ranks_;
};

TEST_F(StepPrograms, TakeABatchAndHandOutTheLoss) {
  const StepProgram program = Build().value();
  EXPECT_THAT(InputsOf(program), ElementsAre("x", "target", kLearningRateInput, kStepInput));
  EXPECT_THAT(OutputTypes(program), ElementsAre("float32[]"));
  EXPECT_THAT(program.parameters,
              ElementsAre("w", "b", "optimizer.momentum_buffer.w", "optimizer.momentum_buffer.b"));
  EXPECT_EQ(program.trained, 2);
  EXPECT_EQ(program.statistics, 0);
  EXPECT_EQ(model_.graph->nodes().size(), 2u);  // the model is left as it was
}

TEST_F(StepPrograms, NodesKnowTheirPhase) {
  const StepProgram program = Build().value();
  bool backward = false;
  for (const auto& node : program.graph->nodes()) {
    EXPECT_EQ(node->op_type() == "SgdUpdate", node->phase() == Phase::kOptimizer);
    backward |= node->phase() == Phase::kBackward;
  }
  EXPECT_TRUE(backward);
  EXPECT_GE(Count(program, "SgdUpdate"), 1);
}

TEST_F(StepPrograms, KeepOutputsAndGradients) {
  options_.keep_outputs = {"h"};
  options_.keep_gradients = true;
  EXPECT_THAT(OutputTypes(Build().value()),
              ElementsAre("float32[]", "float32[2, 4]", "float32[3, 4]", "float32[4]"));
  options_.keep_outputs = {"z", "y", "q"};
  EXPECT_THAT(Refusal(), HasSubstr("the model has no output 'z' 'q'; its outputs are 'y' 'h'"));
}

TEST_F(StepPrograms, AccumulateWithAndWithoutAnUpdate) {
  options_.accumulation_steps = 4;
  const StepProgram micro = Build(false).value(), last = Build().value();
  EXPECT_EQ(Count(micro, "SgdUpdate"), 0);
  EXPECT_GE(Count(last, "SgdUpdate"), 1);
  for (const StepProgram* program : {&micro, &last}) {
    EXPECT_THAT(program->parameters, Contains("accumulator.w"));
    EXPECT_THAT(InputsOf(*program), Contains(kResetInput));
  }
  EXPECT_THAT(micro.parameters, Not(Contains("optimizer.momentum_buffer.w")));
}

TEST_F(StepPrograms, ScaleTheLossInFloat16) {
  options_.precision = DType::kFloat16;
  const StepProgram program = Build().value();
  EXPECT_THAT(InputsOf(program), Contains(kLossScaleInput));
  EXPECT_THAT(OutputTypes(program), ElementsAre("float32[]", "float64[]"));
  options_.precision = DType::kBFloat16;
  EXPECT_THAT(InputsOf(Build().value()), Not(Contains(kLossScaleInput)));
}

TEST_F(StepPrograms, FeedCoefficients) {
  options_.fed_coefficients = {"learning_rate", "weight_decay"};
  const Names inputs = InputsOf(Build().value());
  EXPECT_THAT(inputs, Contains(kCoefficientsInput));
  EXPECT_THAT(inputs, Not(Contains(kLearningRateInput)));
  for (const std::string& name : inputs)
    EXPECT_EQ(IsProgramInput(name), name.rfind("caesura.", 0) == 0) << name;
}

TEST_F(StepPrograms, ExchangeGradientsAmongRanks) {
  ranks_.ranks = 2;
  const StepProgram program = Build().value();
  EXPECT_GE(Count(program, "CollectiveStart"), 1);
  EXPECT_EQ(Count(program, "CollectiveStart"), Count(program, "CollectiveWait"));
  EXPECT_GE(Count(program, "AgreeToCommit"), 1);
  EXPECT_THAT(InputsOf(program), Contains(kRankShareInput));
  EXPECT_EQ(Count(Build(false).value(), "SgdUpdate"), 0);
}

TEST_F(StepPrograms, MayCommitEarly) {
  options_.commit = CommitMode::kEagerConsume;
  EXPECT_TRUE(Build().ok());
}

TEST_F(StepPrograms, ADTypeOfExchangesThatIsNone) {
  ranks_.ranks = 2;
  options_.exchange_dtype = DType::kFloat16;
  EXPECT_THAT(Refusal(), HasSubstr("exchange_dtype: expected bfloat16 or none, got float16"));
}

}  // namespace
}  // namespace caesura
