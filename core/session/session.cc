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
    ASSIGN_OR_RETURN(fallback, ProviderFallback::Create(options.requested_providers, PlainCpu,
                                                        options.fallback));
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
  ASSIGN_OR_RETURN(ops_, OpBinding::Create(options_.custom_ops));
  RETURN_IF_ERROR(ops_->Attach(model));
  const auto make = [this](Model source, const ProviderList& providers) {
    return MakeProgram(std::move(source), providers);
  };
  ASSIGN_OR_RETURN(program_, ProviderBound<Program>::Create(fallback_, std::move(model), make));
  ASSIGN_OR_RETURN(const auto now, program_->Now());
  model_ = now.program->model;
  return {};
}

Result<std::shared_ptr<Session::Program>> Session::MakeProgram(Model model,
                                                               const ProviderList& given) const {
  ASSIGN_OR_RETURN(const ProviderList providers, ops_->WithKernels(given));
  RETURN_IF_ERROR(ExpandMissingKernels(*model.graph, providers).status());
  PassList passes = options_.passes ? options_.passes(providers) : PassList();
  // What the list has not offered them, or made anew.
  if (AnyCompiles(providers)) passes.push_back(MakeSubgraphPartitionPass(providers));
  RETURN_IF_ERROR(RunPasses(passes, model, options_.disabled_passes).status());
  RETURN_IF_ERROR(CheckKernels(*model.graph, providers));
  auto program = std::make_shared<Program>();
  program->model = std::move(model);
  program->plans = std::make_unique<PlanCache>(program->model.graph, providers,
                                               WithSubgraphs(options_.plan, providers));
  return program;
}

bool Session::Fits(const ValueType& type, const Tensor& tensor) {
  const auto& shape = type.shape;
  const Shape& given = tensor.shape();
  bool fits = (type.dtype == DType::kUndefined || tensor.dtype() == type.dtype) &&
              (!shape || static_cast<int>(shape->size()) == given.rank());
  for (int i = 0; fits && shape && i < given.rank(); ++i)
    fits = !(*shape)[i].known() || (*shape)[i].value == given[i];
  return fits;
}

bool Session::FitsMap(const ValueType& type, const RuntimeValue& value) {
  if (!value.is_map()) return false;
  const RuntimeValue::MapEntries& entries = value.map();
  const bool one_value_each =
      entries.keys.shape().rank() == 1 && entries.values.shape() == entries.keys.shape();
  // The element of an empty map has no type.
  return one_value_each &&
         (entries.keys.elements() == 0 || (entries.keys.dtype() == type.key && type.element &&
                                           entries.values.dtype() == type.element->dtype));
}

Status Session::CheckFeed(const Value& input, const RuntimeValue& value) {
  if (!value.has_value()) return {};
  const ValueType& type = input.type();
  bool fits = true;
  switch (type.kind) {
    case ValueType::Kind::kTensor: fits = value.is_tensor() && Fits(type, value.tensor()); break;
    case ValueType::Kind::kSequence: fits = value.is_sequence(); break;
    case ValueType::Kind::kMap: fits = FitsMap(type, value); break;
    case ValueType::Kind::kOptional:
    case ValueType::Kind::kUnknown: break;  // the kernel that reads it decides
  }
  if (fits) return {};
  return InvalidArgument("input '" + input.name() + "' is " + type.ToString() + ", got " +
                         value.Describe());
}

Status Session::CheckComplete(const std::vector<RuntimeValue>& feeds) const {
  std::string missing;
  for (size_t i = 0; i < feeds.size(); ++i) {
    const Value* input = inputs()[i];
    if (feeds[i].has_value() || input->type().kind == ValueType::Kind::kOptional) continue;
    if (model_.graph->Initializer(input) == nullptr)
      missing += (missing.empty() ? "'" : ", '") + input->name() + "'";
  }
  return missing.empty() ? Status() : InvalidArgument("no value given for input(s) " + missing);
}

Result<std::vector<RuntimeValue>> Session::OrderFeeds(const NamedValues& feeds) const {
  std::vector<RuntimeValue> ordered;
  ordered.reserve(inputs().size());
  size_t found = 0;
  for (const Value* input : inputs()) {
    auto it = feeds.find(input->name());
    found += it != feeds.end();
    ordered.push_back(it == feeds.end() ? RuntimeValue() : it->second);
    RETURN_IF_ERROR(CheckFeed(*input, ordered.back()));
  }
  RETURN_IF_ERROR(CheckComplete(ordered));
  if (found == feeds.size()) return ordered;
  std::string unknown;
  for (const auto& [name, value] : feeds) {
    const bool known = std::any_of(inputs().begin(), inputs().end(),
                                   [&, &name = name](const Value* v) { return v->name() == name; });
    if (!known) unknown += (unknown.empty() ? "'" : ", '") + name + "'";
  }
  return InvalidArgument("the model has no input(s) " + unknown);
}

