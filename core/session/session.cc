// SPDX-License-Identifier: Apache-2.0
#include "core/session/session.h"

#include <algorithm>
#include <new>

#include "core/base/status_macros.h"
#include "core/custom_ops/op_binding.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/tensor_copy.h"
#include "core/runtime/feeds.h"
#include "core/runtime/program.h"
#include "core/session/run_queue.h"

namespace caesura {
namespace {

std::shared_ptr<const ExecutionProvider> PlainCpu() { return MakeCpuProvider(); }

}  // namespace

Session::Session(SessionOptions options, std::shared_ptr<ProviderFallback> fallback)
    : options_(std::move(options)),
      fallback_(std::move(fallback)),
      queue_(std::make_unique<RunQueue>()) {}

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
  ASSIGN_OR_RETURN(const std::shared_ptr<OpBinding> ops, OpBinding::Create(options_.custom_ops));
  RETURN_IF_ERROR(ops->Attach(model));
  ASSIGN_OR_RETURN(
      program_,
      Program::Create(std::move(model), fallback_,
                      {.plan = {.threads = options_.threads, .reuse_memory = options_.reuse_memory},
                       .ops = ops,
                       .passes = options_.passes,
                       .disabled_passes = options_.disabled_passes}));
  return {};
}

const Model& Session::model() const { return program_->model(); }

void Session::WaitForAsyncRuns() { queue_->Wait(); }

Result<std::vector<RuntimeValue>> Session::Bind(const NamedValues& feeds) const {
  return BindFeeds(*model().graph, feeds, FeedCheck::kType);
}

Result<std::shared_ptr<const ExecutionPlan>> Session::Plan(const NamedValues& feeds) try {
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> bound, Bind(feeds));
  return program_->Plan(bound);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was planned");
}

Result<std::vector<RuntimeValue>> Session::Run(const NamedValues& feeds,
                                               const std::vector<std::string>& output_names,
                                               RunOptions options) try {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> bound, Bind(feeds));
  std::vector<size_t> indices;
  for (const std::string& name : output_names) {
    auto it = std::find_if(outputs().begin(), outputs().end(),
                           [&](const Value* v) { return v->name() == name; });
    if (it == outputs().end()) return InvalidArgument("the model has no output '" + name + "'");
    indices.push_back(it - outputs().begin());
  }
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> results,
                   RunBound(std::move(bound), std::move(options), WantedOutputs(indices)));
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

Result<std::vector<RuntimeValue>> Session::RunBound(
    std::vector<RuntimeValue> feeds, RunOptions options, const std::vector<bool>& wanted,
    const std::vector<std::optional<Device>>& fetch_devices) {
  if (!options.seed) options.seed = options_.seed;
  if (!options.step) options.step = runs_++;
  RunResult result = program_->Run({.feeds = std::move(feeds),
                                    .options = std::move(options),
                                    .plan = {.fetch_devices = fetch_devices, .wanted = wanted}});
  if (!result.status.ok()) return result.status;
  return std::move(result.values);
}

Status Session::RunAsync(NamedValues feeds, std::vector<std::string> output_names,
                         std::function<void(Result<std::vector<RuntimeValue>>)> done,
                         RunOptions options) try {
  return queue_->Add([this, feeds = std::move(feeds), names = std::move(output_names),
                      done = std::move(done),
                      options = std::move(options)] { done(Run(feeds, names, options)); });
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while an asynchronous run was begun");
}

Result<RuntimeValue> Session::ToHost(const RuntimeValue& value) const {
  if (!value.is_tensor()) return value;
  ASSIGN_OR_RETURN(Tensor here, caesura::ToHost(value.tensor(), fallback_->providers()));
  return RuntimeValue(std::move(here));
}

Status Session::Synchronise() const {
  for (const auto& provider : fallback_->providers()) RETURN_IF_ERROR(provider->Synchronise());
  return {};
}

}  // namespace caesura
