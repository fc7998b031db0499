// SPDX-License-Identifier: Apache-2.0
#include "core/session/session.h"

#include <algorithm>
#include <new>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/execute/subgraph.h"
#include "core/plan/function_expansion.h"
#include "core/plan/subgraph_partition.h"
#include "core/providers/cpu_provider.h"

namespace caesura {

Result<std::unique_ptr<Session>> Session::Create(Model model, SessionOptions options) try {
  std::unique_ptr<Session> session(new Session(std::move(model), std::move(options)));
  RETURN_IF_ERROR(session->Prepare());
  return session;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a session was made");
}

Status Session::Prepare() {
  if (options_.providers.empty()) options_.providers.push_back(MakeCpuProvider());
  RETURN_IF_ERROR(ExpandMissingKernels(*model_.graph, options_.providers).status());
  PassList passes = options_.passes;
  // What the list has not offered them, or made anew.
  if (AnyCompiles(options_.providers)) passes.push_back(MakeSubgraphPartitionPass(options_.providers));
  RETURN_IF_ERROR(RunPasses(passes, model_, options_.disabled_passes).status());
  plans_ = std::make_unique<PlanCache>(model_.graph, options_.providers,
                                       WithSubgraphs(options_.plan, options_.providers));
  return {};
}

Result<std::vector<RuntimeValue>> Session::OrderFeeds(const NamedValues& feeds) const {
  std::vector<RuntimeValue> ordered;
  std::string missing;
  for (const Value* input : inputs()) {
    auto it = feeds.find(input->name());
    const bool optional = input->type().kind == ValueType::Kind::kOptional;
    if (it == feeds.end() && !optional && model_.graph->Initializer(input) == nullptr) {
      missing += (missing.empty() ? "'" : ", '") + input->name() + "'";
    }
    ordered.push_back(it == feeds.end() ? RuntimeValue() : it->second);
    if (it == feeds.end() || !it->second.is_tensor() || !input->type().is_tensor()) continue;
    if (it->second.tensor().dtype() != input->dtype()) {
      return InvalidArgument("input '" + input->name() + "' is " + input->type().ToString() + ", got " +
                             DTypeName(it->second.tensor().dtype()) + it->second.tensor().shape().ToString());
    }
    const auto& shape = input->type().shape;
    const Shape& given = it->second.tensor().shape();
    bool fits = !shape || static_cast<int>(shape->size()) == given.rank();
    for (int i = 0; fits && shape && i < given.rank(); ++i) fits = !(*shape)[i].known() || (*shape)[i].value == given[i];
    if (!fits) {
      return InvalidArgument("input '" + input->name() + "' is " + input->type().ToString() + ", got " +
                             DTypeName(it->second.tensor().dtype()) + given.ToString());
    }
  }
  if (!missing.empty()) return InvalidArgument("no value given for input(s) " + missing);
  std::string unknown;
  for (const auto& [name, value] : feeds) {
    const bool found = std::any_of(inputs().begin(), inputs().end(), [&, &name = name](const Value* v) { return v->name() == name; });
    if (!found) unknown += (unknown.empty() ? "'" : ", '") + name + "'";
  }
  if (!unknown.empty()) return InvalidArgument("the model has no input(s) " + unknown);
  return ordered;
}

Result<std::shared_ptr<const ExecutionPlan>> Session::Plan(const NamedValues& feeds) try {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> ordered, OrderFeeds(feeds));
  return plans_->Get(ordered);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was planned");
}

Result<std::vector<RuntimeValue>> Session::Run(const NamedValues& feeds, const std::vector<std::string>& output_names,
                                               RunOptions options) try {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> ordered, OrderFeeds(feeds));
  std::vector<size_t> wanted;
  for (const std::string& name : output_names) {
    auto it = std::find_if(outputs().begin(), outputs().end(), [&](const Value* v) { return v->name() == name; });
    if (it == outputs().end()) return InvalidArgument("the model has no output '" + name + "'");
    wanted.push_back(it - outputs().begin());
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> plan, plans_->Get(ordered));
  std::unique_ptr<ExecutionState> state = states_.Borrow(plan);
  if (options.seed == 0) options.seed = options_.seed;
  if (options.step == 0) options.step = runs_++;
  RETURN_IF_ERROR(state->Start(std::move(ordered), std::move(options)));
  ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*state));
  if (outcome != RunOutcome::kFinished) return Unsupported("the model holds a YieldOp; run it through a TrainingSession");
  std::vector<RuntimeValue> results = state->TakeFetches();
  states_.Return(std::move(state));
  if (output_names.empty()) return results;
  std::vector<RuntimeValue> selected;
  for (size_t i : wanted) selected.push_back(results[i]);
  return selected;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a run");
}

}  // namespace caesura
