// SPDX-License-Identifier: Apache-2.0
// Casts of many tensors of all sizes: the CPU's bits, by as few launches as a table of tensors
// allows.
#include <cmath>
#include <map>
#include <random>

#include "core/plan/device_constants.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

using CudaCastAll = StandinCuda;

// Sizes around those of a chunk of CudaTensorTable, none, and more tensors than one table holds.
Values TensorsToCast(DType dtype) {
  constexpr int64_t kChunk = 2048;
  std::vector<int64_t> sizes = {1, 0, 3, kChunk, kChunk + 1, 2 * kChunk - 1};
  sizes.resize(120, 7);
  std::mt19937 random(5);
  Values out;
  for (int64_t size : sizes) {
    Tensor tensor = Tensor::Zeros(dtype, Shape{size});
    for (int64_t i = 0; i < size; ++i) {
      const float x = std::ldexp(static_cast<float>(random() % 4001) - 2000,
                                 static_cast<int>(random() % 40) - 30);
      DispatchFloat(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        tensor.data<T>()[i] = static_cast<T>(i == 2 ? INFINITY : x);
      });
    }
    out.push_back(tensor);
  }
  return out;
}

TEST_F(CudaCastAll, GivesTheCpusBits) {
  const auto cpu = MakeCpuProvider(), cuda = Provider();
  const std::multimap<DType, DType> casts = {{DType::kFloat32, DType::kBFloat16},
                                             {DType::kFloat32, DType::kFloat16},
                                             {DType::kFloat32, DType::kFloat64},
                                             {DType::kBFloat16, DType::kFloat32}};
  for (const auto& [from, to] : casts) {
    SCOPED_TRACE(std::string(DTypeName(from)) + " to " + DTypeName(to));
    const Values feeds = TensorsToCast(from);
    auto graph = std::make_shared<Graph>("casts");
    std::vector<Value*> inputs;
    for (const RuntimeValue& feed : feeds)
      inputs.push_back(graph->AddInput("x" + std::to_string(inputs.size()),
                                       ValueType::Tensor(from, feed.tensor().shape())));
    Node* node = graph->AddOp("CastAll", inputs, {{"to", static_cast<int64_t>(to)}}, kCaesuraDomain,
                              static_cast<int>(inputs.size()), "casts");
    for (Value* output : node->outputs()) graph->AddOutput(output);
    const Values wanted = RunPlan(PlanOf(graph, feeds, {}, {cpu}), feeds);
    const uint64_t before = Operations("kernel ");
    const Values got = RunPlan(PlanOf(graph, feeds, {}, {cuda, cpu}), feeds);
    if (!OnGpu()) {
      EXPECT_EQ(Operations("kernel cast_all") - before, 2u);
    }
    EXPECT_TRUE(SameBits(got, wanted));
    // From addresses that are no multiples of 16.
    Values off;
    for (const RuntimeValue& feed : feeds) {
      const Tensor& tensor = feed.tensor();
      Tensor room = Tensor::Zeros(from, Shape{tensor.elements() + 1});
      std::memcpy(room.data<char>() + DTypeSize(from), tensor.raw(), tensor.bytes());
      room = CopyToDevice(room, *cuda).value();
      off.push_back(Tensor(from, tensor.shape(), room.buffer(), DTypeSize(from)));
    }
    EXPECT_TRUE(SameBits(RunPlan(PlanOf(graph, off, {}, {cuda, cpu}), off), wanted));
  }
}

}  // namespace
}  // namespace caesura::testing
