// SPDX-License-Identifier: Apache-2.0
#include "training/parameter_graph.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/execute/subgraph.h"

namespace caesura {

PlanOptions ParameterGraph::Options(const Graph& graph, const std::vector<std::string>& parameters,
                                    PlanOptions options, const ProviderList& providers) {
  for (const std::string& name : parameters) options.parameters.push_back(graph.FindValue(name));
  return WithSubgraphs(std::move(options), providers);
}

ParameterGraph::ParameterGraph(std::shared_ptr<const Graph> graph, const std::vector<std::string>& parameters,
                               ParameterSet* set, const ProviderList& providers, PlanOptions options)
    : graph_(graph), set_(set), plans_(graph, providers, Options(*graph, parameters, std::move(options), providers)) {}

Result<std::vector<RuntimeValue>> ParameterGraph::Order(const NamedValues& feeds, const NamedValues& extra) const {
  std::vector<RuntimeValue> ordered;
  std::string missing;
  size_t used = 0;
  for (const Value* input : graph_->inputs()) {
    auto own = extra.find(input->name());
    if (own != extra.end()) {
      ordered.push_back(own->second);
      continue;
    }
    auto it = feeds.find(input->name());
    if (it != feeds.end()) ++used;
    else if (graph_->Initializer(input) == nullptr) missing += (missing.empty() ? "'" : ", '") + input->name() + "'";
    ordered.push_back(it == feeds.end() ? RuntimeValue() : it->second);
    const bool typed = it != feeds.end() && it->second.is_tensor() && input->type().is_tensor();
    if (typed && input->dtype() != it->second.tensor().dtype()) {
      return InvalidArgument("input '" + input->name() + "' is " + input->type().ToString() + ", got " +
                             DTypeName(it->second.tensor().dtype()) + it->second.tensor().shape().ToString());
    }
  }
  if (!missing.empty()) return InvalidArgument("no value given for input(s) " + missing);
  if (used != feeds.size()) {
    std::string unknown;
    for (const auto& [name, value] : feeds) {
      const Value* input = graph_->FindValue(name);
      if (input == nullptr || !graph_->IsGraphInput(input)) unknown += (unknown.empty() ? "'" : ", '") + name + "'";
    }
    return InvalidArgument("the program has no input(s) " + unknown);
  }
  return ordered;
}

Result<ExecutionState*> ParameterGraph::Start(std::vector<RuntimeValue> feeds, RunOptions options) {
  ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> plan, plans_.Get(feeds));
  Ready& ready = ready_[plan.get()];
  if (ready.state == nullptr) {
    // Plans that fell out of the cache leave their states behind: drop those first.
    if (ready_.size() > PlanCache::kMaxPlans) {
      ready_.clear();
      return Start(std::move(feeds), std::move(options));
    }
    ready.state = std::make_unique<ExecutionState>(plan);
    ready.cache = std::make_unique<ValueCache>(plan->cache_entries());
  }
  options.parameters = set_;
  options.cache = ready.cache.get();
  RETURN_IF_ERROR(ready.state->Start(std::move(feeds), std::move(options)));
  return ready.state.get();
}

Result<std::vector<RuntimeValue>> ParameterGraph::Run(std::vector<RuntimeValue> feeds, RunOptions options) {
  ASSIGN_OR_RETURN(ExecutionState * state, Start(std::move(feeds), std::move(options)));
  ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*state));
  if (outcome != RunOutcome::kFinished) return Internal("a program without yields has yielded");
  return state->TakeFetches();
}

}  // namespace caesura
