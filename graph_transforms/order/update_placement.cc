// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/order/update_placement.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/kernels/kernel_registry.h"

namespace caesura {

const ExecutionProvider* DeviceFor(const Node& node, const ProviderList& providers) {
  const auto first = std::find_if(providers.begin(), providers.end(), [&](const auto& provider) {
    const bool may = node.provider().empty() || node.provider() == provider->name();
    return may && !provider->kernels().Find(node).empty();
  });
  const bool on_device = first != providers.end() && !(*first)->device().is_host();
  return on_device ? first->get() : nullptr;
}

namespace {

class UpdatePlacement : public Pass {
 public:
  UpdatePlacement(std::vector<std::string> parameters, ProviderList providers)
      : names_(std::move(parameters)), providers_(std::move(providers)) {}
  const char* name() const override { return "update_placement"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::unordered_set<const Value*> parameters;
    bool any = false;
    for (const std::string& name : names_) {
      const Value* value = graph.FindValue(name);
      const Tensor* tensor = graph.Initializer(value);
      if (tensor == nullptr) continue;
      parameters.insert(value);
      any |= !tensor->device().is_host();
    }
    bool changed = false;
    for (const auto& node : graph.nodes()) {
      if (!any || node->phase() != Phase::kOptimizer || !node->provider().empty()) continue;
      const ExecutionProvider* provider = DeviceFor(*node, providers_);
      const bool elsewhere =
          provider != nullptr &&
          std::any_of(node->inputs().begin(), node->inputs().end(), [&](const Value* input) {
            return parameters.count(input) > 0 &&
                   graph.Initializer(input)->device() != provider->device();
          });
      if (provider == nullptr || elsewhere) continue;
      node->set_provider(provider->name());
      changed = true;
    }
    return changed;
  }

 private:
  const std::vector<std::string> names_;
  const ProviderList providers_;
};

}  // namespace

std::shared_ptr<Pass> MakeUpdatePlacementPass(std::vector<std::string> parameters,
                                              ProviderList providers) {
  return std::make_shared<UpdatePlacement>(std::move(parameters), std::move(providers));
}

}  // namespace caesura
