// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/provider/torch_provider.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops/cpu_kernels.h"
#include "core/onnx/model_reader.h"
#include "core/profile/value_watch.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/temporary_folder.h"
#include "torch_bridge/provider/torch_ops.h"
#include "torch_bridge/torch_tensor.h"
#include "training/session/training_session.h"

namespace caesura::torch {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const ExecutionProvider> WithOurs() {
  return MakeTorchProvider(RegisterCpuKernels);
}

Model Parse(const std::string& graph) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\": 21]>\ng " + graph).value();
}

Result<std::vector<RuntimeValue>> Outputs(const Model& model,
                                          std::shared_ptr<const ExecutionProvider> provider,
                                          const NamedValues& feeds) {
  SessionOptions options;
  options.providers = {std::move(provider)};
  auto session = Session::Create(model.Clone(), std::move(options));
  if (!session.ok()) return session.status();
  return (*session)->Run(feeds);
}

// Every row is asked on its own, without our kernels after it, and must agree with them.
TEST(TorchProviderTest, OpsAgreeWithOurKernels) {
  const char* const cases[] = {
      "(float[4, 6] x, float[4, 6] z) => (float[A, B] y) { a = Abs (x) b = Exp (x) c = Add (a, b) "
      "d = Mul (c, z) "
      "e = Sub (d, x) f = Max (e, x, z) g = Div (f, b) y = Tanh (g) }",
      "(float[4, 6] x, float[4, 6] z) => (float[A, B] y) { a = Softplus (x) b = Gelu (a) c = "
      "LeakyRelu (b) "
      "d = HardSigmoid (z) e = Elu (x) f = Selu (e) g = Sum (c, d, f) h = Sigmoid (g) y = Softsign "
      "(h) }",
      "(float[4, 6] x, float[4, 6] z) => (float[A, B] y) { c = Greater (x, z) n = Not (c) w = "
      "Where (n, x, z) "
      "i = Cast <to = 7> (n) f = Cast <to = 1> (i) y = Pow (w, f) }",
      "(float[4, 6] x, float[4, 6] z) => (float[A, B] y) <int64[1] axes = {1}> { m = ReduceMean "
      "(x, axes) "
      "s = ReduceSum <keepdims = 0> (z, axes) l = ReduceLogSumExp (x, axes) q = ReduceL2 (z) a = "
      "Add (m, l) b = Add (a, s) "
      "y = Add (b, q) }",
      "(float[4, 6] x, float[4, 6] z) => (float[A, B] y) { t = Transpose (z) p = MatMul (x, t) s = "
      "Softmax (p) "
      "l = LogSoftmax <axis = 0> (p) m = Mul (s, l) y = Gemm <alpha = 0.5, transB = 1> (m, t, x) }",
      "(float[4, 6] x, float[4, 6] z) => (float[A, B] y) <int64[2] shape = {0, -1}, int64[2] "
      "starts = {1, -4},\n"
      " int64[2] ends = {100, -1}, int64[2] axes = {0, 1}, int64[1] zero = {0}, int64[4] pads = "
      "{0, 1, 1, 2}, int64[2] i = {1, -1}> "
      "{ c = Concat <axis = 1> (x, z) s = Slice (c, starts, ends, axes) u = Unsqueeze (s, zero) q "
      "= Squeeze (u, zero) "
      "r = Reshape (q, shape) p = Pad (r, pads) g = Gather <axis = 1> (p, i) f = Flatten (g) y = "
      "Trilu (f) }",
      "(float[4, 6] x, float[4, 6] z) => (float[A, B] y, float[C, D] b, int64[4, 1] m) <int64[2] "
      "reps = {1, 2}> "
      "{ t = Tile (x, reps) y, b, c = Split <axis = 1, num_outputs = 3> (t) m = ArgMax <axis = 1> "
      "(z) }",
      "(float[2, 3, 8, 8] x, float[4, 3, 3, 3] z) => (float[A, B] y) <float[4] s = {1, 2, 3, 4}, "
      "float[4] b = {0, 1, 0, -1}> "
      "{ c = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, z) r = Relu (c) n = "
      "BatchNormalization (r, s, b, b, s) "
      "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (n) q = AveragePool <kernel_shape = "
      "[2, 3]> (p) "
      "g = GroupNormalization <num_groups = 2> (q, s, b) i = InstanceNormalization (g, s, b) a = "
      "GlobalAveragePool (i) "
      "y = Flatten (a) }",
  };
  for (const char* text : cases) {
    const Model model = Parse(text);
    NamedValues feeds;
    at::Tensor value = at::linspace(-1.5, 1.5, 384);
    for (const Value* input : model.graph->inputs()) {
      const Shape shape = *input->type().ConcreteShape();
      value = at::sin(value * 7 + 1);
      feeds[input->name()] =
          FromTorch(value.slice(0, 0, shape.elements()).reshape(shape.dims()).contiguous()).value();
    }
    const auto ours = Outputs(model, MakeCpuProvider(), feeds).value(),
               theirs = Outputs(model, MakeTorchProvider(), feeds).value();
    for (size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor expected = ToTorch(ours[i].tensor()).value(),
                       got = ToTorch(theirs[i].tensor()).value();
      // 2e-5: PyTorch leaves 1.2e-5 of a mean that is taken off, ours nothing.
      EXPECT_TRUE(at::allclose(got, expected, 1e-4, 2e-5)) << text << "\n" << got << expected;
    }
  }
}

