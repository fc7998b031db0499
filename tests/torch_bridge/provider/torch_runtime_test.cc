// SPDX-License-Identifier: Apache-2.0
// Model ops that LibTorch runs: TorchScript archives, with LibTorch's gradients. AOTInductor
// packages need a compiler to be made: tests/python/sessions/aoti_package_test.py.
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <sstream>
#include <thread>

#include "core/custom_ops/model_op.h"
#include "core/onnx/model_reader.h"
#include "core/session/session.h"
#include "training/session/split_module.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Archive(const std::string& source) {
  ::torch::jit::Module module("m");
  module.register_parameter("weight", at::full({2}, 3.0f), /*is_buffer=*/false);
  module.define(source);
  std::ostringstream out;
  module.save(out);
  return out.str();
}

constexpr char kSquare[] =
    "def forward(self, x, n: Tensor):\n    return self.weight * x * x, n + 1\n";

WrapOptions Square() {
  WrapOptions wrap;
  wrap.runtime = "torch";
  wrap.model_bytes = Archive(kSquare);
  wrap.inputs = {{"x", "float32[N, 2]"}, {"n", "int64[]"}};
  wrap.outputs = {{"output_0", "float32[N, 2]"}, {"output_1", "int64[]"}};
  return wrap;
}

const NamedValues kFeeds = {{"x", Tensor::Of<float>(Shape{2, 2}, {1, 2, 3, 4})},
                            {"n", Tensor::Scalar<int64_t>(5)}};

TEST(TorchRuntime, RunsArchives) {
  auto model = WrapModel(Square());
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  auto session = Session::Create(*std::move(model)).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        auto results = session->Run(kFeeds).value();
        EXPECT_THAT(results[0].tensor().ToVector<float>(), ElementsAre(3, 12, 27, 48));
        EXPECT_EQ(*results[1].tensor().data<int64_t>(), 6);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TorchRuntime, GivesLibTorchsGradients) {
  SplitModuleOptions options;
  options.inputs = {"x"};
  auto module = SplitModule::Create(WrapModel(Square()).value(), options);
  ASSERT_TRUE(module.ok()) << module.status().ToString();
  auto run = (*module)->Forward(kFeeds).value();
  auto gradients = run.Backward({Tensor::Of<float>(Shape{2, 2}, {1, 1, 10, 100}), RuntimeValue()});
  ASSERT_TRUE(gradients.ok()) << gradients.status().ToString();
  EXPECT_THAT((*gradients)[0].tensor().ToVector<float>(), ElementsAre(6, 12, 180, 2400));  // 6 x dy
}

TEST(TorchRuntime, SaysWhatItNeeds) {
  WrapOptions wrap = Square();
  wrap.outputs.pop_back();
  EXPECT_THAT(WrapModel(wrap).status().message(),
              HasSubstr("the runtime cannot tell the type of output 'output_1'; state it, as "
                        "output_1=float32[N, 64]"));
  wrap = Square();
  wrap.options = OptionSet{{"threads", "2"}};
  EXPECT_THAT(WrapModel(wrap).status().message(),
              HasSubstr("no option 'threads'; known are: none"));
  wrap = Square();
  wrap.model_bytes = "no archive";
  EXPECT_FALSE(WrapModel(wrap).ok());
  wrap = Square();
  wrap.outputs[0].second = "float32[N, 3]";
  EXPECT_THAT(Session::Create(WrapModel(wrap).value()).value()->Run(kFeeds).status().message(),
              HasSubstr("output 0: expected float32[2, 3], got dtype 1 of shape [2, 2]"));
}

TEST(TorchRuntime, SaysWhatIsWrongWithPackages) {
  auto error = [](const std::vector<std::string>& models, const OptionSet& options = {}) {
    std::ostringstream out;
    {
      caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t size) {
        out.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
        return size;
      });
      for (const std::string& model : models)
        writer.writeRecord("data/aotinductor/" + model + "/x.wrapper.so", "code", 4);
      writer.writeEndOfFile();
    }
    WrapOptions wrap = Square();
    wrap.model_bytes = out.str();
    wrap.options = options;
    return WrapModel(wrap).status();
  };
  EXPECT_THAT(error({"a", "b"}).message(),
              HasSubstr("holds several models (a, b), and a node is one"));
  EXPECT_THAT(error({"a"}, {{"threads", "2"}}).message(),
              HasSubstr("no option 'threads'; known are: runners"));
  EXPECT_THAT(error({"a"}, {{"runners", "0"}}).message(),
              HasSubstr("option runners: expected a number above 0, got '0'"));
  EXPECT_FALSE(error({"a"}).ok()) << "it is no code";
}

}  // namespace
}  // namespace caesura
