// SPDX-License-Identifier: Apache-2.0
#include "core/custom_ops/custom_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <climits>
#include <thread>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "core/session/session.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Model ModelOf(const std::string& body, int version = 1) {
  auto model = ParseModelText("<ir_version: 10, opset_import: [\"\" : 23, \"mine\" : " +
                              std::to_string(version) + "]> g " + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *std::move(model);
}

Result<std::unique_ptr<Session>> MakeSession(Model model, CustomOps ops,
                                             ProviderList providers = {}) {
  SessionOptions options;
  options.custom_ops = std::move(ops);
  options.providers = std::move(providers);
  return Session::Create(std::move(model), std::move(options));
}

std::vector<float> Floats(const RuntimeValue& value) { return value.tensor().ToVector<float>(); }
// y = x + `amount`, an option; counts its instances and kernels.
struct Counts {
  std::atomic<int> instances{0}, kernels{0};
};
class AddInstance : public OpInstance {
 public:
  AddInstance(float amount, Counts* counts) : amount_(amount), counts_(counts) {}
  Status CreateKernel(KernelInfo& info, const ExecutionProvider&) const override {
    ++counts_->kernels;
    const int64_t n = info.InputShape(0).elements();
    info.SetOutput(0, info.InputDType(0), info.InputShape(0));
    info.SetCompute([this, n](KernelContext& context) {
      for (int64_t i = 0; i < n; ++i)
        context.Output<float>(0)[i] = context.Input<float>(0)[i] + amount_;
    });
    return {};
  }

 private:
  const float amount_;
  Counts* const counts_;
};
CustomOp AddAmount(Counts* counts) {
  CustomOp op;
  op.schema = {.op_type = "Add", .domain = "mine", .type_of_output = {0}};
  op.options = OptionSet{{"amount", "1"}, {"mode", "plain"}};
  op.create_instance =
      [counts](const OpNodeInfo& info) -> Result<std::shared_ptr<const OpInstance>> {
    ++counts->instances;
    ASSIGN_OR_RETURN(const std::string amount, info.options.Get("amount"));
    return std::shared_ptr<const OpInstance>(
        std::make_shared<AddInstance>(std::stof(amount), counts));
  };
  return op;
}

constexpr char kTwoNodes[] =
    "(float[N] x) => (float[N] a, float[N] b) { [first] a = mine.Add (x) [second] b = mine.Add (x) "
    "}";

TEST(CustomOps, NodesOfOneTypeHaveOptionsOfTheirOwn) {
  Counts counts;
  CustomOps ops{{AddAmount(&counts)}, {}};
  ops.options.ForNode("first").Update("amount", "10");
  ops.options.ForNode("second").Update("amount", "20");
  auto session = MakeSession(ModelOf(kTwoNodes), ops);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  auto results = (*session)->Run({{"x", FloatVector({1, 2})}}).value();
  EXPECT_THAT(Floats(results[0]), ElementsAre(11, 12));
  EXPECT_THAT(Floats(results[1]), ElementsAre(21, 22));
}

// Equal nodes with unequal options are not shared by passes either; and another session gets what
// it was given, while the first one keeps what it has.
TEST(CustomOps, SessionsHaveOptionsOfTheirOwn) {
  Counts counts;
  CustomOps one{{AddAmount(&counts)}, {}}, other{{AddAmount(&counts)}, {}};
  one.options.ForOp("Add", "mine").Update("amount", "5");
  other.options.ForNode("first").Update("amount", "7");
  auto first = MakeSession(ModelOf(kTwoNodes), one).value();
  one.options.ForOp("Add", "mine").Update("amount", "1000");  // too late: the session has a copy
  auto second = MakeSession(ModelOf(kTwoNodes), other).value();
  for (int round = 0; round < 2; ++round) {
    auto a = first->Run({{"x", FloatVector({0})}}).value(),
         b = second->Run({{"x", FloatVector({0})}}).value();
    EXPECT_THAT(Floats(a[0]), ElementsAre(5));
    EXPECT_THAT(Floats(a[1]), ElementsAre(5));
    EXPECT_THAT(Floats(b[0]), ElementsAre(7));
    EXPECT_THAT(Floats(b[1]), ElementsAre(1)) << "the op's default";
  }
}

TEST(CustomOps, InstancesAreMadeWithTheSessionAndNotWithPlans) {
  Counts counts;
  auto session = MakeSession(ModelOf(kTwoNodes), {{AddAmount(&counts)}, {}}).value();
  EXPECT_EQ(counts.instances, 2);
  EXPECT_EQ(counts.kernels, 0);
  for (int n : {1, 2, 3})
    ASSERT_TRUE(session->Run({{"x", FloatVector(std::vector<float>(n))}}).ok());
  EXPECT_EQ(counts.instances, 2);
  EXPECT_EQ(counts.kernels, 6);
}

