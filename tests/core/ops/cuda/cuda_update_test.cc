// SPDX-License-Identifier: Apache-2.0
// Optimizer updates and norms over many tensors of all sizes: the CPU's numbers, by as few launches
// as a table of tensors allows.
#include <cmath>
#include <random>

#include "core/plan/device_constants.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/tensor_copy.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

Tensor Random(DType dtype, int64_t count, std::mt19937& random, float least = -1, float most = 1) {
  Tensor out = Tensor::Zeros(dtype, Shape{count});
  for (int64_t i = 0; i < count; ++i) {
    const float value = least + (most - least) * static_cast<float>(random() % 2001) / 2000;
    DispatchFloat(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      out.data<T>()[i] = static_cast<T>(value);
    });
  }
  return out;
}

// The tensor at an address that is no multiple of 16, on the provider's device.
Tensor OffAWord(const Tensor& tensor, const ExecutionProvider& provider) {
  const size_t size = DTypeSize(tensor.dtype());
  Tensor room = Tensor::Zeros(tensor.dtype(), Shape{tensor.elements() + 1});
  std::memcpy(room.data<char>() + size, tensor.raw(), tensor.bytes());
  if (!provider.device().is_host()) room = CopyToDevice(room, provider).value();
  return Tensor(tensor.dtype(), tensor.shape(), room.buffer(), size);
}

// Sizes around those of a chunk, and more tensors than one table holds.
std::vector<int64_t> Sizes() {
  constexpr int64_t kChunk = 2048;  // of CudaTensorTable
  std::vector<int64_t> out = {1, 0, 3, kChunk, kChunk + 1, 2 * kChunk - 1};
  for (int i = 0; i < 90; ++i) out.push_back(5 + i % 3);
  return out;
}

class CudaUpdate : public StandinCuda {
 protected:
  struct Case {
    const char *op, *attribute;  // one that is set, or none
    int states;
    int scalars = 0;  // the first states; float64 with an attribute, otherwise float32
  };

  // One update of fresh parameters and states, which then are the result. feeds_offset: the step's
  // number is fed as a sum of two.
  static Values Update(const Case& c, DType dtype, const ProviderList& providers,
                       bool off_a_word = false, bool feeds_offset = false) {
    auto graph = std::make_shared<Graph>("update");
    const std::vector<int64_t> sizes = Sizes();
    std::vector<Value*> inputs = {
        graph->AddInput("rate",
                        ValueType::Tensor(DType::kFloat64, feeds_offset ? Shape{2} : Shape{})),
        graph->AddInput("step", ValueType::Tensor(DType::kInt64, Shape{})),
        graph->AddInput("scale", ValueType::Tensor(DType::kFloat64, Shape{}))};
    Values feeds = {Tensor::Scalar<double>(0.05), Tensor::Scalar<int64_t>(9),
                    Tensor::Scalar<double>(0.5)};
    if (feeds_offset) {
      feeds[0] = Tensor::Of<double>({2}, {0.05, -4});
      feeds[1] = Tensor::Scalar<int64_t>(13);
    }
    std::mt19937 random(5);
    PlanOptions options;
    ParameterSet parameters;
    const bool is_plain = c.attribute[0] == 0;
    for (int kind = 0; kind < 2 + c.states; ++kind) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        const std::string name = std::to_string(kind) + "_" + std::to_string(i);
        // States as they may be: a variance is positive, and not below the square of a mean.
        Tensor tensor = Random(dtype, sizes[i], random, kind < 2 ? -1 : 0.2f, kind > 2 ? 0.3f : 1);
        if (kind >= 2 && kind < 2 + c.scalars) {
          const DType of_scalar = is_plain ? DType::kFloat32 : DType::kFloat64;
          tensor = Random(of_scalar, 1, random, 0.2f).Reshaped(Shape{});
        }
        if (kind == 1) {
          inputs.push_back(graph->AddInput(name, ValueType::Tensor(dtype, Shape{sizes[i]})));
          feeds.push_back(tensor);
          continue;
        }
        if (off_a_word) tensor = OffAWord(tensor, *providers[0]);
        else if (!providers[0]->device().is_host())
          tensor = CopyToDevice(tensor, *providers[0]).value();
        inputs.push_back(graph->AddInitializer(name, tensor));
        options.parameters.push_back(inputs.back());
        parameters.Add(name, tensor);
      }
    }
    AttributeMap all = {{"count", static_cast<int64_t>(sizes.size())}, {"weight_decay", 0.1f}};
    if (!is_plain) all[c.attribute] = int64_t{1};
    if (feeds_offset) all["fed"] = std::vector<std::string>{"learning_rate", "step_offset"};
    Node* node = graph->AddOp(c.op, inputs, all, kCaesuraDomain,
                              static_cast<int>(sizes.size()) * (1 + c.states), c.op);
    node->set_phase(Phase::kOptimizer);
    node->set_provider(providers[0]->name());
    auto plan = TryPlan(graph, feeds, options, providers);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (!plan.ok()) return {};
    RunPlan(*plan, feeds, {.parameters = &parameters});
    Values out;
    for (int i = 0; i < parameters.size(); ++i)
      out.push_back(ToHost(parameters.tensor(i), providers).value());
    return out;
  }

  static void ExpectClose(const Values& got, const Values& wanted, double tolerance) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const auto a = got[i].tensor().ToVector<double>(), b = wanted[i].tensor().ToVector<double>();
      for (size_t e = 0; e < a.size(); ++e)
        ASSERT_NEAR(a[e], b[e], tolerance * std::max(1.0, std::abs(b[e])))
            << "tensor " << i << ", element " << e;
    }
  }
};

