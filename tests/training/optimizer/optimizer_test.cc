// SPDX-License-Identifier: Apache-2.0
// Optimizers as values: by name, with coefficients, of a group; the state that each one keeps.
// Their arithmetic is checked in optimizer_update_test.cc.
#include "training/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> StateNames(const Optimizer& optimizer) {
  std::vector<std::string> out;
  for (const OptimizerState& state : DescribeUpdate(optimizer).states) out.push_back(state.name);
  return out;
}

// Each coefficient of each optimizer is set by its name, and read back.
TEST(Optimizers, AreMadeOfTheirNameAndCoefficients) {
  const char* const names[] = {"sgd",       "adam",    "adamw",    "nadam", "radam",
                               "adamax",    "adagrad", "adadelta", "asgd",  "rprop",
                               "adafactor", "muon",    "lamb",     "lion",  "rmsprop"};
  EXPECT_EQ(std::size(names), std::variant_size_v<Optimizer>);
  for (size_t i = 0; i < std::size(names); ++i) {
    const Optimizer plain = MakeOptimizer(names[i], {}).value();
    EXPECT_EQ(plain.index(), i) << names[i];
    std::map<std::string, double> wanted = Coefficients(plain);
    EXPECT_EQ(wanted.at("learning_rate"), LearningRate(plain));
    // Values that flags and whole numbers hold, too.
    for (auto& [key, value] : wanted) value = value == 1 ? 0 : 1;
    const Optimizer other = MakeOptimizer(names[i], wanted).value();
    EXPECT_EQ(Coefficients(other), wanted) << names[i];
    EXPECT_EQ(LearningRate(other), wanted.at("learning_rate"));
  }
}

TEST(Optimizers, NamesThatAreNoneAreErrors) {
  const Status optimizer = MakeOptimizer("sdg", {}).status();
  EXPECT_EQ(optimizer.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(optimizer.message(), HasSubstr("optimizer 'sdg' is none of sgd, adam, adamw"));
  EXPECT_THAT(MakeOptimizer("sgd", {{"beta1", 0.5}}).status().message(),
              HasSubstr("optimizer 'sgd' has no coefficient 'beta1'"));
}

// As torch.optim keeps it.
TEST(Optimizers, KeepTheStateThatTheirOptionsNeed) {
  EXPECT_THAT(StateNames(Sgd{}), IsEmpty());
  EXPECT_THAT(StateNames(Sgd{.momentum = 0.9}), ElementsAre("momentum_buffer"));
  EXPECT_THAT(StateNames(AdamW{}), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(StateNames(Adam{.amsgrad = true}),
              ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  EXPECT_THAT(StateNames(Rmsprop{.momentum = 0.5, .centered = true}),
              ElementsAre("square_avg", "grad_avg", "momentum_buffer"));
  // Scalars come first.
  EXPECT_THAT(StateNames(NAdam{}), ElementsAre("mu_product", "exp_avg", "exp_avg_sq"));
  EXPECT_EQ(DescribeUpdate(Adagrad{.initial_accumulator_value = 0.25}).states[0].initial, 0.25);
  EXPECT_EQ(DescribeUpdate(Rprop{.learning_rate = 0.5}).states[1].initial, 0.5);
}

TEST(Optimizers, CoefficientsOfAnUpdateAreExact) {
  const OptimizerUpdate update = DescribeUpdate(AdamW{.beta1 = 0.1, .amsgrad = true});
  EXPECT_EQ(update.op_type, "AdamWUpdate");
  const Tensor beta = std::get<Tensor>(update.coefficients.at("beta1"));
  EXPECT_EQ(beta.dtype(), DType::kFloat64);
  EXPECT_EQ(beta.ToVector<double>()[0], 0.1);
  EXPECT_EQ(std::get<int64_t>(update.coefficients.at("amsgrad")), 1);
  // These two are composed of ONNX's ops.
  EXPECT_EQ(DescribeUpdate(Muon{}).op_type, "");
  EXPECT_EQ(DescribeUpdate(Adafactor{}).op_type, "");
}

TEST(Optimizers, AGroupMayHaveItsOwn) {
  const Optimizer own = AdamW{.learning_rate = 0.5, .weight_decay = 0.25};
  const ParameterGroup same = {.names = {"*"}};
  EXPECT_EQ(Coefficients(ForGroup(own, same)), Coefficients(own));
  const ParameterGroup no_decay = {.names = {"*bias"}, .weight_decay = 0.0};
  EXPECT_EQ(std::get<AdamW>(ForGroup(own, no_decay)).weight_decay, 0);
  EXPECT_EQ(LearningRate(ForGroup(own, no_decay)), 0.5);
  const ParameterGroup other = {.names = {"*"}, .weight_decay = 0.125, .optimizer = Sgd{}};
  EXPECT_EQ(std::get<Sgd>(ForGroup(own, other)).weight_decay, 0.125);
  // Rprop decays no weights.
  EXPECT_EQ(Coefficients(ForGroup(Rprop{}, no_decay)), Coefficients(Rprop{}));
}

}  // namespace
}  // namespace caesura
