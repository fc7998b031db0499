// SPDX-License-Identifier: Apache-2.0
// A yield on a GPU hands out the GPU's tensors, in and out by DLPack without a copy to the host. A
// module that is cut anywhere gives the bits of the uncut one.
#include <dlpack/dlpack.h>

#include <thread>

#include "core/cuda/cuda_libraries.h"
#include "core/onnx/model_reader.h"
#include "core/providers/tensor_copy.h"
#include "core/tensor/dlpack.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "tests/training/real_step.h"
#include "training/session/split_module.h"

namespace caesura::testing {
namespace {

// A chain of layers; "IN" and "OUT" stand for what goes in and what comes out.
struct Layer {
  const char *text, *weights;
};
constexpr Layer kLayers[] = {
    {"OUT = MatMul (IN, w0)", "float[8, 8] w0"},
    {"OUT = Add (IN, b0)", "float[8] b0"},
    {"OUT = Gelu (IN)", ""},
    {"OUT = LayerNormalization <axis = -1> (IN, scale, shift)", "float[8] scale, float[8] shift"},
    {"OUT = MatMul (IN, w1)", "float[8, 8] w1"},
    {"OUT = Mul (IN, m)", "float[1] m"},
    {"OUT = Softmax <axis = -1> (IN)", ""},
    {"OUT = Tanh (IN)", ""},
};
constexpr size_t kCount = std::size(kLayers);
// Groups end at a cut: without fusion, both sides of it have the kernels of the uncut module.
const std::vector<std::string> kUnfused = {"row_fusion", "matmul_epilogue", "norm_fusion"};

std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at; (at = text.find(what)) != text.npos;) text.replace(at, what.size(), with);
  return text;
}

class CudaSplitModule : public StandinCuda {
 protected:
  static std::unique_ptr<SplitModule> Open(Model model, const std::string& input,
                                           ProviderList providers, bool on_device = true) {
    SplitModuleOptions options;
    options.inputs = {input};
    options.providers = std::move(providers);
    options.fallback = false;
    options.gradients_on_device = on_device;
    options.threads = 1;
    options.disabled_passes = kUnfused;
    auto made = SplitModule::Create(std::move(model), options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? *std::move(made) : nullptr;
  }
  // Layers [first, last) of the chain, from h<first> to h<last>.
  static std::unique_ptr<SplitModule> Chain(size_t first, size_t last,
                                            const ProviderList& providers, bool on_device = true) {
    const std::string in = "h" + std::to_string(first);
    std::string inputs = "float[3, 8] " + in, body;
    for (size_t i = first; i < last; ++i) {
      const std::string weights = kLayers[i].weights;
      inputs += weights.empty() ? "" : ", " + weights;
      body += Replaced(Replaced(kLayers[i].text, "IN", "h" + std::to_string(i)), "OUT",
                       "h" + std::to_string(i + 1)) +
              " ";
    }
    RealModel real = MakeRealModel(
        "chain (" + inputs + ") => (float[3, 8] h" + std::to_string(last) + ") { " + body + "}", 1);
    return Open(std::move(real.model), in, providers, on_device);
  }
  static Tensor Numbers(int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<float> values(24);
    for (float& v : values) v = static_cast<float>(random() % 2001) / 1000 - 1;
    return Tensor::Of<float>(Shape{3, 8}, values);
  }
  // Out by DLPack and in again, as another library would take it.
  static Tensor Handed(const RuntimeValue& value) {
    auto exported = ExportDlpack(value.tensor());
    EXPECT_TRUE(exported.ok()) << exported.status().ToString();
    EXPECT_EQ((*exported)->dl_tensor.device.device_type, kDLCUDA);
    EXPECT_EQ((*exported)->dl_tensor.data, value.tensor().raw());
    return ImportDlpack(*exported).value();
  }
  static std::map<std::string, Tensor> OnHost(const SplitModule& module, const Values& gradients,
                                              const ProviderList& providers) {
    std::map<std::string, Tensor> out;
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_EQ(gradients[i].tensor().device(), providers.front()->device());
      out[module.gradient_names()[i]] = ToHost(gradients[i].tensor(), providers).value();
    }
    return out;
  }
  uint64_t Waits() const {
    return OnGpu() ? 0 : Call<decltype(standin_host_waits)>("standin_host_waits")();
  }
  uint64_t CopiesToHost() const {
    return OnGpu() ? 0 : Call<decltype(standin_calls)>("standin_calls")("cuMemcpyDtoHAsync");
  }
};

