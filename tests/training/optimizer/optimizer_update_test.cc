// SPDX-License-Identifier: Apache-2.0
// The update kernels against torch.optim 2.13 in float64, and against arithmetic done here (Lion,
// LAMB).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernel_case.h"

#include "training/optimizer/optimizer.h"

namespace caesura {
namespace {

// Two parameters, p = [1, -2, 0.5, 3] and q = [[0.1], [-0.2]], whose gradients in step t = 0, 1,
// ... are [0.1, -0.2, 0.3, -0.4] (t + 1) and [[0.5], [0.25]] (1 - t).
template <typename T>
class TinyTraining {
 public:
  explicit TinyTraining(const Optimizer& optimizer) : update_(DescribeUpdate(optimizer)) {
    rate_ = LearningRate(optimizer);
    parameters_ = {Make({4}, {1, -2, 0.5, 3}), Make({2, 1}, {0.1, -0.2})};
    for (const OptimizerState& state : update_.states) {
      for (const Shape& shape : {Shape{4}, Shape{2, 1}}) {
        states_.push_back(state.scalar == DType::kFloat64 ? Tensor::Scalar<double>(state.initial)
                          : state.scalar == DType::kFloat32
                              ? Tensor::Scalar(static_cast<float>(state.initial))
                              : Make(shape, std::vector<double>(shape.elements(), state.initial)));
      }
    }
    update_.coefficients["count"] = int64_t{2};
  }
  bool share_in_place = true;
  int threads = 1;
  double scale = 1;

  Status Step() {
    const double t = static_cast<double>(steps_);
    std::vector<RuntimeValue> inputs = {Tensor::Scalar<double>(rate_),
                                        Tensor::Scalar<int64_t>(++steps_),
                                        Tensor::Scalar<double>(scale)};
    const double up = (t + 1) / scale, down = (1 - t) / scale;
    inputs.insert(inputs.end(), parameters_.begin(), parameters_.end());
    inputs.push_back(Make({4}, {0.1 * up, -0.2 * up, 0.3 * up, -0.4 * up}));
    inputs.push_back(Make({2, 1}, {0.5 * down, 0.25 * down}));
    inputs.insert(inputs.end(), states_.begin(), states_.end());
    const int outputs = static_cast<int>(2 + states_.size());
    KernelCase node(update_.op_type, inputs, update_.coefficients, kCaesuraDomain, outputs);
    node.share_in_place = share_in_place;
    node.threads = threads;
    ASSIGN_OR_RETURN(std::vector<RuntimeValue> results, node.Run());
    for (int i = 0; i < outputs; ++i) {
      (i < 2 ? parameters_[i] : states_[i - 2]) = results[i].tensor();
    }
    return {};
  }
  // p and q after `steps` steps.
  std::vector<double> After(int steps) {
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(Step().ok());
    std::vector<double> out = parameters_[0].template ToVector<double>();
    for (double value : parameters_[1].template ToVector<double>()) out.push_back(value);
    return out;
  }
  void SetAttribute(const std::string& name, Attribute value) {
    update_.coefficients[name] = std::move(value);
  }
  void set_steps(int64_t steps) { steps_ = steps; }
  // The first element of p.
  void set_first(double value) { *parameters_[0].template data<T>() = static_cast<T>(value); }
  // The state of p, then of q, then the next one of p.
  Tensor& state(int i) { return states_[i]; }

