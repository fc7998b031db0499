// SPDX-License-Identifier: Apache-2.0
#include "core/session/session.h"

#include <algorithm>
#include <new>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/execute/subgraph.h"
#include "core/plan/function_expansion.h"
#include "core/providers/cpu_provider.h"
#include "core/session/provider_bound.h"

namespace caesura {

namespace {

std::shared_ptr<const ExecutionProvider> PlainCpu() { return MakeCpuProvider(); }

}  // namespace

Session::Session(SessionOptions options, std::shared_ptr<ProviderFallback> fallback)
    : options_(std::move(options)), fallback_(std::move(fallback)) {}

Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::Create(Model model, SessionOptions options) try {
  std::shared_ptr<ProviderFallback> fallback;
  if (!options.requested_providers.empty()) {
    ASSIGN_OR_RETURN(fallback, ProviderFallback::Create(options.requested_providers, PlainCpu, options.fallback));
  } else {
    ProviderList providers = std::move(options.providers);
    if (providers.empty()) providers.push_back(PlainCpu());
    fallback = std::make_shared<ProviderFallback>(std::move(providers), PlainCpu, options.fallback);
  }
  std::unique_ptr<Session> session(new Session(std::move(options), std::move(fallback)));
  RETURN_IF_ERROR(session->Prepare(std::move(model)));
  return session;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a session was made");
}

Status Session::Prepare(Model model) {
  const auto make = [this](Model source, const ProviderList& providers) {
    return MakeProgram(std::move(source), providers);
  };
  ASSIGN_OR_RETURN(program_, ProviderBound<Program>::Create(fallback_, std::move(model), make));
  ASSIGN_OR_RETURN(const auto now, program_->Now());
  model_ = now.program->model;
  return {};
}

Result<std::shared_ptr<Session::Program>> Session::MakeProgram(Model model, const ProviderList& providers) const {
  RETURN_IF_ERROR(ExpandMissingKernels(*model.graph, providers).status());
  RETURN_IF_ERROR(RunPasses(options_.passes, model, options_.disabled_passes).status());
  if (options_.provider_passes) {
    RETURN_IF_ERROR(RunPasses(options_.provider_passes(providers), model, options_.disabled_passes).status());
  }
  auto program = std::make_shared<Program>();
  program->model = std::move(model);
  program->plans = std::make_unique<PlanCache>(program->model.graph, providers, WithSubgraphs(options_.plan, providers));
  return program;
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
  using PlanResult = Result<std::shared_ptr<const ExecutionPlan>>;
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> ordered, OrderFeeds(feeds));
  return program_->Run([&](Program& program) { return program.plans->Get(ordered); },
                       [](const auto&, const std::shared_ptr<const ExecutionPlan>& plan) { return PlanResult(plan); });
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
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> results, RunOrdered(std::move(ordered), std::move(options)));
  if (output_names.empty()) return results;
  std::vector<RuntimeValue> selected;
  for (size_t i : wanted) selected.push_back(results[i]);
  return selected;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a run");
}

Result<std::vector<RuntimeValue>> Session::RunOrdered(std::vector<RuntimeValue> feeds, RunOptions options) {
  if (options.seed == 0) options.seed = options_.seed;
  if (options.step == 0) options.step = runs_++;
  const bool again = fallback_->pending();  // both may be needed a second time
  return program_->Run(
      [&](Program& program) { return program.plans->Get(feeds); },
      [&](const auto& now, const std::shared_ptr<const ExecutionPlan>& plan) {
        return RunPlan(*now.program, plan, again ? feeds : std::move(feeds), again ? options : std::move(options));
      });
}

Result<std::vector<RuntimeValue>> Session::RunPlan(Program& program, const std::shared_ptr<const ExecutionPlan>& plan,
                                                   std::vector<RuntimeValue> feeds, RunOptions options) {
  std::unique_ptr<ExecutionState> state = program.states.Borrow(plan);
  RETURN_IF_ERROR(state->Start(std::move(feeds), std::move(options)));
  ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*state));
  if (outcome != RunOutcome::kFinished) return Unsupported("the model holds a YieldOp; run it through a TrainingSession");
  std::vector<RuntimeValue> results = state->TakeFetches();
  program.states.Return(std::move(state));
  return results;
}

Status Session::RunAsync(NamedValues feeds, std::vector<std::string> output_names,
                         std::function<void(Result<std::vector<RuntimeValue>>)> done, RunOptions options) try {
  return queue_.Add([this, feeds = std::move(feeds), names = std::move(output_names), done = std::move(done),
                     options = std::move(options)] { done(Run(feeds, names, options)); });
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while an asynchronous run was begun");
}

}  // namespace caesura
