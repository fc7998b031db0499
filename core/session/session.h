// SPDX-License-Identifier: Apache-2.0
// Session: a model made ready to run, for inference and evaluation.
//
//   auto session = caesura::Session::Create(caesura::ReadModel("net.onnx").value()).value();
//   auto outputs = session->Run({{"x", x}}).value();
//
// Thread safety: Run from any number of threads at the same time.
#ifndef CAESURA_CORE_SESSION_SESSION_H_
#define CAESURA_CORE_SESSION_SESSION_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/execute/state_pool.h"
#include "core/graph/graph.h"
#include "core/graph/pass.h"
#include "core/plan/plan_cache.h"
#include "core/session/custom_op.h"

namespace caesura {

class IoBinding;
struct OutputSpec;

using NamedValues = std::map<std::string, RuntimeValue>;

struct SessionOptions {
  // Empty: the CPU provider.
  ProviderList providers;
  PlanOptions plan;
  // Run on the model before planning, in order, once ops without a kernel are expanded into their function bodies.
  // graph_transforms/pipeline.h makes the usual list, InferencePasses(providers).
  PassList passes;
  std::vector<std::string> disabled_passes;  // by name
  uint64_t seed = 0;  // of random ops without a seed of their own
  CustomOps custom_ops;
};

class Session {
 public:
  // The model is the session's own from here on. Fails, listing all of them, on nodes that nothing can run.
  static Result<std::unique_ptr<Session>> Create(Model model, SessionOptions options = {});

  const Model& model() const { return model_; }
  const std::vector<Value*>& inputs() const { return model_.graph->inputs(); }
  const std::vector<Value*>& outputs() const { return model_.graph->outputs(); }

  // Outputs in the order of `output_names`, or all in graph order when that is empty. Inputs that have an
  // initializer may be left out. Feeds are borrowed during the call; results are the caller's.
  Result<std::vector<RuntimeValue>> Run(const NamedValues& feeds, const std::vector<std::string>& output_names = {},
                                        RunOptions options = {});

  // One run of what is bound (io_binding.h): the outputs, in the order in which they were bound.
  Result<std::vector<RuntimeValue>> Run(const IoBinding& binding, RunOptions options = {});

  // What a run with these inputs will give, in graph order: for callers who allocate before it (io_binding.h).
  Result<std::vector<OutputSpec>> OutputSpecs(const NamedValues& feeds);
  Result<std::vector<OutputSpec>> OutputSpecs(const IoBinding& binding);

  // Waits for all work of all devices that was begun before.
  Status Synchronise() const;

  // A tensor that a run has left on a device, copied to the host and waited for; what is there already comes as it is.
  Result<RuntimeValue> ToHost(const RuntimeValue& value) const;

  // The plan that these feeds get.
  Result<std::shared_ptr<const ExecutionPlan>> Plan(const NamedValues& feeds);

 private:
  friend class IoBinding;
  Session(Model model, SessionOptions options) : model_(std::move(model)), options_(std::move(options)) {}
  Status Prepare();
  Result<std::vector<RuntimeValue>> OrderFeeds(const NamedValues& feeds) const;
  // What of a value shows before a run that the input cannot take.
  static Status CheckFeed(const Value& input, const RuntimeValue& value);
  // Names the inputs, by position, that have neither a value nor a default.
  Status CheckComplete(const std::vector<RuntimeValue>& feeds) const;
  // Feeds by graph input; all outputs in graph order, each on its device of `fetch_devices` (as in PlanOptions).
  Result<std::vector<RuntimeValue>> RunOrdered(std::vector<RuntimeValue> feeds, RunOptions options,
                                               const std::vector<std::optional<Device>>& fetch_devices = {});
  Result<std::vector<OutputSpec>> SpecsOf(const std::vector<RuntimeValue>& feeds);

  Model model_;
  SessionOptions options_;
  std::unique_ptr<OpBinding> ops_;
  std::unique_ptr<PlanCache> plans_;
  StatePool states_{/*capacity=*/16};
  std::atomic<uint64_t> runs_{0};
};

}  // namespace caesura

#endif  // CAESURA_CORE_SESSION_SESSION_H_