TEST_F(CudaSplitModule, YieldsAndGradientsStayOnTheDevice) {
  const ProviderList cuda = {Provider(), TrainingCpu()}, cpu = {TrainingCpu()};
  auto here = Chain(0, kCount, cpu, false), there = Chain(0, kCount, cuda);
  ForwardRun wanted = here->Forward({{"h0", Numbers(1)}}).value();
  const Values wanted_gradients = wanted.Backward({Numbers(2)}).value();
  ASSERT_TRUE(there->Forward({{"h0", Numbers(1)}}).ok());  // copies the parameters
  const uint64_t waits = Waits(), copies = CopiesToHost();
  auto run = there->Forward({{"h0", Numbers(1)}});
  ASSERT_TRUE(run.ok()) << run.status().ToString();
  ASSERT_EQ(run->outputs[0].tensor().device(), cuda[0]->device());
  const Tensor dy = CopyToDevice(Numbers(2), *cuda[0]).value();
  auto gradients = run->Backward({Handed(dy)});
  ASSERT_TRUE(gradients.ok()) << gradients.status().ToString();
  EXPECT_EQ(Waits(), waits);
  EXPECT_EQ(CopiesToHost(), copies);
  const Tensor y = ToHost(Handed(run->outputs[0]), cuda).value();
  for (int i = 0; i < 24; ++i)
    EXPECT_NEAR(y.data<float>()[i], wanted.outputs[0].tensor().data<float>()[i], 1e-6);
  const auto got = OnHost(*there, *gradients, cuda);
  for (size_t i = 0; i < wanted_gradients.size(); ++i) {
    const std::string& name = here->gradient_names()[i];
    const std::vector<float> a = got.at(name).ToVector<float>(),
                             b = wanted_gradients[i].tensor().ToVector<float>();
    for (size_t e = 0; e < b.size(); ++e) EXPECT_NEAR(a[e], b[e], 1e-5) << name << ' ' << e;
  }
  // Without the option they come to the host, with the same bits.
  auto home = Chain(0, kCount, cuda, false);
  ForwardRun other = home->Forward({{"h0", Numbers(1)}}).value();
  const Values on_host = other.Backward({Numbers(2)}).value();
  for (size_t i = 0; i < on_host.size(); ++i)
    EXPECT_TRUE(SameBits(on_host[i], got.at(home->gradient_names()[i])));
}

// Two modules with a border between them that both cross by DLPack.
TEST_F(CudaSplitModule, CutAtEveryBoundary) {
  const ProviderList cuda = {Provider(Unchecked()), TrainingCpu()};
  auto whole = Chain(0, kCount, cuda);
  ForwardRun uncut = whole->Forward({{"h0", Numbers(1)}}).value();
  const RuntimeValue wanted_y = ToHost(uncut.outputs[0].tensor(), cuda).value();
  const auto wanted = OnHost(*whole, uncut.Backward({Numbers(2)}).value(), cuda);
  for (size_t cut = 1; cut < kCount; ++cut) {
    SCOPED_TRACE("cut before layer " + std::to_string(cut));
    auto front = Chain(0, cut, cuda), back = Chain(cut, kCount, cuda);
    // Weights follow from their place in a text: those of the uncut module in both.
    for (SplitModule* half : {front.get(), back.get()}) {
      std::map<std::string, Tensor> weights;
      for (const std::string& name : half->ParameterNames())
        weights[name] = whole->Parameter(name).value();
      ASSERT_TRUE(half->SetParameters(weights).ok());
    }
    ForwardRun first = front->Forward({{"h0", Numbers(1)}}).value();
    const std::string border = "h" + std::to_string(cut);
    ForwardRun second = back->Forward({{border, Handed(first.outputs[0])}}).value();
    EXPECT_TRUE(SameBits(ToHost(second.outputs[0].tensor(), cuda).value(), wanted_y));
    const Values of_back = second.Backward({Numbers(2)}).value();
    const Tensor at_border = Handed(of_back[0]);
    const Values of_front = first.Backward({at_border}).value();
    auto got = OnHost(*front, of_front, cuda);
    got.merge(OnHost(*back, of_back, cuda));
    got.erase(border);
    EXPECT_EQ(got.size(), wanted.size());
    for (const auto& [name, gradient] : got)
      EXPECT_TRUE(SameBits(gradient, wanted.at(name))) << name;
  }
}