TEST(CustomOps, WrongOptionsAreNamed) {
  Counts counts;
  auto error = [&](const std::function<void(OpOptions&)>& set) {
    CustomOps ops{{AddAmount(&counts)}, {}};
    set(ops.options);
    return MakeSession(ModelOf(kTwoNodes), ops).status().message();
  };
  EXPECT_THAT(error([](OpOptions& o) { o.ForNode("second").Update("amuont", "2"); }),
              HasSubstr("[mine::Add 'second'] has no option 'amuont'; known are: amount, mode"));
  EXPECT_THAT(error([](OpOptions& o) { o.ForNode("third").Update("amount", "2"); }),
              HasSubstr("node 'third', and the model has no node of a custom op of this name; it "
                        "has: first, second"));
  EXPECT_THAT(error([](OpOptions& o) { o.ForOp("Sub", "mine").Update("amount", "2"); }),
              HasSubstr("mine::Sub, which is no custom op of the session"));
}

TEST(CustomOps, OptionsOfTheModelStandBetweenThoseOfTheNodeAndThoseOfTheOp) {
  Counts counts;
  const std::string text =
      "(float[N] x) => (float[N] a, float[N] b) {"
      " [first] a = mine.Add <option_names = [\"amount\"], option_values = [\"3\"]> (x)"
      " [second] b = mine.Add <option_names = [\"amount\"], option_values = [\"3\"]> (x) }";
  CustomOps ops{{AddAmount(&counts)}, {}};
  ops.options.ForOp("Add", "mine").Update("amount", "2");
  ops.options.ForNode("second").Update("amount", "4");
  auto results = MakeSession(ModelOf(text), ops).value()->Run({{"x", FloatVector({0})}}).value();
  EXPECT_THAT(Floats(results[0]), ElementsAre(3));
  EXPECT_THAT(Floats(results[1]), ElementsAre(4));
}

// An op by a kernel alone: y = factor x.
CustomOp Times(float factor, const std::string& name = "Times") {
  CustomOp op;
  op.schema = {.op_type = name, .domain = "mine", .type_of_output = {0}};
  KernelDef& kernel = op.kernels.emplace_back();
  kernel.create = [factor](KernelInfo& info) -> Status {
    const int64_t n = info.InputShape(0).elements();
    info.SetOutput(0, info.InputDType(0), info.InputShape(0));
    info.SetCompute([factor, n](KernelContext& context) {
      for (int64_t i = 0; i < n; ++i)
        context.Output<float>(0)[i] = context.Input<float>(0)[i] * factor;
    });
    return {};
  };
  return op;
}

TEST(CustomOps, OneNameMeansInEachSessionWhatThatOneWasGiven) {
  const std::string text = "(float[N] x) => (float[N] y) { y = mine.Times (x) }";
  CustomOp wide = Times(3);
  wide.schema.max_inputs = 2;  // not even the counts need to agree
  auto two = MakeSession(ModelOf(text), {{Times(2)}, {}}).value();
  auto three = MakeSession(ModelOf(text), {{wide}, {}}).value();
  EXPECT_THAT(Floats(two->Run({{"x", FloatVector({1})}}).value()[0]), ElementsAre(2));
  EXPECT_THAT(Floats(three->Run({{"x", FloatVector({1})}}).value()[0]), ElementsAre(3));
  EXPECT_THAT(MakeSession(ModelOf(text), {}).status().message(),
              HasSubstr("[mine::Times 'Times'] has no kernel"));
}

TEST(CustomOps, ContradictionsAreNamed) {
  const std::string text = "(float[N] x) => (float[N] y) { y = mine.Times (x) }";
  auto error = [&](std::vector<CustomOp> ops) {
    return MakeSession(ModelOf(text), {std::move(ops), {}}).status().message();
  };
  EXPECT_THAT(error({Times(1), Times(2)}), HasSubstr("mine::Times of version 1 is added twice"));
  CustomOp standard = Times(1);
  standard.schema.domain = "";
  EXPECT_THAT(error({standard}), HasSubstr("cannot be added to ONNX's domain"));
  CustomOp empty = Times(1);
  empty.kernels.clear();
  EXPECT_THAT(error({empty}), HasSubstr("has neither a kernel nor create_instance"));
  CustomOp two = Times(1);
  two.schema.min_inputs = two.schema.max_inputs = 2;
  EXPECT_THAT(error({two}), HasSubstr("has 1 inputs, the op takes 2 to 2"));
  CustomOp far = Times(1);
  far.provider = "FarExecutionProvider";
  EXPECT_THAT(error({far}),
              HasSubstr("needs FarExecutionProvider, which is not among the session's providers"));
}

TEST(CustomOps, VersionsFollowTheModel) {
  const std::string text = "(float[N] x) => (float[N] y) { y = mine.Times (x) }";
  CustomOp old = Times(2), fresh = Times(5);
  old.schema.since_version = 2;
  fresh.schema.since_version = 4;
  auto result = [&](int version) {
    auto session = MakeSession(ModelOf(text, version), {{fresh, old}, {}});
    return session.ok() ? Floats((*session)->Run({{"x", FloatVector({1})}}).value()[0])[0] : -1;
  };
  EXPECT_EQ(result(2), 2);
  EXPECT_EQ(result(3), 2);
  EXPECT_EQ(result(4), 5);
  EXPECT_EQ(result(9), 5);
  EXPECT_THAT(MakeSession(ModelOf(text, 1), {{fresh, old}, {}}).status().message(),
              HasSubstr("is of version 1 of domain 'mine'"));
}

