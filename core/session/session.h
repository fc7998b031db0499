// SPDX-License-Identifier: Apache-2.0
// Session: a model made ready to run, for inference and evaluation.
//
//   auto session = caesura::Session::Create(caesura::ReadModel("net.onnx").value()).value();
//   auto outputs = session->Run({{"x", x}}).value();
//
// A session whose provider fails goes on with the default providers (provider_fallback.h), unless
// that is disabled.
//
// Thread safety: all methods from any number of threads at the same time.
#ifndef CAESURA_CORE_SESSION_SESSION_H_
#define CAESURA_CORE_SESSION_SESSION_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/custom_ops/custom_op.h"
#include "core/graph/graph.h"
#include "core/graph/pass.h"
#include "core/runtime/feeds.h"
#include "core/runtime/program.h"
#include "core/runtime/provider_fallback.h"
#include "core/session/run_queue.h"

namespace caesura {

class IoBinding;
struct OutputSpec;

// The options of a Session. Create copies them; a change afterwards has no effect.
struct SessionOptions {
  // Empty: the CPU provider.
  ProviderList providers;
  // Instead of `providers`: made when the session is.
  std::vector<ProviderRequest> requested_providers;
  // True if a failing provider is replaced; see Session::fallback.
  bool fallback = true;
  PlanOptions plan;
  // Run on the model before planning, in order, once ops without a kernel are expanded into their
  // function bodies. graph_transforms/pipeline.h makes the usual list: InferencePasses.
  PassMaker passes;
  std::vector<std::string> disabled_passes;  // by name
  uint64_t seed = 0;                         // of random ops without a seed of their own
  CustomOps custom_ops;
};

// Runs one model for inference. The session owns the model; callers own the results of runs.
class Session {
 public:
  // The model is the session's own from here on. Fails, listing all of them, on nodes that nothing
  // can run.
  static Result<std::unique_ptr<Session>> Create(Model model, SessionOptions options = {});
  // Waits for asynchronous runs.
  ~Session();

  // As it was prepared when the session was made, whichever providers run it now.
  const Model& model() const { return program_->model(); }
  const std::vector<Value*>& inputs() const { return model().graph->inputs(); }
  const std::vector<Value*>& outputs() const { return model().graph->outputs(); }

  // Outputs in the order of `output_names`, or all when that is empty; what only others need is not
  // computed (a plan for each such set). Inputs with an initializer may be left out. Feeds are
  // borrowed in the call; results are the caller's.
  Result<std::vector<RuntimeValue>> Run(const NamedValues& feeds,
                                        const std::vector<std::string>& output_names = {},
                                        RunOptions options = {});

  // One run of what is bound (io_binding.h): the outputs, in the order in which they were bound.
  Result<std::vector<RuntimeValue>> Run(const IoBinding& binding, RunOptions options = {});

  // The outputs' types of a run with these inputs, in graph order: for callers who allocate before
  // it (io_binding.h).
  Result<std::vector<OutputSpec>> OutputSpecs(const NamedValues& feeds);
  Result<std::vector<OutputSpec>> OutputSpecs(const IoBinding& binding);

  // Waits for all work of all devices that was begun before.
  Status Synchronise() const;

  // A tensor that a run has left on a device, copied to the host and waited for; what is there
  // already comes as it is.
  Result<RuntimeValue> ToHost(const RuntimeValue& value) const;

  // As the first Run, on a thread of the session's, which then calls `done` once with what Run
  // returns. The feeds' bytes must stay until then, and so must what `options` points at. `done`
  // may destroy the session, which then waits for all other runs. Where this returns an error
  // `done` is not called.
  Status RunAsync(NamedValues feeds, std::vector<std::string> output_names,
                  std::function<void(Result<std::vector<RuntimeValue>>)> done,
                  RunOptions options = {});
  // Until all asynchronous runs have ended and their `done` have returned; called in one of these,
  // all others.
  void WaitForAsyncRuns() { queue_.Wait(); }

  // The plan that these feeds get.
  Result<std::shared_ptr<const ExecutionPlan>> Plan(const NamedValues& feeds);

  // The providers, and what became of one that has failed.
  ProviderFallback& fallback() { return *fallback_; }
  const ProviderFallback& fallback() const { return *fallback_; }

 private:
  friend class IoBinding;
  Session(SessionOptions options, std::shared_ptr<ProviderFallback> fallback);
  Status Prepare(Model model);
  // As PlanOptions::wanted_fetches has it; `indices`: of outputs, none for all of them.
  std::vector<bool> WantedOutputs(const std::vector<size_t>& indices) const;
  // Names and types to positions, as BindFeeds.
  Result<std::vector<RuntimeValue>> Bind(const NamedValues& feeds) const {
    return BindFeeds(*model().graph, feeds, FeedCheck::kType);
  }
  // Feeds by graph input; outputs in graph order, each on its device, those that are not wanted
  // absent (`fetch_devices` and `wanted` as in PlanOptions).
  Result<std::vector<RuntimeValue>> RunBound(
      std::vector<RuntimeValue> feeds, RunOptions options, const std::vector<bool>& wanted,
      const std::vector<std::optional<Device>>& fetch_devices = {});
  Result<std::vector<OutputSpec>> SpecsOf(const std::vector<RuntimeValue>& feeds);

  const SessionOptions options_;  // but for the providers
  const std::shared_ptr<ProviderFallback> fallback_;
  std::unique_ptr<Program> program_;
  std::atomic<uint64_t> runs_{0};
  RunQueue queue_;  // last: its threads use the rest
};

}  // namespace caesura

#endif  // CAESURA_CORE_SESSION_SESSION_H_