TEST_F(CudaUpdate, RulesGiveTheCpusNumbers) {
  const auto cpu = MakeCpuProvider();
  const Case cases[] = {{"SgdUpdate", "", 0},
                        {"SgdUpdate", "nesterov", 1},
                        {"AdamUpdate", "", 2},
                        {"AdamWUpdate", "maximize", 2},
                        {"AdamWUpdate", "amsgrad", 3},
                        {"LionUpdate", "", 1},
                        {"RmspropUpdate", "", 1},
                        {"RmspropUpdate", "", 2},
                        {"RmspropUpdate", "centered", 2},
                        {"NAdamUpdate", "", 3, 1},
                        {"NAdamUpdate", "decoupled_weight_decay", 3, 1},
                        {"RAdamUpdate", "", 2},
                        {"RAdamUpdate", "decoupled_weight_decay", 2},
                        {"AdamaxUpdate", "maximize", 2},
                        {"AdagradUpdate", "", 1},
                        {"AdadeltaUpdate", "", 2},
                        {"AsgdUpdate", "", 3, 2},
                        {"AsgdUpdate", "float64_rates", 3, 2},
                        {"RpropUpdate", "", 2},
                        {"LambUpdate", "", 2}};
  // The narrower types in turns: how elements are stored is no part of a rule.
  const DType narrow[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  size_t turn = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.op) + " " + c.attribute);
    for (const DType dtype : {DType::kFloat64, narrow[turn++ % 3]}) {
      SCOPED_TRACE(DTypeName(dtype));
      // The same operations, but for functions and what compilers contract.
      const double tolerance = dtype == DType::kFloat64   ? 1e-12
                               : dtype == DType::kFloat32 ? 1e-6
                               : dtype == DType::kFloat16 ? 2e-3
                                                          : 1e-2;
      const uint64_t before = Operations("kernel ");
      const Values got = Update(c, dtype, {Provider(), cpu});
      const bool is_lamb = std::string(c.op) == "LambUpdate";
      EXPECT_LE(Operations("kernel ") - before, is_lamb ? 6u : 2u + c.scalars);
      ExpectClose(got, Update(c, dtype, {cpu}), tolerance);
    }
  }
}

TEST_F(CudaUpdate, ParametersMayLieAnywhere) {
  const auto cpu = MakeCpuProvider(), cuda = Provider();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Case c = {"AdamWUpdate", "", 2};
    const Values wanted = Update(c, dtype, {cuda, cpu});
    EXPECT_TRUE(SameBits(Update(c, dtype, {cuda, cpu}, true), wanted));
  }
}

TEST_F(CudaUpdate, StepsMayHaveAnOffset) {
  const auto cpu = MakeCpuProvider(), cuda = Provider();
  for (const Case& c :
       {Case{"AdamWUpdate", "", 2}, Case{"NAdamUpdate", "", 3, 1}, Case{"LambUpdate", "", 2}}) {
    const Values wanted = Update(c, DType::kFloat32, {cuda, cpu});
    EXPECT_TRUE(SameBits(Update(c, DType::kFloat32, {cuda, cpu}, false, true), wanted)) << c.op;
  }
}

TEST_F(CudaUpdate, NormsOfManyTensors) {
  const auto cpu = MakeCpuProvider(), cuda = Provider();
  auto graph = std::make_shared<Graph>("norm");
  std::vector<Value*> inputs;
  Values feeds;
  std::mt19937 random(3);
  for (int64_t size : Sizes()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      inputs.push_back(graph->AddInput("g" + std::to_string(inputs.size()),
                                       ValueType::Tensor(dtype, Shape{size})));
      feeds.push_back(Random(dtype, size, random));
    }
  }
  Node* node = graph->AddOp("GlobalNorm", inputs, {}, kCaesuraDomain, 1, "norm");
  graph->AddOutput(node->output(0));
  const Values wanted = RunPlan(PlanOf(graph, feeds, {}, {cpu}), feeds);
  const uint64_t before = Operations("kernel ");
  const Values got = RunPlan(PlanOf(graph, feeds, {}, {cuda, cpu}), feeds);
  if (!OnGpu()) {
    EXPECT_GE(Operations("kernel ") - before, 3u);  // a dtype each, and the root
  }
  ExpectClose(got, wanted, 1e-6);
  EXPECT_TRUE(SameBits(RunPlan(PlanOf(graph, feeds, {}, {cuda, cpu}), feeds), got));
  // The order of the sum does not depend on where the tensors lie.
  for (RuntimeValue& feed : feeds) feed = OffAWord(feed.tensor(), *cuda);
  EXPECT_TRUE(SameBits(RunPlan(PlanOf(graph, feeds, {}, {cuda, cpu}), feeds), got));
}

}  // namespace
}  // namespace caesura::testing
