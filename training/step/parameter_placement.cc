// SPDX-License-Identifier: Apache-2.0
#include "training/step/parameter_placement.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/plan/device_constants.h"
#include "core/providers/tensor_copy.h"

#include "graph_transforms/order/update_placement.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

// The provider in whose memory parameter `i` of the program belongs; null: the host's.
const ExecutionProvider* HomeOf(const StepProgram& program, int i, const ProviderList& providers) {
  const bool is_statistic = i >= program.trained && i < program.trained + program.statistics;
  const Value* value = program.graph->FindValue(program.parameters[i]);
  const ExecutionProvider* home = nullptr;
  bool first = true;
  for (const Value::Use& use : value->uses()) {
    if (use.node->phase() != Phase::kOptimizer && !is_statistic) continue;
    const ExecutionProvider* wanted = DeviceFor(*use.node, providers);
    if (wanted == nullptr || (!first && wanted != home)) return nullptr;
    home = wanted;
    first = false;
  }
  return home;
}

}  // namespace

void PlaceParameters(const StepProgram& program, const ProviderList& providers) {
  std::vector<std::pair<Value*, Tensor>> moved;
  for (int i = 0; i < static_cast<int>(program.parameters.size()); ++i) {
    Value* value = program.graph->FindValue(program.parameters[i]);
    const Tensor& here = *program.graph->Initializer(value);
    const ExecutionProvider* home = HomeOf(program, i, providers);
    if (home == nullptr || !here.device().is_host()) continue;
    Result<Tensor> there = CopyToDevice(here, *home);
    const Status done = there.ok() ? home->Synchronise() : there.status();
    if (!done.ok()) {
      LogWarning("parameters stay in host memory, each step copies them: " + done.ToString());
      return;
    }
    moved.emplace_back(value, *std::move(there));
  }
  for (auto& [value, tensor] : moved) program.graph->SetInitializer(value, std::move(tensor));
}

Status BringToHost(ParameterSet* parameters, const ProviderList& providers) {
  std::vector<std::pair<int, Tensor>> here;
  for (int i = 0; i < parameters->size(); ++i) {
    const Tensor& tensor = parameters->tensor(i);
    if (tensor.device().is_host()) continue;
    Result<Tensor> copy = HostCopyOf(tensor, providers);
    if (!copy.ok())
      return copy.status().WithPrefix("parameter '" + parameters->name(i) +
                                      "' cannot be brought to the host: ");
    here.emplace_back(i, *std::move(copy));
  }
  for (auto& [i, tensor] : here) parameters->Replace(i, std::move(tensor));
  return {};
}

}  // namespace caesura