TEST(TorchProviderTest, WhatPyTorchLacksGoesToOurKernels) {
  const Model model = Parse(
      "(float[1, 1, 4, 4] x) => (float[A] y) { a = MaxPool <kernel_shape = [2, 2], auto_pad = "
      "\"SAME_UPPER\"> (x) "
      "b = Relu (a) y = Hardmax (b) }");
  const Tensor x = FromTorch(at::arange(16, at::kFloat).reshape({1, 1, 4, 4})).value();
  EXPECT_THAT(Outputs(model, MakeTorchProvider(), {{"x", x}}).status().message(),
              HasSubstr("Hardmax"));
  const Model pool = Parse(
      "(float[1, 1, 4, 4] x) => (float[A] y) { y = MaxPool <kernel_shape = [2, 2], auto_pad = "
      "\"SAME_UPPER\"> (x) }");
  EXPECT_THAT(Outputs(pool, MakeTorchProvider(), {{"x", x}}).status().message(),
              HasSubstr("no equivalent of these attributes"));
  const auto y = Outputs(model, WithOurs(), {{"x", x}}).value();
  EXPECT_EQ(y[0].tensor().elements(), 16);
}

TEST(TorchProviderTest, ErrorsOfTheModelKeepOurWords) {
  const Model model =
      Parse("(float[2, 3] x) => (float[A] y) <int64[1] shape = {7}> { y = Reshape (x, shape) }");
  const auto result = Outputs(model, WithOurs(), {{"x", FromTorch(at::ones({2, 3})).value()}});
  EXPECT_THAT(result.status().ToString(), HasSubstr("Reshape"));
}

// `graph` with those of its inputs that are neither fed nor read by a loss as initializers: small
// random numbers, and ones for scales and variances (names that begin with "one").
Model WithWeights(const std::string& graph, const NamedValues& feeds) {
  Model model = ParseModelText("<ir_version: 10, opset_import: [\"\": 23]>\ng " + graph).value();
  at::Tensor value = at::linspace(-1.5, 1.5, 8192);
  const std::vector<Value*> inputs(model.graph->inputs().begin(), model.graph->inputs().end());
  for (Value* input : inputs) {
    if (feeds.contains(input->name())) continue;
    const Shape shape = *input->type().ConcreteShape();
    value = at::sin(value * 7 + 1);
    const at::Tensor weight = input->name().starts_with("one")
                                  ? at::ones(shape.dims())
                                  : 0.3 * value.slice(0, 0, shape.elements()).reshape(shape.dims());
    model.graph->RemoveInput(input);
    model.graph->SetInitializer(input, FromTorch(weight.contiguous()).value());
  }
  return model;
}

std::vector<double> Losses(const Model& model, const Loss& loss, const NamedValues& feeds,
                           ProviderList providers) {
  TrainingOptions options;
  options.step.loss = loss;
  options.step.optimizer = AdamW{.learning_rate = 0.02};
  options.providers = std::move(providers);
  auto session = TrainingSession::Create(model.Clone(), options).value();
  std::vector<double> out;
  for (int step = 0; step < 10; ++step) out.push_back(session->Step(feeds).value());
  return out;
}

