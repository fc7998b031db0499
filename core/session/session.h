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

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/custom_ops/custom_op.h"
#include "core/execute/run_options.h"
#include "core/graph/graph.h"
#include "core/runtime/provider_fallback.h"

namespace caesura {

class ExecutionPlan;  // core/plan/execution_plan.h
class IoBinding;
class Program;   // core/runtime/program.h
class RunQueue;  // run_queue.h

// The options of a Session. Create copies them; a change afterwards has no effect.
struct SessionOptions {
  // Empty: the CPU provider.
  ProviderList providers;
  // Instead of `providers`: made when the session is.
  std::vector<ProviderRequest> requested_providers;
  // True if a failing provider is replaced; see Session::fallback.
  bool fallback = true;
  int threads = 0;           // per kernel; 0: CAESURA_NUM_THREADS, or what OpenMP would take
  bool reuse_memory = true;  // off: every value has bytes of its own (to find corruption)
  // Run on the model before planning, in order, once ops without a kernel are expanded into their
  // function bodies. graph_transforms/pipeline.h makes the usual list: InferencePasses.
  PassMaker passes;
  std::vector<std::string> disabled_passes;  // by name
  uint64_t seed = 0;                         // of random ops without a seed of their own
  CustomOps custom_ops;
};

// An output before the run.
struct OutputSpec {
  std::string name;
  // Dtype and shape follow from the inputs' dtypes and shapes. If not, they depend on the inputs'
  // elements (NonZero, a shape that is fed) or the output is no tensor: bind a device, not a
  // buffer, unless you know better.
  bool known = false;
  DType dtype = DType::kUndefined;
  Shape shape;
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
  const Model& model() const;
  const std::vector<Value*>& inputs() const { return model().graph->inputs(); }
  const std::vector<Value*>& outputs() const { return model().graph->outputs(); }

  // Outputs in the order of `output_names`, or all when that is empty; what only others need is not
  // computed (a plan for each such set). Inputs with an initializer may be left out. Feeds are
  // borrowed in the call; results are the caller's.
  Result<std::vector<RuntimeValue>> Run(const NamedValues& feeds,
                                        const std::vector<std::string>& output_names = {},
                                        RunOptions options = {});

  // One run of what is bound: the outputs, in the order in which they were bound.
  Result<std::vector<RuntimeValue>> Run(const IoBinding& binding, RunOptions options = {});

  // The outputs' types of a run with these inputs, in graph order: for callers who allocate before
  // it.
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
  void WaitForAsyncRuns();

  // The plan that these feeds get: for reports, by headers that are not installed.
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
  Result<std::vector<RuntimeValue>> Bind(const NamedValues& feeds) const;
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
  std::unique_ptr<RunQueue> queue_;  // last: its threads use the rest
};

// Tells where the inputs of runs are and where their outputs go, by name, settled once for many
// runs.
//
//   IoBinding binding(*session);
//   binding.BindInput("x", x);
//   binding.BindOutput("y", buffer);       // into the caller's memory
//   binding.BindOutput("mask", cuda);      // fresh memory of that device
//   auto outputs = session->Run(binding);  // {y, mask}
//
// A binding is a value. A run reads it and changes nothing in it: what the run has made is in the
// results and nowhere else, so the next run (of other shapes, perhaps, or in another thread) meets
// nothing of this one. Copies are cheap and independent.
//
// Ownership: what is bound is held by the binding, bytes included where the tensor's buffer owns
// them (a view's bytes are the caller's to keep). Results in a caller's buffer share it; the
// receiver owns fresh ones.
//
// Synchronisation. Inputs are used where they are and read at run time: nothing is copied when
// they are bound, so what the caller writes to them between runs is what the next run sees. The
// caller must have finished writing before the run begins: writes of other threads, or of a
// device's streams other than the provider's, need to be waited for. Run returns when results on
// the host are complete; results on a device are in order with the work of its provider, and
// Session::Synchronise() waits for them. A caller's buffer holds arbitrary bytes after a failed
// run, but for one that was declared kExact: what it shares with an input is not touched by a run
// that fails.
//
// Thread safety: copies share what they hold until one of them changes. Reading (and running) one
// binding in many threads is fine where its outputs are fresh ones; the caller's buffers serve one
// run at a time. Changing needs the only hand.
class IoBinding {
 public:
  // The bytes that a caller's buffer may share with bound inputs.
  enum class Overlap {
    kRefused,  // no byte
    kExact,  // all of one input's bytes, which are replaced (by one copy) when all else of the run
             // has succeeded
  };

  // The binding keeps the session's address, so the session must live as long as it.
  explicit IoBinding(const Session& session);

  // Binding a name again replaces what was bound to it. All fail with kInvalidArgument, and leave
  // the binding as it was, where the model has no such input or output, or the dtype, rank or a
  // known dim is another one, or memory overlaps that may not. Dims that have no number in the
  // model are checked at run time.
  Status BindInput(const std::string& name, RuntimeValue value);
  // A caller's buffer of just the output's size, on any device of the session's.
  Status BindOutput(const std::string& name, Tensor buffer, Overlap overlap = Overlap::kRefused);
  // Memory of its own in each run, on that device.
  Status BindOutput(const std::string& name, Device device = {});
  void ClearInputs();
  void ClearOutputs();

  // In the order of Run's results.
  std::vector<std::string> output_names() const;

 private:
  friend class Session;
  struct Output {
    size_t index;   // of the graph
    Tensor buffer;  // undefined: a fresh one
    Device device;
    Overlap overlap;
  };
  struct Bound {
    std::vector<RuntimeValue> feeds;  // by input of the graph
    std::vector<Output> outputs;      // as bound
    // Run passes these on, made of `outputs`: by output of the graph; empty where nothing needs to
    // be said.
    std::vector<Tensor> buffers;
    std::vector<std::optional<Device>> devices;
    std::vector<bool> wanted;
    bool buffers_on_feeds = false;
  };
  // Outputs replaced by, or grown by, `output`.
  Status Put(Output output);
  // Puts `changed` in place when nothing in it overlaps that may not.
  Status Adopt(Bound changed);
  std::string NameOf(const Output& output) const {
    return session_->outputs()[output.index]->name();
  }

  const Session* session_;
  std::shared_ptr<const Bound> bound_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_SESSION_SESSION_H_