// Handed out tensors may go early, late (after their module and its provider), or on another
// thread.
TEST_F(CudaSplitModule, TensorsAreFreedAtAnyTime) {
  const Tensor x = Numbers(1);
  Values kept;
  {
    const ProviderList cuda = {Provider(Unchecked()), TrainingCpu()};
    auto module = Chain(0, kCount, cuda);
    for (int round = 0; round < 3; ++round) {
      ForwardRun run = module->Forward({{"h0", x}}).value();
      std::vector<RuntimeValue> outputs = std::move(run.outputs);
      if (round == 0) outputs.clear();
      if (round == 1) std::thread([&] { outputs.clear(); }).join();
      auto gradients = run.Backward({Numbers(2)});
      ASSERT_TRUE(gradients.ok()) << gradients.status().ToString();
      std::thread([freed = *std::move(gradients)]() mutable { freed.clear(); }).join();
      kept = std::move(outputs);
    }
  }
  EXPECT_EQ(kept.size(), 1u);
}

// Another stream's work on what was handed out, and its memory's next use, without a wait of the
// host. The order checker would report a missing one.
TEST_F(CudaSplitModule, StreamsAreOrdered) {
  const auto libraries = OpenCudaLibraries(Options().libraries);
  ASSERT_TRUE(libraries.ok()) << libraries.status().ToString();
  const auto& driver = (*libraries)->driver;
  const ProviderList cuda = {Provider(), TrainingCpu()};
  auto module = Chain(0, kCount, cuda);
  CUstream other = nullptr;
  ASSERT_EQ(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  std::vector<float> first(24), again(24);
  for (std::vector<float>* to : {&first, &again}) {
    ForwardRun run = module->Forward({{"h0", Numbers(1)}}).value();
    const Tensor y = run.outputs[0].tensor();
    const auto at = reinterpret_cast<CUdeviceptr>(y.raw());
    ASSERT_TRUE(OrderStreams(*cuda[0], cuda[0]->stream(), other).ok());
    ASSERT_EQ(driver.cuMemcpyDtoHAsync(to->data(), at, y.bytes(), other), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuMemsetD8Async(at, 0xff, y.bytes(), other), CUDA_SUCCESS);
    ASSERT_TRUE(OrderStreams(*cuda[0], other, cuda[0]->stream()).ok());
  }
  ASSERT_EQ(driver.cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(first, again);
  EXPECT_NE(first[0], 0);
  EXPECT_EQ(driver.cuStreamDestroy(other), CUDA_SUCCESS);
}

TEST_F(CudaSplitModule, AMissingOrderIsReported) {
  SKIP_ON_GPU();
  const auto libraries = OpenCudaLibraries(Options().libraries);
  ASSERT_TRUE(libraries.ok());
  const auto& driver = (*libraries)->driver;
  const ProviderList cuda = {Provider(), TrainingCpu()};
  auto module = Chain(0, kCount, cuda);
  CUstream other = nullptr;
  ASSERT_EQ(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  {
    ForwardRun run = module->Forward({{"h0", Numbers(1)}}).value();
    const Tensor y = run.outputs[0].tensor();
    driver.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(y.raw()), 0xff, y.bytes(), other);
    driver.cuStreamSynchronize(other);
    ASSERT_TRUE(cuda[0]->Synchronise().ok());
  }
  EXPECT_THAT(Reports(), ::testing::Not(::testing::IsEmpty()));
  driver.cuStreamDestroy(other);
  module.reset();
  Reports();  // of the same access, at its memory's release
}

}  // namespace
}  // namespace caesura::testing