Result<std::shared_ptr<const ExecutionPlan>> Session::PlanOrdered(
    const std::vector<RuntimeValue>& feeds) {
  using PlanResult = Result<std::shared_ptr<const ExecutionPlan>>;
  return program_->Run([&](Program& program) { return program.plans->Get(feeds); },
                       [](const auto&, const std::shared_ptr<const ExecutionPlan>& plan) {
                         return PlanResult(plan);
                       });
}

Result<std::shared_ptr<const ExecutionPlan>> Session::Plan(const NamedValues& feeds) try {
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> ordered, OrderFeeds(feeds));
  return PlanOrdered(ordered);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was planned");
}

Result<std::vector<RuntimeValue>> Session::Run(const NamedValues& feeds,
                                               const std::vector<std::string>& output_names,
                                               RunOptions options) try {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> ordered, OrderFeeds(feeds));
  std::vector<size_t> indices;
  for (const std::string& name : output_names) {
    auto it = std::find_if(outputs().begin(), outputs().end(),
                           [&](const Value* v) { return v->name() == name; });
    if (it == outputs().end()) return InvalidArgument("the model has no output '" + name + "'");
    indices.push_back(it - outputs().begin());
  }
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> results,
                   RunOrdered(std::move(ordered), std::move(options), WantedOutputs(indices)));
  if (output_names.empty()) return results;
  std::vector<RuntimeValue> selected;
  for (size_t i : indices) selected.push_back(results[i]);
  return selected;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a run");
}

std::vector<bool> Session::WantedOutputs(const std::vector<size_t>& indices) const {
  if (indices.empty()) return {};
  std::vector<bool> wanted(outputs().size(), false);
  for (size_t i : indices) wanted[i] = true;
  return std::find(wanted.begin(), wanted.end(), false) == wanted.end() ? std::vector<bool>()
                                                                        : wanted;
}

Result<std::vector<RuntimeValue>> Session::RunOrdered(
    std::vector<RuntimeValue> feeds, RunOptions options, const std::vector<bool>& wanted,
    const std::vector<std::optional<Device>>& fetch_devices) {
  if (options.seed == 0) options.seed = options_.seed;
  if (options.step == 0) options.step = runs_++;
  const bool again = fallback_->pending();  // both may be needed a second time
  return program_->Run(
      [&](Program& program) { return program.plans->Get(feeds, {}, &fetch_devices, wanted); },
      [&](const auto& now, const std::shared_ptr<const ExecutionPlan>& plan) {
        return RunPlan(*now.program, plan, again ? feeds : std::move(feeds),
                       again ? options : std::move(options));
      });
}

Result<std::vector<RuntimeValue>> Session::RunPlan(Program& program,
                                                   const std::shared_ptr<const ExecutionPlan>& plan,
                                                   std::vector<RuntimeValue> feeds,
                                                   RunOptions options) {
  std::unique_ptr<ExecutionState> state = program.states.Borrow(plan);
  RETURN_IF_ERROR(state->Start(std::move(feeds), std::move(options)));
  ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*state));
  if (outcome != RunOutcome::kFinished)
    return Unsupported("the model holds a YieldOp; run it through a TrainingSession");
  std::vector<RuntimeValue> results = state->TakeFetches();
  program.states.Return(std::move(state));
  return results;
}

Status Session::RunAsync(NamedValues feeds, std::vector<std::string> output_names,
                         std::function<void(Result<std::vector<RuntimeValue>>)> done,
                         RunOptions options) try {
  return queue_.Add([this, feeds = std::move(feeds), names = std::move(output_names),
                     done = std::move(done),
                     options = std::move(options)] { done(Run(feeds, names, options)); });
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while an asynchronous run was begun");
}

Result<RuntimeValue> Session::ToHost(const RuntimeValue& value) const {
  if (!value.is_tensor() || value.tensor().device().is_host()) return value;
  const Tensor& there = value.tensor();
  for (const auto& provider : fallback_->providers()) {
    if (provider->device() != there.device()) continue;
    ASSIGN_OR_RETURN(Tensor here, Tensor::Allocate(there.dtype(), there.shape()));
    RETURN_IF_ERROR(provider->Copy(CopyKind::kToHost, here.raw(), there.raw(), there.bytes()));
    RETURN_IF_ERROR(provider->Synchronise());
    return RuntimeValue(std::move(here));
  }
  return InvalidArgument("a tensor is on " + there.device().ToString() +
                         ", which no provider serves");
}

Status Session::Synchronise() const {
  for (const auto& provider : fallback_->providers()) RETURN_IF_ERROR(provider->Synchronise());
  return {};
}

}  // namespace caesura
