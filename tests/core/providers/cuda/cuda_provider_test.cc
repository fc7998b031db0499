// SPDX-License-Identifier: Apache-2.0
// The provider without a GPU, with wrong options, and where the device fails.
#include "core/plugin/plugin_provider.h"
#include "core/providers/copy_all.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kNet[] =
    "<ir_version: 10, opset_import: [\"\" : 23]> net (float[2, 3] x) => (float[2, 3] y) "
    "{ h = Exp (x) y = Mul (h, h) }";

class CudaProvider : public StandinCuda {
 protected:
  static Result<std::unique_ptr<Session>> SessionOn(const CudaOptions& options,
                                                    const char* text = kNet, bool fallback = true) {
    SessionOptions made;
    made.providers = {Provider(options), MakeCpuProvider()};
    made.fallback = fallback;
    auto model = ParseModelText(text);
    if (!model.ok()) return model.status();
    return Session::Create(*std::move(model), std::move(made));
  }
  void Fail(const char* function, int n, int error) {
    Call<decltype(standin_fail)>("standin_fail")(function, n, error);
  }
};

TEST(CudaLibraries, AMissingOneIsNamed) {
  CudaOptions options;
  options.libraries.driver = "/nowhere/libcuda.so.1";
  const auto made = MakeCudaProvider(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(made.status().message(), HasSubstr("cannot open '/nowhere/libcuda.so.1'"));
}

TEST(CudaOptions, AreReadByName) {
  const auto read = ParseCudaOptions({{"device_id", "1"},
                                      {"gpu_mem_limit", "4096"},
                                      {"user_compute_stream", "64"},
                                      {"use_tf32", "1"}});
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->device_id, 1);
  EXPECT_EQ(read->memory_limit, 4096u);
  EXPECT_EQ(read->stream, reinterpret_cast<void*>(64));
  EXPECT_TRUE(read->tf32);
  EXPECT_FALSE(ParseCudaOptions({{"use_tf32", "0"}})->tf32);
  EXPECT_THAT(ParseCudaOptions({{"use_tf32", "yes"}}).status().message(),
              HasSubstr("option 'use_tf32': expected 0 or 1, got 'yes'"));
  EXPECT_THAT(ParseCudaOptions({{"device", "0"}}).status().message(),
              HasSubstr("has no option 'device'; it has device_id"));
  EXPECT_THAT(ParseCudaOptions({{"device_id", "first"}}).status().message(),
              HasSubstr("option 'device_id': expected a number, got 'first'"));
}

TEST_F(CudaProvider, IsFoundByItsName) {
  const CudaLibraryNames names = Options().libraries;
  const auto made = ProviderByName(kCudaProviderName, {{"driver_library", names.driver},
                                                       {"nvrtc_library", names.nvrtc},
                                                       {"cublas_lt_library", names.cublas_lt}});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ((*made)->device().ToString(), "cuda:0");
  if (!OnGpu()) {
    EXPECT_EQ((*made)->rounding(), "sm_90");
  }
}

TEST_F(CudaProvider, ACudnnThatIsNamedMustStart) {
  SKIP_ON_GPU();
  Fail("cudnnCreate", 1, 1);
  const Status status = MakeCudaProvider(Options()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("cannot start cuDNN: its status is 1001"));
  EXPECT_TRUE(MakeCudaProvider(Options()).ok());
}

TEST_F(CudaProvider, ADeviceThatIsNotThere) {
  CudaOptions options = Options();
  options.device_id = 300;
  EXPECT_THAT(MakeCudaProvider(options).status().message(), HasSubstr("no device 300: there "));
}

TEST_F(CudaProvider, RunsASession) {
  auto session = SessionOn(Options());
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  const Tensor x = Tensor::Of<float>(Shape{2, 3}, {0, 1, -1, 0.5, 2, -2});
  auto got = (*session)->Run({{"x", x}});
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  const std::vector<float> y = (*got)[0].tensor().ToVector<float>();
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(y[i], std::exp(2 * x.data<float>()[i]), 1e-4);
  if (!OnGpu()) {
    EXPECT_GE(Operations("kernel "), 1u);
  }
}

