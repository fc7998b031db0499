// SPDX-License-Identifier: Apache-2.0
// Model ops that OpenVINO runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/custom_ops/model_op.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/session/session.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

constexpr char kDense[] =
    "<ir_version: 10, opset_import: [\"\" : 20]> net (float[N,3] x) => (float[N,2] y)"
    " <float[3,2] w = {1, -2, 3, -4, 5, -6}, float[2] b = {0.5, 0.25}> { h = MatMul (x, w) s = Add "
    "(h, b) y = Tanh (s) }";

WrapOptions Net() {
  WrapOptions wrap;
  wrap.runtime = "openvino";
  wrap.model_bytes =
      SerializeModel(ParseModelText(kDense, {.normalise_opsets = false}).value()).value();
  wrap.options = OptionSet{{"threads", "1"}};
  return wrap;
}

std::unique_ptr<Session> MakeOpenVinoSession(Model model, const OpOptions& op_options = {}) {
  SessionOptions options;
  options.custom_ops.options = op_options;
  auto session = Session::Create(std::move(model), std::move(options));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

Tensor Rows(int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < 3 * n; ++i) values.push_back(static_cast<float>((i * 7) % 5) / 4 - 0.5f);
  return Tensor::Of<float>(Shape{n, 3}, values);
}

void Compare(const RuntimeValue& got, const RuntimeValue& want) {
  ASSERT_EQ(got.tensor().shape(), want.tensor().shape());
  const auto a = got.tensor().ToVector<double>(), b = want.tensor().ToVector<double>();
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 1e-6);  // float32, other orders of summation
}

TEST(OpenVinoRuntime, ComputesWhatThePlainModelDoes) {
  auto wrapped = WrapModel(Net());
  ASSERT_TRUE(wrapped.ok()) << wrapped.status().ToString();
  auto plain = MakeOpenVinoSession(ParseModelText(kDense).value()),
       session = MakeOpenVinoSession(*std::move(wrapped));
  for (int64_t n : {1, 4, 2, 4}) {
    const NamedValues feeds = {{"x", Rows(n)}};
    Compare(session->Run(feeds).value()[0], plain->Run(feeds).value()[0]);
  }
}

TEST(OpenVinoRuntime, SizesAreThoseThatAreStatedOrThoseOfTheRun) {
  WrapOptions wrap = Net();
  wrap.inputs = {{"x", "float32[N, 3]"}};
  wrap.outputs = {{"y", "float32[N, 2]"}};
  auto plain = MakeOpenVinoSession(ParseModelText(kDense).value()),
       session = MakeOpenVinoSession(WrapModel(wrap).value());
  EXPECT_EQ(session->outputs()[0]->type().ToString(), "float32[N, 2]");
  for (int64_t n : {3, 1}) {
    const NamedValues feeds = {{"x", Rows(n)}};
    Compare(session->Run(feeds).value()[0], plain->Run(feeds).value()[0]);
  }
  wrap.outputs = {{"y", "float32[N, 7]"}};
  EXPECT_THAT(WrapModel(wrap).status().message(), HasSubstr("not float32[N, 7]"));
}

TEST(OpenVinoRuntime, ThreadsShareASession) {
  auto plain = MakeOpenVinoSession(ParseModelText(kDense).value()),
       session = MakeOpenVinoSession(WrapModel(Net()).value());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const NamedValues feeds = {{"x", Rows(1 + (t + i) % 5)}};
        Compare(session->Run(feeds).value()[0], plain->Run(feeds).value()[0]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each thread's first run makes a request, while others run.
TEST(OpenVinoRuntime, ThreadsBeginAtOnce) {
  auto plain = MakeOpenVinoSession(ParseModelText(kDense).value());
  std::vector<RuntimeValue> want;
  for (int64_t n = 1; n <= 5; ++n) want.push_back(plain->Run({{"x", Rows(n)}}).value()[0]);
  for (int repeat = 0; repeat < 20; ++repeat) {
    auto session = MakeOpenVinoSession(WrapModel(Net()).value());
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 10; ++i)
          Compare(session->Run({{"x", Rows(1 + (t + i) % 5)}}).value()[0], want[(t + i) % 5]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(OpenVinoRuntime, WrongOptionsAndModelsAreNamed) {
  auto error = [](WrapOptions wrap) { return WrapModel(wrap).status(); };
  WrapOptions wrap = Net();
  wrap.options = OptionSet{{"device_type", "CPU"}};
  EXPECT_THAT(error(wrap).message(),
              HasSubstr("no option 'device_type'; known are: device, hint, precision, threads"));
  wrap.options = OptionSet{{"precision", "f33"}};
  EXPECT_EQ(error(wrap).code(), StatusCode::kInvalidArgument);
  wrap.options = OptionSet{{"device", "MOON"}};
  EXPECT_EQ(error(wrap).code(), StatusCode::kProviderFailure);
  wrap = Net();
  wrap.model_bytes = "no model";
  EXPECT_EQ(error(wrap).code(), StatusCode::kInvalidModel);
}

}  // namespace
}  // namespace caesura