// The same losses as our own kernels give, step by step: on the torch provider with our kernels
// after its operators, and placed over two providers, PyTorch's operators, there and on a device
// (standin_device.cc), and the CPU's kernels.
void ExpectSameTraining(const Model& model, const Loss& loss, const NamedValues& feeds) {
  const auto ours = Losses(model, loss, feeds, {});
  const ProviderList mixed = {MakeTorchProvider(), MakeCpuProvider()};
  const ProviderList over_devices = {MakeTorchDeviceProvider("privateuseone:0").value(),
                                     MakeCpuProvider()};
  for (const ProviderList& providers : {ProviderList{WithOurs()}, mixed, over_devices}) {
    const auto theirs = Losses(model, loss, feeds, providers);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_NEAR(theirs[i], ours[i], 1e-4 * ours[0])
          << providers.front()->device().ToString() << ", step " << i;
    }
    EXPECT_LT(theirs.back(), 0.7 * theirs.front());
  }
}

TEST(TorchProviderTest, DevicesThatPyTorchDoesNotHaveAreRefused) {
  for (const char* name : {"cuda", "cuda:0", "privateuseone:7", "meta", "xpu", "gpu"}) {
    const auto provider = MakeTorchDeviceProvider(name);
    ASSERT_FALSE(provider.ok()) << name;
    EXPECT_THAT(provider.status().message(), HasSubstr(name));
  }
  EXPECT_TRUE(MakeTorchDeviceProvider("cpu").value()->device().is_host());
  EXPECT_EQ(MakeTorchDeviceProvider("privateuseone").value()->device(),
            (Device{DeviceType::kOther, 0}));
}

TEST(TorchProviderTest, FeedsMayLieOnItsDevice) {
  const Model model = Parse("(float[2, 3] x) => (float[2, 3] y) { a = Exp (x) y = Mul (a, x) }");
  const at::Tensor x = at::linspace(-1, 1, 6).reshape({2, 3});
  const Tensor there = FromTorch(x.to(c10::Device("privateuseone:0"))).value();
  SessionOptions options;
  options.providers = {MakeTorchDeviceProvider("privateuseone").value(), MakeCpuProvider()};
  const auto session = Session::Create(model.Clone(), std::move(options)).value();
  const auto y = session->Run({{"x", there}}).value();
  EXPECT_TRUE(at::allclose(ToTorch(y[0].tensor()).value(), x.exp() * x));
  EXPECT_FALSE(Outputs(model, MakeCpuProvider(), {{"x", there}}).ok());  // nobody there serves it
}

TEST(TorchProviderTest, TrainsAnMlp) {
  const NamedValues feeds = {{"x", FromTorch(at::linspace(-1, 1, 24).reshape({8, 3})).value()},
                             {"target", FromTorch(at::ones({8, 2})).value()}};
  ExpectSameTraining(
      WithWeights("(float[8, 3] x, float[4, 3] w, float[4] b, float[2, 4] v) => (float[8, 2] y) {\n"
                  "  h = Gemm <transB = 1> (x, w, b) a = Gelu (h) y = Gemm <transB = 1> (a, v) }",
                  feeds),
      Loss::MeanSquaredError("target"), feeds);
}

// The net of the digits example, narrower.
TEST(TorchProviderTest, TrainsAConvolutionalNet) {
  const std::string text =
      "(float[6, 1, 8, 8] x, float[4, 1, 3, 3] w1, float[4] b1, float[4] one1, float[4] c1, "
      "float[4] m1, float[4] one_v1,\n"
      " float[6, 4, 3, 3] w2, float[6] b2, float[6] one2, float[6] c2, float[6] m2, float[6] "
      "one_v2,\n"
      " float[10, 24] w3, float[10] b3) => (float[6, 10] y) {\n"
      "  h1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) n1 = BatchNormalization (h1, one1, c1, m1, "
      "one_v1) r1 = Relu (n1)\n"
      "  p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1) h2 = Conv <pads = [1, 1, 1, "
      "1]> (p1, w2, b2)\n"
      "  n2 = BatchNormalization (h2, one2, c2, m2, one_v2) r2 = Relu (n2)\n"
      "  p2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2) f = Flatten (p2) y = Gemm "
      "<transB = 1> (f, w3, b3) }";
  const NamedValues feeds = {
      {"x", FromTorch(at::sin(at::arange(384, at::kFloat) * 1.7).reshape({6, 1, 8, 8})).value()},
      {"labels", FromTorch(at::tensor({3, 1, 4, 1, 5, 9}, at::kLong)).value()}};
  ExpectSameTraining(WithWeights(text, feeds), Loss::CrossEntropy("labels"), feeds);
}