TEST(CustomOps, TypesAreInferredAndChecked) {
  CustomOp op = Times(2);
  op.schema.infer = [](Graph&, Node* node) {
    ValueType type = node->input(0)->type();
    type.dtype = DType::kFloat64;
    node->output(0)->set_type(type);
    return Status();
  };
  EXPECT_THAT(
      MakeSession(ModelOf("(float[N] x) => (float[N] y) { y = mine.Times (x) }"), {{op}, {}})
          .status()
          .message(),
      HasSubstr("makes 'y' a float64[N], but it is declared as float32[N]"));
  // Known dims of the model stay where the op says less.
  op.schema.infer = [](Graph&, Node* node) {
    node->output(0)->set_type(ValueType::Tensor(DType::kFloat32));
    return Status();
  };
  auto session =
      MakeSession(ModelOf("(float[N] x) => (float[N] y) { y = mine.Times (x) }"), {{op}, {}})
          .value();
  EXPECT_EQ(session->outputs()[0]->type().ToString(), "float32[N]");
}

TEST(CustomOps, WorkInBodies) {
  Counts counts;
  const std::string text =
      "(bool c, float[N] x) => (float[N] y) { y = If (c) <"
      " then_branch = t () => (float[N] a) { [inner] a = mine.Add (x) },"
      " else_branch = e () => (float[N] b) { b = Neg (x) }> }";
  CustomOps ops{{AddAmount(&counts)}, {}};
  ops.options.ForNode("inner").Update("amount", "9");
  auto session = MakeSession(ModelOf(text), ops);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  auto run = [&](bool c) {
    return Floats((*session)->Run({{"c", Tensor::Scalar(c)}, {"x", FloatVector({1})}}).value()[0]);
  };
  EXPECT_THAT(run(true), ElementsAre(10));
  EXPECT_THAT(run(false), ElementsAre(-1));
}

// An instance is told names, types, attributes, and constants; but nothing that a caller may
// replace.
TEST(CustomOps, NodesAreDescribedByCopies) {
  OpNodeInfo seen;
  CustomOp op = Times(1, "Look");
  op.schema.min_inputs = 1;
  op.schema.max_inputs = INT_MAX;
  op.schema.max_outputs = 3;
  op.schema.type_of_output = {0};
  Counts counts;
  op.create_instance = [&](const OpNodeInfo& info) -> Result<std::shared_ptr<const OpInstance>> {
    seen = info;
    return std::shared_ptr<const OpInstance>(std::make_shared<AddInstance>(0, &counts));
  };
  {
    auto session =
        MakeSession(ModelOf("(float[N,2] x, float[2] d) => (float[N,2] y) <float[2] c = {1, "
                            "2}, float[2] d = {3, 4}>"
                            "{ [look] y, , z = mine.Look <i = 3, f = 0.5, s = \"a\", t = "
                            "int64[1] {7}, l = [1, 2]> (x, , c, d) }"),
                    {{op}, {}});
    ASSERT_TRUE(session.ok()) << session.status().ToString();
  }
  EXPECT_EQ(seen.name, "look");
  ASSERT_EQ(seen.inputs.size(), 4u);
  EXPECT_EQ(seen.inputs[0].name, "x");
  EXPECT_EQ(seen.inputs[0].type.ToString(), "float32[N, 2]");
  EXPECT_FALSE(seen.inputs[1].present);
  EXPECT_THAT(Floats(seen.inputs[2].constant), ElementsAre(1, 2));
  EXPECT_FALSE(seen.inputs[3].constant.defined()) << "a default that a caller may replace";
  ASSERT_EQ(seen.outputs.size(), 3u);
  EXPECT_FALSE(seen.outputs[1].present);
  EXPECT_EQ(seen.outputs[2].type.ToString(), "float32[N, 2]");
  EXPECT_EQ(seen.Attr<int64_t>("i", 0), 3);
  EXPECT_EQ(seen.Attr<float>("f", 0), 0.5f);
  EXPECT_EQ(seen.Attr<std::string>("s", ""), "a");
  EXPECT_EQ(seen.Attr<Tensor>("t", {}).ToVector<int64_t>(), std::vector<int64_t>{7});
  EXPECT_THAT(seen.Attr<std::vector<int64_t>>("l", {}), ElementsAre(1, 2));
}

TEST(CustomOps, RunStatesBelongToOneCallAtATime) {
  RunStatePool<std::atomic<int>> pool;
  std::atomic<bool> shared{false};
  std::atomic<int> made{0};
  auto work = [&] {
    for (int i = 0; i < 1000; ++i) {
      auto state = pool.Borrow([&]() -> Result<std::unique_ptr<std::atomic<int>>> {
        ++made;
        return std::make_unique<std::atomic<int>>(0);
      });
      if ((*state)->fetch_add(1) != 0) shared = true;
      (*state)->fetch_sub(1);
      pool.Return(*std::move(state));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(shared);
  EXPECT_LE(made, 4);
}

}  // namespace
}  // namespace caesura
