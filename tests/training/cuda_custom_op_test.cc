// SPDX-License-Identifier: Apache-2.0
// Ops of the user's that work on a GPU: their computes get its memory and its stream, and put their
// work there.
#include <thread>

#include "core/base/status_macros.h"
#include "core/cuda/kernel_program.h"
#include "core/graph/op_def.h"
#include "core/session/session.h"
#include "tests/test_paths.h"
#include "tests/training/cuda_training.h"

namespace caesura::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// y = 3 x, in both kinds of memory.
constexpr char kSource[] = R"(
extern "C" __global__ void triple(const float* x, float* y, long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = 3 * x[i];
})";

// The op's instances share this: CUDA's functions, and a stream that nobody waits for, with which a
// test plants an error.
struct CudaCalls {
  std::shared_ptr<const CudaLibraries> libraries;
  CUstream elsewhere = nullptr;
};

class TripleOnGpu : public OpInstance {
 public:
  explicit TripleOnGpu(const CudaCalls& cuda) : cuda_(cuda) {}
  Status CreateKernel(KernelInfo& info, const ExecutionProvider& provider) const override {
    const auto& driver = cuda_.libraries->driver;
    ASSIGN_OR_RETURN(const std::string image,
                     CompileKernel(*cuda_.libraries, {kSource, provider.rounding()}));
    provider.stream();  // makes the provider's context current
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    if (driver.cuModuleLoadDataEx(&module, image.data(), 0, nullptr, nullptr) != CUDA_SUCCESS ||
        driver.cuModuleGetFunction(&function, module, "triple") != CUDA_SUCCESS)
      return Internal("the kernel does not load");
    const int64_t count = info.InputShape(0).elements();
    info.SetOutput(0, info.InputDType(0), info.InputShape(0));
    info.SetCompute([this, function, count](KernelContext& context) -> Status {
      auto* stream = static_cast<CUstream>(context.device_stream());
      if (cuda_.elsewhere != nullptr) stream = cuda_.elsewhere;
      const float* x = context.Input<float>(0);
      float* y = context.Output<float>(0);
      int64_t n = count;
      void* arguments[] = {&x, &y, &n};
      const CUresult result =
          cuda_.libraries->driver.cuLaunchKernel(function, static_cast<unsigned>((n + 127) / 128),
                                                 1, 1, 128, 1, 1, 0, stream, arguments, nullptr);
      return result == CUDA_SUCCESS ? Status() : ProviderFailure("cuLaunchKernel failed");
    });
    return {};
  }

 private:
  const CudaCalls& cuda_;
};

class TripleOnHost : public OpInstance {
 public:
  Status CreateKernel(KernelInfo& info, const ExecutionProvider&) const override {
    const int64_t n = info.InputShape(0).elements();
    info.SetOutput(0, info.InputDType(0), info.InputShape(0));
    info.SetCompute([n](KernelContext& context) {
      for (int64_t i = 0; i < n; ++i) context.Output<float>(0)[i] = 3 * context.Input<float>(0)[i];
    });
    return {};
  }
};

// Its gradient is the op itself, and so of the same device.
CustomOp Triple(const CudaCalls* cuda) {
  CustomOp op;
  op.schema = {.op_type = "Triple", .domain = "mine", .type_of_output = {0}};
  op.schema.gradient = [](GradientHook& g) -> Status {
    ASSIGN_OR_RETURN(const std::vector<Value*> dx,
                     g.AddNode("Triple", {g.OutputGradient(0)}, {}, "mine"));
    g.SetInputGradient(0, dx[0]);
    return {};
  };
  if (cuda != nullptr) op.provider = kCudaProviderName;
  op.create_instance = [cuda](const OpNodeInfo&) -> Result<std::shared_ptr<const OpInstance>> {
    std::shared_ptr<const OpInstance> made;
    if (cuda == nullptr) made = std::make_shared<TripleOnHost>();
    else made = std::make_shared<TripleOnGpu>(*cuda);
    return made;
  };
  return op;
}

