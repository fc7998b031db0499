// SPDX-License-Identifier: Apache-2.0
// The parameters of a session without the session: their names, values and owners.
#include "training/session/session_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "training/files/checkpoint.h"
#include "training/step/parameters.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLinear[] = R"(<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {0.5, -0.25, 0.125, 1}, float[2] b = {1, 2}> {
  product = MatMul (x, w)
  y = Add (product, b)
})";

// Trains `w`; `b` is frozen. AdamW has two states of each parameter.
class SessionParametersTest : public ::testing::Test {
 protected:
  explicit SessionParametersTest(bool share = false)
      : model_(ParseModelText(kLinear).value()),
        given_(*model_.graph->Initializer(model_.graph->FindValue("w"))),
        parameters_(model_.Clone(), {"w"}, TrainingFallback({}, true), share) {
    Model changed = parameters_.model().Clone();
    EXPECT_TRUE(RunForwardPasses(changed, {"w"}, {}).ok());
    EXPECT_TRUE(parameters_.MakeCopies(*changed.graph).ok());
    StepOptions step;
    step.loss = Loss::MeanSquaredError("t");
    step.accumulation_steps = 2;
    for (const bool updates : {true, false}) {
      programs_.push_back(BuildStepProgram(changed, {"w"}, step, updates).value());
      const Status shared = parameters_.Share(programs_.back());
      EXPECT_TRUE(shared.ok()) << shared.ToString();
    }
  }

  std::vector<float> Value(const std::string& name) const {
    return parameters_.Get(name).value().ToVector<float>();
  }
  static Tensor Four(float first) { return Tensor::Of<float>({2, 2}, {first, 2, 3, 4}); }

  Model model_;
  Tensor given_;
  SessionParameters parameters_;
  std::vector<StepProgram> programs_;
};

TEST_F(SessionParametersTest, AreKnownByName) {
  EXPECT_THAT(parameters_.Names(), ElementsAre("w"));
  EXPECT_THAT(parameters_.FrozenNames(), ElementsAre("b"));
  EXPECT_THAT(Value("w"), ElementsAre(0.5, -0.25, 0.125, 1));
  EXPECT_THAT(Value("b"), ElementsAre(1, 2));
  EXPECT_THAT(Value("optimizer.exp_avg.w"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(parameters_.Get("v").status().message(), HasSubstr("no parameter 'v'"));
  EXPECT_EQ(parameters_.trained(), 1);
  EXPECT_EQ(parameters_.whole(), parameters_.set().size());
}

TEST_F(SessionParametersTest, AreOneCopyInAllPrograms) {
  const void* own = parameters_.set().tensor(0).raw();
  EXPECT_NE(own, given_.raw());
  for (const StepProgram& program : programs_)
    EXPECT_EQ(program.graph->Initializer(program.graph->FindValue("w"))->raw(), own);
  StepProgram other = programs_[0];
  other.parameters = {"v"};
  EXPECT_EQ(parameters_.Share(other).code(), StatusCode::kInternal);
}

TEST_F(SessionParametersTest, SetCopiesAndFrozenOnesMakeProgramsAnew) {
  ASSERT_TRUE(parameters_.Set("w", Four(1)).ok());
  EXPECT_THAT(Value("w"), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(parameters_.version(), 0);
  EXPECT_THAT(parameters_.Set("w", Tensor::Of<float>({2}, {1, 2})).message(),
              HasSubstr("is float32[2, 2], got float32[2]"));
  ASSERT_TRUE(parameters_.Set("b", Tensor::Of<float>({2}, {3, 4})).ok());
  EXPECT_THAT(Value("b"), ElementsAre(3, 4));
  EXPECT_EQ(parameters_.version(), 1);
}

TEST_F(SessionParametersTest, BoundOnesAreTheirOwners) {
  Tensor owned = Four(9);
  ASSERT_TRUE(parameters_.Bind("w", owned).ok());
  owned.data<float>()[0] = 7;
  EXPECT_THAT(Value("w"), ElementsAre(7, 2, 3, 4));
  const uint64_t before = parameters_.set().version(0);
  EXPECT_GT(parameters_.ForRun().version(0), before);  // their owner may have written
}

TEST_F(SessionParametersTest, StayAsTheyAreWhileAStepWaits) {
  parameters_.set_step_waits(true);
  EXPECT_THAT(parameters_.Set("w", Four(1)).message(), HasSubstr("a step waits"));
  EXPECT_THAT(parameters_.Bind("w", Four(1)).message(), HasSubstr("a step waits"));
  parameters_.set_step_waits(false);
  EXPECT_TRUE(parameters_.Set("w", Four(1)).ok());
}

TEST_F(SessionParametersTest, TheTrainedModelIsACopy) {
  ASSERT_TRUE(parameters_.Set("w", Four(1)).ok());
  const Model trained = parameters_.TrainedModel().value();
  ASSERT_TRUE(parameters_.Set("w", Four(5)).ok());
  const Graph& graph = *trained.graph;
  EXPECT_THAT(graph.Initializer(graph.FindValue("w"))->ToVector<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_FALSE(parameters_.TrainedModel({"none"}).ok());
}

TEST_F(SessionParametersTest, ACheckpointBringsThemBack) {
  ASSERT_TRUE(parameters_.Set("w", Four(1)).ok());
  Checkpoint before, after;
  ASSERT_TRUE(parameters_.Save(before, /*has_sums=*/true).ok());
  EXPECT_EQ(before.parameters.size(), 1u);  // the frozen one is the model's own
  before.parameters["w"] = before.parameters["w"].Clone().value();
  ASSERT_TRUE(parameters_.Set("b", Tensor::Of<float>({2}, {3, 4})).ok());
  ASSERT_TRUE(parameters_.Set("w", Four(5)).ok());
  ASSERT_TRUE(parameters_.Save(after, true).ok());
  EXPECT_EQ(after.parameters.size(), 2u);
  ASSERT_EQ(parameters_.Misfits(before, true), "");
  ASSERT_TRUE(parameters_.Restore(before, true).ok());
  EXPECT_THAT(Value("w"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Value("b"), ElementsAre(1, 2));
}

TEST_F(SessionParametersTest, MisfitsNameEachTensor) {
  Checkpoint checkpoint;
  ASSERT_TRUE(parameters_.Save(checkpoint, true).ok());
  checkpoint.parameters["w"] = Tensor::Of<float>({2}, {1, 2});
  checkpoint.parameters["b"] = Tensor::Of<float>({1}, {1});
  checkpoint.optimizer_state.erase("optimizer.exp_avg.w");
  checkpoint.optimizer_state.erase("accumulator.w");
  const std::string wrong = parameters_.Misfits(checkpoint, true);
  EXPECT_THAT(wrong, HasSubstr("'w' is float32[2], the session has float32[2, 2]"));
  EXPECT_THAT(wrong, HasSubstr("parameter 'b' is float32[2], got float32[1]"));
  EXPECT_THAT(wrong, HasSubstr("'optimizer.exp_avg.w' is missing"));
  EXPECT_THAT(wrong, HasSubstr("'accumulator.w' is missing"));
  EXPECT_THAT(parameters_.Misfits(checkpoint, /*has_sums=*/false),
              ::testing::Not(HasSubstr("accumulator")));
}

class SharedParametersTest : public SessionParametersTest {
 protected:
  SharedParametersTest() : SessionParametersTest(/*share=*/true) {}
};

TEST_F(SharedParametersTest, AreTheModelsOwn) {
  EXPECT_EQ(parameters_.set().tensor(0).raw(), given_.raw());
}

}  // namespace
}  // namespace caesura
