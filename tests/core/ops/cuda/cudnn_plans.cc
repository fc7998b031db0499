// SPDX-License-Identifier: Apache-2.0
// Has cuDNN build a plan for each graph of the tests, for a GPU that is described instead of being
// there. A process of its own, as it opens a libcuda.so.1 that does nothing. Prints a line a graph:
// "name: workspace N", or why there is no plan.
//
// Usage: cudnn_plans DEVICE.json LIBRARY..., of which the last is cuDNN.
#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "core/cuda/cuda_libraries.h"
#include "core/ops/attention/cuda_attention_graph.h"
#include "core/ops/conv/cuda_conv_graph.h"
#include "tests/core/ops/cuda/attention_case.h"
#include "tests/core/ops/cuda/conv_case.h"

namespace caesura::testing {
namespace {

void Tell(const std::string& name, const DnnGraph& graph, const DnnTarget& target) {
  const Result<DnnPlan> plan = graph.Plan(target);
  if (plan.ok()) std::printf("%s: workspace %zu\n", name.c_str(), plan->workspace_bytes());
  else std::printf("%s: %s\n", name.c_str(), plan.status().ToString().c_str());
}

int Run(int count, char** arguments) {
  std::ifstream file(arguments[1]);
  const std::string device((std::istreambuf_iterator<char>(file)), {});
  for (int i = 2; i + 1 < count; ++i) {
    if (dlopen(arguments[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) std::printf("%s\n", dlerror());
  }
  const Result<cudnn::Functions> calls = OpenCudnn(arguments[count - 1]);
  if (!calls.ok()) {
    std::printf("%s\n", calls.status().ToString().c_str());
    return 1;
  }
  const DnnTarget target{*calls, nullptr, device};
  for (const AttentionCase& c : FusedAttentionCases()) {
    const AttentionSpec s = c.Spec();
    const std::string name = std::string("Attention") + c.name;
    Tell(name, AttentionGraph(*calls, s, c.dtype, false), target);
    Tell(name + "ForTraining", AttentionGraph(*calls, s, c.dtype, true), target);
    Tell(name + "Gradient", AttentionGradientGraph(*calls, s, c.dtype, {s.q, s.k, s.v}), target);
  }
  for (const ConvCase& c : ConvCases()) {
    const std::string name = std::string("Conv") + c.name;
    const ConvGeometry g = c.Geometry();
    auto of = [&](ConvDirection direction) { return ConvGraph(*calls, c.dtype, direction, g); };
    Tell(name, of(ConvDirection::kForward), target);
    Tell(name + "OfData", of(ConvDirection::kBackwardData), target);
    Tell(name + "OfWeights", of(ConvDirection::kBackwardWeights), target);
  }
  return 0;
}

}  // namespace
}  // namespace caesura::testing

int main(int count, char** arguments) {
  return count < 3 ? 2 : caesura::testing::Run(count, arguments);
}