TEST_F(CudaProvider, ALimitOfMemoryIsKept) {
  CudaOptions options = Options();
  options.memory_limit = 1 << 10;
  const auto provider = Provider(options);
  const auto small = provider->allocator().Allocate(1000);
  ASSERT_TRUE(small.ok());
  const auto refused = provider->allocator().Allocate(100);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kProviderFailure);
  EXPECT_THAT(refused.status().message(), HasSubstr("no memory for 100 bytes beside 1000 in use: "
                                                    "the provider's limit is 1024"));
  EXPECT_TRUE(provider->allocator().Allocate(24).ok()) << "bytes that were refused do not count";
}

// Bytes at any place, of any number, in more copies than one launch takes.
TEST_F(CudaProvider, CopiesManyAtOnce) {
  const auto provider = Provider();
  constexpr size_t kBytes = 40000;
  const auto from = provider->allocator().Allocate(kBytes).value(),
             to = provider->allocator().Allocate(kBytes).value();
  std::string bytes(kBytes, 0), wanted(kBytes, 'x'), got(kBytes, 0);
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<char>(i * 7 + i / 256);
  ASSERT_TRUE(provider->Copy(CopyKind::kToDevice, from->data(), bytes.data(), kBytes).ok());
  ASSERT_TRUE(provider->Copy(CopyKind::kToDevice, to->data(), wanted.data(), kBytes).ok());
  std::vector<DeviceCopy> copies;
  const auto add = [&](size_t at_from, size_t at_to, size_t count) {
    copies.push_back({static_cast<char*>(to->data()) + at_to,
                      static_cast<const char*>(from->data()) + at_from, count});
    std::copy_n(bytes.begin() + at_from, count, wanted.begin() + at_to);
  };
  add(0, 3, 1);
  add(4, 4, 12);
  add(16, 32, 32784);  // more than a chunk of words of 16 bytes
  add(1, 33040, 5);
  add(0, 0, 0);
  for (size_t i = 0; i < 100; ++i) add(16 * i, 34000 + 32 * i, 16);
  const uint64_t before = Operations("kernel ");
  ASSERT_TRUE(CopyAll(*provider, copies).ok());
  if (!OnGpu()) {
    EXPECT_EQ(Operations("kernel copy_all") - before, 4u);
  }
  ASSERT_TRUE(provider->Copy(CopyKind::kToHost, got.data(), to->data(), kBytes).ok());
  ASSERT_TRUE(provider->Synchronise().ok());
  EXPECT_TRUE(got == wanted);
}

// Out of memory and failed launches end on the CPU, with the same numbers.
TEST_F(CudaProvider, FailuresFallBackToTheCpu) {
  SKIP_ON_GPU();
  const Tensor x = Tensor::Of<float>(Shape{2, 3}, {0, 1, -1, 0.5, 2, -2});
  for (const char* call : {"cuMemAllocFromPoolAsync", "cuLaunchKernel", "cuMemcpyHtoDAsync"}) {
    SCOPED_TRACE(call);
    auto session = SessionOn(Options());
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    Fail(call, 1, 2 /* CUDA_ERROR_OUT_OF_MEMORY */);
    ::testing::internal::CaptureStderr();
    auto got = (*session)->Run({{"x", x}});
    ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_NEAR((*got)[0].tensor().data<float>()[1], std::exp(2.0f), 1e-4);
    ASSERT_TRUE((*session)->fallback().record().has_value());
    EXPECT_THAT((*session)->fallback().record()->cause, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  }
}

// A kernel cannot stop at a wrong index: the next wait tells of it, and the session goes on.
TEST_F(CudaProvider, AWrongIndexIsTold) {
  auto session = SessionOn(
      Options(),
      "<ir_version: 10, opset_import: [\"\" : 23]> net (float[4] x, int64[2] i) => (float[2] y) "
      "{ y = Gather (x, i) }",
      false);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  const Tensor x = Tensor::Of<float>(Shape{4}, {1, 2, 3, 4});
  auto run = [&](int64_t index) {
    return (*session)->Run({{"x", x}, {"i", Tensor::Of<int64_t>(Shape{2}, {0, index})}});
  };
  const auto wrong = run(4);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.status().message(), HasSubstr("an index is outside [-4, 4)"));
  const auto right = run(-1);
  ASSERT_TRUE(right.ok()) << right.status().ToString();
  EXPECT_EQ((*right)[0].tensor().ToVector<float>(), (std::vector<float>{1, 4}));
}

}  // namespace
}  // namespace caesura::testing