class CudaCustomOp : public CudaTraining {
 protected:
  void SetUp() override {
    CudaTraining::SetUp();
    auto opened = OpenCudaLibraries(Options().libraries);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    cuda_.libraries = *std::move(opened);
  }
  // A layer, the op, a layer, trained on two batches.
  static RealModel Net(const std::string& op, CustomOps ops) {
    auto parsed = ParseModelText(
        "<ir_version: 10, opset_import: [\"\" : 20, \"mine\" : 1, \"test.cuda\" : 1]> net "
        "(float[batch, 6] x, float[6, 8] w0, float[8, 3] w1) => (float[batch, 3] scores) {"
        " a = MatMul (x, w0) t = Tanh (a) b = " +
        op + " (t) scores = MatMul (b, w1) }");
    EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
    RealModel out{*std::move(parsed), {}, {}};
    FillInitializers(*out.model.graph, 1);
    out.options.threads = 1;
    out.options.step.loss = Loss::CrossEntropy("labels");
    out.options.step.optimizer = AdamW{.learning_rate = 1e-2};
    out.options.custom_ops = std::move(ops);
    for (uint32_t i = 0; i < kUpdates; ++i)
      out.batches.push_back(RandomBatch(i + 1, "x", Shape{4, 6}, false, "labels", Shape{4}, 3));
    return out;
  }
  static std::unique_ptr<Session> Inference(const RealModel& model, ProviderList providers) {
    SessionOptions options;
    options.custom_ops = model.options.custom_ops;
    options.providers = std::move(providers);
    auto made = Session::Create(model.model.Clone(), std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? *std::move(made) : nullptr;
  }
  static Values Scores(Session& session, const RealModel& model) {
    auto scores = session.Run({{"x", model.batches[0].at("x")}});
    EXPECT_TRUE(scores.ok()) << scores.status().ToString();
    return scores.ok() ? *std::move(scores) : Values();
  }
  // A forward by an inference session, also on a thread that has never met the GPU, and steps of a
  // training session, beside those of the other model on the CPU.
  static void Compare(const RealModel& there, const RealModel& here) {
    const auto session = Inference(there, Cuda()), other = Inference(here, Cpu());
    ASSERT_TRUE(session != nullptr && other != nullptr);
    const Values wanted = Scores(*other, here);
    ExpectClose(Scores(*session, there), wanted, 1e-5, "scores");
    std::thread([&] { ExpectClose(Scores(*session, there), wanted, 1e-5, "scores"); }).join();
    const Trained trained = TrainOn(here, Cpu(), 10), got = TrainOn(there, Cuda(), 10);
    ExpectClose(got.losses, trained.losses, 1e-5, "loss");
    ExpectClose(got.parameters, trained.parameters, 1e-5, "parameter");
    for (const std::string& op : OnHost(there)) ADD_FAILURE() << op << " ran on the host";
  }
  // The reports of a forward whose op works on a stream of its own, which nobody waits for.
  template <typename Use>
  std::vector<std::string> ReportsElsewhere(const RealModel& model, const Use& use) {
    const auto& driver = cuda_.libraries->driver;
    const ProviderList providers = Cuda();
    auto session = Inference(model, providers);
    Scores(*session, model);
    EXPECT_THAT(Reports(), ::testing::IsEmpty());
    CUstream stream = nullptr;
    providers[0]->stream();
    EXPECT_EQ(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    use(stream);
    static_cast<void>(session->Run({{"x", model.batches[0].at("x")}}));
    driver.cuStreamSynchronize(stream);
    use(nullptr);
    session.reset();
    // Fails where the op has come to memory that was given back before.
    static_cast<void>(providers[0]->Synchronise());
    driver.cuStreamDestroy(stream);
    return Reports();
  }

  CudaCalls cuda_;
};

TEST_F(CudaCustomOp, OfCpp) {
  Compare(Net("mine.Triple", {{Triple(&cuda_)}, {}}), Net("mine.Triple", {{Triple(nullptr)}, {}}));
  if (!OnGpu()) {
    EXPECT_GT(Operations("kernel triple"), 0u);
  }
}

TEST_F(CudaCustomOp, OfCppOnAnotherStreamIsReported) {
  SKIP_ON_GPU();
  const auto reports = ReportsElsewhere(Net("mine.Triple", {{Triple(&cuda_)}, {}}),
                                        [&](CUstream stream) { cuda_.elsewhere = stream; });
  EXPECT_THAT(reports, Contains(HasSubstr("kernel triple")));
}

TEST_F(CudaCustomOp, NeedsItsProvider) {
  const RealModel model = Net("mine.Triple", {{Triple(&cuda_)}, {}});
  SessionOptions options;
  options.custom_ops = model.options.custom_ops;
  EXPECT_THAT(Session::Create(model.model.Clone(), std::move(options)).status().message(),
              HasSubstr("custom op mine::Triple needs CUDAExecutionProvider"));
}

// The plug-in is linked with the stand-in for the driver.
class CudaPluginOp : public CudaCustomOp {
 protected:
  void SetUp() override {
    SKIP_ON_GPU();
    CudaCustomOp::SetUp();
    const Status added = ops_.AddLibrary(kTestOpsCuda);
    ASSERT_TRUE(added.ok()) << added.ToString();
  }
  CustomOps ops_;
};

TEST_F(CudaPluginOp, CopiesOnTheStream) {
  Compare(Net("test.cuda.Keep", ops_), Net("Identity", {}));
}

TEST_F(CudaPluginOp, OnAnotherStreamIsReported) {
  void* const plugin = dlopen(kTestOpsCuda, RTLD_NOW);
  ASSERT_NE(plugin, nullptr);
  const auto use = reinterpret_cast<void (*)(CUstream)>(dlsym(plugin, "test_ops_cuda_use_stream"));
  EXPECT_THAT(ReportsElsewhere(Net("test.cuda.Keep", ops_), use), Contains(HasSubstr("copy ")));
}

TEST_F(CudaPluginOp, HostCopiesToItsOutputAreRefused) {
  const RealModel model = Net("test.cuda.FromHost", ops_);
  const auto scores = Inference(model, Cuda())->Run({{"x", model.batches[0].at("x")}});
  EXPECT_THAT(scores.status().message(), HasSubstr("copy_output writes host memory"));
}

}  // namespace
}  // namespace caesura::testing