 private:
  static Tensor Make(Shape shape, const std::vector<double>& values) {
    return Tensor::Of<T>(std::move(shape), std::vector<T>(values.begin(), values.end()));
  }
  OptimizerUpdate update_;
  double rate_ = 0;
  int64_t steps_ = 0;
  std::vector<Tensor> parameters_, states_;
};

struct TorchCase {
  const char* name;
  Optimizer optimizer;
  std::vector<double> after_three;
};

const TorchCase kTorchCases[] = {
    {"Sgd",
     Sgd{.learning_rate = 0.1, .weight_decay = 0.01},
     {0.9370429889999999, -1.8740859779999999, 0.3186214695, 3.230849037, 0.0998002499,
      -0.19935062480000001}},
    {"SgdMomentum",
     Sgd{.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01},
     {0.90643462109, -1.81286924218, 0.23259329029499998, 3.33705111997, 0.009139382418999998,
      -0.244101366088}},
    {"SgdNesterov",
     Sgd{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true},
     {0.8544099999999999, -1.7088199999999998, 0.06322999999999997, 3.5823600000000004, 0.02305,
      -0.238475}},
    {"Adam",
     Adam{.learning_rate = 0.01, .weight_decay = 0.1},
     {0.9702142066503179, -1.970216830273058, 0.4706109261680111, 3.0274518060472695,
      0.08380495801233162, -0.21412802181210483}},
    {"AdamW",
     AdamW{.learning_rate = 0.01, .weight_decay = 0.1},
     {0.9678008103721331, -1.9648038083465955, 0.46929930950474963, 3.020211187166173,
      0.08388508545359868, -0.2152158138784554}},
    {"AdamWOtherBetas",
     AdamW{.learning_rate = 0.01, .beta1 = 0.3, .beta2 = 0.5, .epsilon = 1e-3},
     {0.9692169611874226, -1.9688179858917063, 0.46923477465283875, 3.0297319444963033,
      0.0937370616437573, -0.20615757024315576}},
    {"Rmsprop",
     Rmsprop{.learning_rate = 0.01, .weight_decay = 0.1},
     {0.7438309274202983, -1.742985537479896, 0.2332544842284191, 3.2850566059501545,
      0.07036505795365296, -0.2098267022265669}},
    {"RmspropCentered",
     Rmsprop{.learning_rate = 0.01, .centered = true},
     {0.7277569104639822, -1.7277568285116636, 0.2277568011942097, 3.2722432124645198,
      0.07056141054001996, -0.22943857935848794}},
    {"RmspropMomentum",
     Rmsprop{.learning_rate = 0.01, .momentum = 0.9},
     {0.478538556478706, -1.4785383721424623, -0.02146168930298677, 3.5214617200257177,
      -0.09993484499948854, -0.39993480090001676}},
    {"RmspropCenteredMomentum",
     Rmsprop{.learning_rate = 0.01, .momentum = 0.9, .centered = true},
     {0.4745849120102424, -1.474584725329328, -0.02541533689767872, 3.525415368011189,
      -0.10130002132385764, -0.4012999766769318}},
    {"AdamAmsgrad",
     Adam{.learning_rate = 0.01, .weight_decay = 0.1, .amsgrad = true},
     {0.9702142066503179, -1.970216830273058, 0.4706109261680111, 3.0274518060472695,
      0.08380730825751655, -0.21412802181210483}},
    {"AdamWMaximize",
     AdamW{.learning_rate = 0.01, .weight_decay = 0.1, .maximize = true},
     {1.0262051876278668, -2.0232081876534047, 0.5277036894952504, 2.9618068068338266,
      0.11551551434640132, -0.18358538572154462}},
    {"NAdam",
     NAdam{.learning_rate = 0.01, .weight_decay = 0.1},
     {0.9713687373560862, -1.97136029704493, 0.47043970246842687, 3.031172188960645,
      0.09596984286526788, -0.20202811814442884}},
    {"NAdamDecoupled",
     NAdam{.learning_rate = 0.01,
           .weight_decay = 0.1,
           .momentum_decay = 0.1,
           .decoupled_weight_decay = true},
     {0.9672722071974389, -1.9642752051447063, 0.4687707062937953, 3.0207397903816595,
      0.09597878486050368, -0.20312211479333134}},
    {"NAdamFloat64State",
     NAdam{.learning_rate = 0.01, .weight_decay = 0.1, .float64_state = true},
     {0.9713687374878655, -1.9713602971767805, 0.4704397026003451, 3.0311721888280374,
      0.09596984302123195, -0.202028117990135}},
    {"RAdam",
     RAdam{.learning_rate = 0.01, .weight_decay = 0.1},
     {0.992406960186444, -1.984813920372888, 0.4847168899786366, 3.0093833328801707,
      0.09268930217517965, -0.20290574797047972}},
    {"RAdamRectified",
     RAdam{.learning_rate = 0.01, .beta1 = 0.5, .beta2 = 0.9},
     {0.9949047619047618, -1.9898095238095237, 0.4847142857142857, 3.0203809523809526,
      0.09547619047619048, -0.20226190476190475}},
    {"Adamax",
     Adamax{.learning_rate = 0.01, .weight_decay = 0.1},
     {0.9738830024781083, -1.973893359677051, 0.4751159611661185, 3.0220798145375656,
      0.08567498950100351, -0.21284631879476815}},
    {"Adagrad",
     Adagrad{.learning_rate = 0.1,
             .lr_decay = 0.5,
             .weight_decay = 0.1,
             .initial_accumulator_value = 0.1},
     {0.8735979861750044, -1.8355524484517007, 0.3339717880078653, 3.1271373256785218,
      0.0467953756164093, -0.22566489770881787}},
    {"Adadelta",
     Adadelta{.learning_rate = 0.5, .rho = 0.95, .weight_decay = 0.1},
     {0.9920279270221907, -1.9920257584879981, 0.49161482969712145, 3.009188773373715,
      0.09992286054468778, -0.19951796152292312}},
    {"Asgd",
     Asgd{.learning_rate = 0.02, .lambd = 0.1, .t0 = 1, .weight_decay = 0.1},
     {0.9761215283367186, -1.9522430566734372, 0.4582002331437705, 3.011974071879005,
      0.09885633985660461, -0.19758826525833628}},
    {"AsgdFloat64State",
     Asgd{.learning_rate = 0.1,
          .lambd = 0.01,
          .alpha = 0.5,
          .t0 = 1,
          .weight_decay = 0.1,
          .float64_state = true},
     {0.907856033283933, -1.815712066567866, 0.30512362993197967, 3.1402203826397623,
      0.0977809882888377, -0.19295395284756311}},
    {"AsgdFloat64Rates",
     Asgd{.learning_rate = 0.1,
          .lambd = 0.01,
          .alpha = 0.5,
          .t0 = 1,
          .weight_decay = 0.1,
          .float64_state = true,
          .float64_rates = true},
     {0.9078560330334862, -1.8157120660669723, 0.30512362931879533, 3.1402203832547118,
      0.09778098875684559, -0.19295395259974352}},
    {"Rprop",
     Rprop{.learning_rate = 0.01, .eta_minus = 0.4, .eta_plus = 1.5},
     {0.9525, -1.9525000000000001, 0.45249999999999996, 3.0475, 0.1, -0.2}},
    {"RmspropMaximize",
     Rmsprop{.learning_rate = 0.01, .momentum = 0.9, .maximize = true},
     {1.5214614435212939, -2.5214616278575375, 1.0214616893029869, 2.4785382799742823,
      0.2999348449994885, -6.519909998325746e-05}},
};

void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
}

TEST(OptimizerUpdate, EqualsTorchInDouble) {
  for (const TorchCase& c : kTorchCases) {
    SCOPED_TRACE(c.name);
    ExpectNear(TinyTraining<double>(c.optimizer).After(3), c.after_three, 2e-15);
  }
}

TEST(OptimizerUpdate, FollowsInNarrowerTypes) {
  for (const TorchCase& c : kTorchCases) {
    SCOPED_TRACE(c.name);
    ExpectNear(TinyTraining<float>(c.optimizer).After(3), c.after_three, 1e-6);
    ExpectNear(TinyTraining<Float16>(c.optimizer).After(3), c.after_three, 5e-3);
    ExpectNear(TinyTraining<BFloat16>(c.optimizer).After(3), c.after_three, 4e-2);
  }
}

TEST(OptimizerUpdate, SameWithBuffersOfItsOwnAndWithAScale) {
  for (const TorchCase& c : kTorchCases) {
    SCOPED_TRACE(c.name);
    TinyTraining<double> apart(c.optimizer);
    apart.share_in_place = false;
    EXPECT_EQ(apart.After(3), TinyTraining<double>(c.optimizer).After(3));
    TinyTraining<double> scaled(c.optimizer);
    scaled.scale = 0.25;  // of gradients four times as large: exact
    EXPECT_EQ(scaled.After(3), TinyTraining<double>(c.optimizer).After(3));
  }
}

// A mask of -inf that a loss trains: torch.optim leaves a decay of 0 out, as 0 times infinity is
// NaN.
TEST(OptimizerUpdate, InfiniteParametersStayWithoutDecay) {
  std::vector<std::pair<const char*, Optimizer>> cases = {{"Lion", Lion{}}, {"Lamb", Lamb{}}};
  for (const TorchCase& c : kTorchCases) cases.emplace_back(c.name, c.optimizer);
  for (const auto& [name, optimizer] : cases) {
    SCOPED_TRACE(name);
    TinyTraining<double> finite(optimizer), infinite(optimizer);
    infinite.set_first(-INFINITY);
    for (TinyTraining<double>* training : {&finite, &infinite})
      training->SetAttribute("weight_decay", Tensor::Scalar<double>(0));
    const std::vector<double> expected = finite.After(3), actual = infinite.After(3);
    EXPECT_EQ(actual[0], -INFINITY);
    for (size_t i = 1; i < actual.size(); ++i) {
      // LAMB's ratio of the other elements is another one.
      if (std::string(name) == "Lamb" && i < 4) EXPECT_TRUE(std::isfinite(actual[i])) << i;
      else EXPECT_EQ(actual[i], expected[i]) << i;
    }
  }
}

// p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g), by hand for two steps: every direction
// keeps its sign but that of q in step 1, whose gradient is 0 while m = 0.01 * 0.5 is positive.
TEST(OptimizerUpdate, Lion) {
  const double keep = 1 - 0.1 * 0.5;
  const Lion lion{.learning_rate = 0.1, .weight_decay = 0.5};
  std::vector<double> expected;
  const double signs[] = {1, -1, 1, -1, 1, 1};
  const double start[] = {1, -2, 0.5, 3, 0.1, -0.2};
  for (int i = 0; i < 6; ++i)
    expected.push_back((start[i] * keep - 0.1 * signs[i]) * keep - 0.1 * signs[i]);
  ExpectNear(TinyTraining<double>(lion).After(2), expected, 1e-15);
  ExpectNear(TinyTraining<float>(lion).After(2), expected, 1e-6);
}

// In the first step m / (1 - beta1) = g and v / (1 - beta2) = g^2, so u = sign(g) (but for epsilon)
// + wd p.
TEST(OptimizerUpdate, LambScalesByTheNormsOfEachParameter) {
  const Lamb lamb{.learning_rate = 0.1, .epsilon = 0, .weight_decay = 0.5};
  const std::vector<double> p = {1, -2, 0.5, 3}, q = {0.1, -0.2}, g = {1, -1, 1, -1}, h = {1, 1};
  std::vector<double> expected;
  auto add = [&](const std::vector<double>& x, const std::vector<double>& sign) {
    double of_x = 0, of_u = 0;
    std::vector<double> u;
    for (size_t i = 0; i < x.size(); ++i) {
      u.push_back(sign[i] + 0.5 * x[i]);
      of_x += x[i] * x[i];
      of_u += u[i] * u[i];
    }
    for (size_t i = 0; i < x.size(); ++i)
      expected.push_back(x[i] - 0.1 * std::sqrt(of_x / of_u) * u[i]);
  };
  add(p, g);
  add(q, h);
  ExpectNear(TinyTraining<double>(lamb).After(1), expected, 1e-14);
  ExpectNear(TinyTraining<float>(lamb).After(1), expected, 1e-6);
  TinyTraining<double> apart(lamb);
  apart.share_in_place = false;
  EXPECT_EQ(apart.After(3), TinyTraining<double>(lamb).After(3));
}

TEST(OptimizerUpdate, LambTakesRatioOneForZeroParameters) {
  const Tensor rate = Tensor::Scalar<double>(0.5), scale = Tensor::Scalar<double>(1);
  const Tensor step = Tensor::Scalar<int64_t>(1);
  const Tensor zeros = Tensor::Zeros(DType::kFloat64, Shape{2});
  KernelCase node("LambUpdate",
                  {rate, step, scale, zeros.Clone().value(), Tensor::Of<double>({2}, {3, -4}),
                   zeros.Clone().value(), zeros.Clone().value()},
                  {{"count", int64_t{1}}, {"epsilon", Tensor::Scalar<double>(0)}}, kCaesuraDomain,
                  3);
  const auto out = node.Run().value();
  ExpectNear(out[0].tensor().ToVector<double>(), {-0.5, 0.5}, 1e-12);
}

TEST(OptimizerUpdate, SkipsAStepOnlyWhenAskedTo) {
  for (const Optimizer& optimizer :
       {Optimizer(AdamW{}), Optimizer(Lamb{}), Optimizer(Sgd{}), Optimizer(Lion{})}) {
    TinyTraining<double> skipping(optimizer);
    skipping.scale = NAN;
    skipping.SetAttribute("skip_nonfinite", int64_t{1});
    EXPECT_EQ(skipping.After(1), (std::vector<double>{1, -2, 0.5, 3, 0.1, -0.2}));
    TinyTraining<double> loud(optimizer);
    loud.scale = NAN;
    for (double value : loud.After(1)) EXPECT_TRUE(std::isnan(value));
  }
}

// Fed coefficients replace the written ones, from the element `first` on.
TEST(OptimizerUpdate, TakesFedCoefficients) {
  const auto after = [](std::vector<double> fed, AttributeMap attributes, int64_t step = 1) {
    attributes["count"] = int64_t{1};
    const Tensor parameter = Tensor::Of<double>({2}, {1, -2}),
                 zeros = Tensor::Zeros(DType::kFloat64, Shape{2});
    const Shape shape{static_cast<int64_t>(fed.size())};
    KernelCase node("AdamWUpdate",
                    {Tensor::Of<double>(shape, std::move(fed)), Tensor::Scalar<int64_t>(step),
                     Tensor::Scalar<double>(1), parameter, Tensor::Of<double>({2}, {0.5, 0.25}),
                     zeros, zeros.Clone().value()},
                    std::move(attributes), kCaesuraDomain, 3);
    auto out = node.Run();
    return out.ok() ? (*out)[0].tensor().ToVector<double>() : std::vector<double>();
  };
  const Attribute beta = Tensor::Scalar<double>(0.5), decay = Tensor::Scalar<double>(0.25);
  const std::vector<double> written = after({0.1}, {{"beta1", beta}, {"weight_decay", decay}});
  const std::vector<std::string> fed = {"weight_decay", "learning_rate"};
  EXPECT_EQ(written,
            after({9, 9, 0.25, 0.1}, {{"beta1", beta}, {"fed", fed}, {"first", int64_t{2}}}));
  EXPECT_TRUE(after({9, 9, 0.25}, {{"fed", fed}, {"first", int64_t{2}}}).empty());
  EXPECT_TRUE(after({9}, {{"fed", std::vector<std::string>{"weight_decay"}}}).empty());

  const AttributeMap counted = {{"fed", std::vector<std::string>{"learning_rate", "step_offset"}}};
  EXPECT_EQ(after({0.1, 6}, counted, 3), after({0.1}, {}, 9));
  EXPECT_EQ(after({0.1, -2}, counted, 3), after({0.1}, {}, 1));
  EXPECT_TRUE(after({0.1, -3}, counted, 3).empty());  // steps count from 1
}

TEST(OptimizerUpdate, KeepsTheDTypeOfItsScalars) {
  for (const bool is_float64 : {false, true}) {
    const DType dtype = is_float64 ? DType::kFloat64 : DType::kFloat32;
    const OptimizerUpdate update = DescribeUpdate(NAdam{.float64_state = is_float64});
    EXPECT_EQ(update.states[0].scalar, dtype);
    EXPECT_EQ(DescribeUpdate(Asgd{.float64_state = is_float64}).states[1].scalar, dtype);
    TinyTraining<double> training(NAdam{.float64_state = is_float64});
    training.After(1);
    EXPECT_EQ(training.state(0).dtype(), dtype);
    EXPECT_EQ(training.state(2).dtype(), DType::kFloat64);
  }
}

TEST(OptimizerUpdate, RefusesScalarsOfSeveralDTypes) {
  TinyTraining<double> training(NAdam{});
  training.state(1) = Tensor::Scalar<double>(1);
  EXPECT_EQ(training.Step().code(), StatusCode::kInvalidArgument);
  training.state(0) = Tensor::Scalar(Float16(1.0f));
  EXPECT_EQ(training.Step().code(), StatusCode::kInvalidArgument);
}

TEST(OptimizerUpdate, RefusesWrongNodes) {
  TinyTraining<double> zero_step(AdamW{});
  zero_step.set_steps(-1);
  EXPECT_EQ(zero_step.Step().code(), StatusCode::kInvalidArgument);
  for (int64_t count : {int64_t{0}, int64_t{-1}, int64_t{1}, int64_t{3}, int64_t{1} << 62}) {
    TinyTraining<double> wrong(AdamW{});
    wrong.SetAttribute("count", count);
    EXPECT_EQ(wrong.Step().code(), StatusCode::kInvalidArgument) << count;
  }
  KernelCase shapes(
      "SgdUpdate",
      {Tensor::Scalar<double>(1), Tensor::Scalar<int64_t>(1), Tensor::Scalar<double>(1),
       Tensor::Zeros(DType::kFloat32, Shape{2}), Tensor::Zeros(DType::kFloat32, Shape{3})},
      {{"count", int64_t{1}}}, kCaesuraDomain);
  EXPECT_EQ(shapes.Run().status().code(), StatusCode::kInvalidArgument);
}

// Large and odd sizes, an empty parameter, and more than one thread: the same bits.
TEST(OptimizerUpdate, ThreadsDoNotChangeTheResult) {
  const std::vector<int64_t> sizes = {100003, 0, 1, 4097, 2048};
  for (const char* op : {"AdamWUpdate", "LambUpdate"}) {
    std::vector<std::vector<float>> results;
    for (int threads : {1, 2, 3}) {
      std::vector<RuntimeValue> inputs = {Tensor::Scalar<double>(0.01), Tensor::Scalar<int64_t>(2),
                                          Tensor::Scalar<double>(1)};
      for (int kind = 0; kind < 4; ++kind) {
        for (int64_t size : sizes) {
          std::vector<float> values(size);
          for (int64_t i = 0; i < size; ++i)
            values[i] = std::abs(std::sin(static_cast<float>(i + kind * 7)));
          inputs.push_back(Tensor::Of<float>(Shape{size}, values));
        }
      }
      KernelCase node(op, inputs, {{"count", static_cast<int64_t>(sizes.size())}}, kCaesuraDomain,
                      15);
      node.threads = threads;
      const auto out = node.Run().value();
      results.emplace_back();
      for (const RuntimeValue& value : out) {
        for (float x : value.tensor().ToVector<float>()) results.back().push_back(x);
      }
    }
    EXPECT_EQ(results[0], results[1]) << op;
    EXPECT_EQ(results[0], results[2]) << op;
  }
}

}  // namespace
}  // namespace caesura