// A block of the character GPT.
TEST(TorchProviderTest, TrainsATransformer) {
  const std::string text =
      "(int64[2, 6] tokens, float[11, 8] table, float[6, 8] places, float[8] one1, float[8] c1, "
      "float[8, 24] qkv, float[8, 8] out,\n"
      " float[8] one2, float[8] c2, float[8, 16] up, float[16] b, float[16, 8] down, float[8] "
      "one3, float[8] c3, float[8, 11] head)\n"
      "  => (float[12, 11] y) <int64[2] rows = {12, 11}> {\n"
      "  e = Gather (table, tokens) x = Add (e, places) n1 = LayerNormalization (x, one1, c1) p = "
      "MatMul (n1, qkv)\n"
      "  q, k, v = Split <axis = 2, num_outputs = 3> (p)\n"
      "  a = Attention <is_causal = 1, q_num_heads = 2, kv_num_heads = 2> (q, k, v) o = MatMul (a, "
      "out) x2 = Add (x, o)\n"
      "  n2 = LayerNormalization (x2, one2, c2) u = MatMul (n2, up) ub = Add (u, b) g = Gelu (ub) "
      "d = MatMul (g, down)\n"
      "  x3 = Add (x2, d) n3 = LayerNormalization (x3, one3, c3) s = MatMul (n3, head) y = Reshape "
      "(s, rows) }";
  const NamedValues feeds = {
      {"tokens", FromTorch(at::arange(12, at::kLong).reshape({2, 6}).remainder(11)).value()},
      {"labels", FromTorch(at::arange(1, 13, at::kLong).remainder(11)).value()}};
  ExpectSameTraining(WithWeights(text, feeds), Loss::CrossEntropy("labels"), feeds);
}

// A step that was recorded on our kernels, on PyTorch's operators: the first value that they round
// otherwise is named with its node, and none is off by more than rounding.
TEST(TorchProviderTest, AReplayedStepSaysWhereItParts) {
  const NamedValues feeds = {{"x", FromTorch(at::linspace(-1, 1, 24).reshape({4, 6})).value()},
                             {"labels", FromTorch(at::tensor({0, 1, 2, 1}, at::kLong)).value()}};
  const Model model = WithWeights(
      "(float[4, 6] x, float[6, 5] w0, float[5, 3] w1) => (float[4, 3] scores) {\n"
      "  m = MatMul (x, w0) h = Tanh (m) scores = MatMul (h, w1) }",
      feeds);
  const auto session_on = [&](std::shared_ptr<const ExecutionProvider> provider) {
    TrainingOptions options;
    options.step.loss = Loss::CrossEntropy("labels");
    options.step.optimizer = Sgd{.learning_rate = 0.1};
    options.providers = {std::move(provider)};
    return TrainingSession::Create(model.Clone(), options).value();
  };
  const testing::TemporaryFolder folder;
  const auto ours = session_on(MakeCpuProvider());
  const auto its = session_on(WithOurs());
  ours->control().SuspendAt(0);
  ASSERT_EQ(ours->Step(feeds).status().code(), StatusCode::kSuspended);
  ASSERT_TRUE(ours->Save(folder.path("step")).ok());
  ASSERT_TRUE(its->Restore(folder.path("step")).ok());
  EXPECT_FALSE(its->runs().differences().empty());
  ValueLog expected, got;
  ASSERT_TRUE(ours->ResumeStep({&expected}).ok());
  ASSERT_TRUE(its->ResumeStep({&got}).ok());
  // 1e-4: the scores' gradients cancel in the sums of the backward to a hundredth of their size.
  const auto far = FirstDifference(expected, got, 1e-4);
  EXPECT_FALSE(far) << far->ToString();
  const auto parts = FirstDifference(expected, got, 0);
  ASSERT_TRUE(parts);
  std::printf("the runs part at %s\n", parts->ToString().c_str());
  EXPECT_THAT(parts->ToString(), HasSubstr(kTorchProviderName));
}

}  // namespace
}  // namespace caesura::torch
