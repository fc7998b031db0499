// SPDX-License-Identifier: Apache-2.0
// What a torch tensor costs on its way in and out, from C++ (tensor_exchange.py: from Python):
//   build/bin/tensor_exchange --benchmark_repetitions=5
#include <ATen/Functions.h>
#include <benchmark/benchmark.h>

#include "torch_bridge/torch_tensor.h"

namespace {

void In(benchmark::State& state) {
  const at::Tensor source = at::ones({64, 64});
  for (auto _ : state) benchmark::DoNotOptimize(caesura::torch::FromTorch(source));
}

void Out(benchmark::State& state) {
  const caesura::Tensor source = caesura::torch::FromTorch(at::ones({64, 64})).value();
  for (auto _ : state) benchmark::DoNotOptimize(caesura::torch::ToTorch(source));
}

BENCHMARK(In);
BENCHMARK(Out);

}  // namespace

BENCHMARK_MAIN();
