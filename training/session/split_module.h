// SPDX-License-Identifier: Apache-2.0
// SplitModule: a model cut after its outputs. Forward runs up to the cut and hands the outputs
// out; Backward takes their gradients in and goes on. What stands between them (a loss, another
// module) is the caller's.
//
//   auto module = SplitModule::Create(ReadModel("net.onnx").value(), {.inputs = {"x"}}).value();
//   ForwardRun run = module->Forward({{"x", x}}).value();
//   std::vector<RuntimeValue> gradients = run.Backward({dy}).value();  // of gradient_names()
#ifndef CAESURA_TRAINING_SESSION_SPLIT_MODULE_H_
#define CAESURA_TRAINING_SESSION_SPLIT_MODULE_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/custom_ops/custom_op.h"
#include "core/graph/graph.h"
#include "core/runtime/provider_fallback.h"
#include "training/step/step_options.h"

namespace caesura {

class ExecutionObserver;   // core/execute/execution_observer.h
class ParameterSet;        // core/execute/parameter_set.h
class Program;             // core/runtime/program.h
class WaitingRun;          // core/runtime/program.h
struct CpuFallbackReport;  // graph_transforms/shapes/cpu_fallback.h

// A model without anything to train may still have gradients of its inputs.
struct SplitModuleOptions : TrainableOptions {
  std::vector<std::string> inputs;  // graph inputs whose gradients are wanted
  // Batch statistics and dropout in Forward; false: the model as it is, with running statistics and
  // without dropout.
  bool training = true;
  // Running variances are unbiased, as StepOptions::unbiased_statistics.
  bool unbiased_statistics = false;
  ProviderList providers;  // empty: the CPU provider
  bool fallback = true;    // whether a failing provider is replaced; see SplitModule::fallback
  // True leaves the gradients that Backward returns in the memory of the device that makes them;
  // false brings them to the host. Outputs stay where they were made in any case.
  bool gradients_on_device = false;
  // True leaves what Predict returns in the memory of the device that makes it.
  bool predictions_on_device = false;
  // Names of inputs that will be fed on the device, as TrainingOptions::device_inputs.
  std::unordered_set<std::string> device_inputs = {};
  int threads = 0;    // per kernel; 0: CAESURA_NUM_THREADS, or what OpenMP would take
  uint64_t seed = 0;  // of dropout and other random ops; each Forward draws other numbers
  std::vector<std::string> disabled_passes;
  // The parameters are the model's initializers themselves, no copies: whoever holds them may write
  // to them while no run waits for its backward. Nothing that is derived from parameters outlives a
  // run, and running statistics are written to where they stand, also under the eyes of runs in
  // flight.
  bool share_parameters = false;
  CustomOps custom_ops;
};

// A forward run that waits for the gradients of its outputs. Dropped without a Backward, it gives
// its memory back to the module's next run. It needs nothing but itself: it may outlive its module.
//
// Thread safety: one thread at a time, which may be another one for Backward. Runs of one module
// are independent.
class ForwardRun {
 public:
  ForwardRun(ForwardRun&&) noexcept;
  ForwardRun& operator=(ForwardRun&& other) noexcept;
  ~ForwardRun();

  // The model's outputs, in order: the caller's, to keep, overwrite or drop at any time.
  std::vector<RuntimeValue> outputs;

  // Gradients of inputs and parameters, in the order of SplitModule::gradient_names().
  // `output_gradients`: one entry for each output; absent ones stand for zeros, and must be absent
  // for outputs that no gradient can come in for (an integer, or what depends on nothing that is
  // differentiated). They are borrowed during the call.
  //
  // With `keep` the run stays as it was and another Backward gives the same bits; without, it is
  // over. Fails when it was over before; and, with the run as it was, on gradients of a wrong
  // count, dtype or shape. Where a provider fails the forward is done again as well, on the default
  // providers (core/runtime/provider_fallback.h).
  Result<std::vector<RuntimeValue>> Backward(std::vector<RuntimeValue> output_gradients,
                                             bool keep = false);
  // Writes the run to a file, crash-atomically: what its backward reads, the parameters that it
  // began with, and `outputs`. It goes on waiting here too. Fails where the run is over.
  Status Save(const std::string& path) const;
  // True if Backward can be called.
  bool pending() const;

 private:
  friend class SplitModule;
  struct Program;
  ForwardRun();
  Result<std::vector<RuntimeValue>> ByYield(std::vector<RuntimeValue> output_gradients) const;

  std::shared_ptr<Program> program_;
  std::shared_ptr<ParameterSet> parameters_;  // as they were when the run began
  std::vector<ExecutionObserver*> observers_;
  std::unique_ptr<WaitingRun> run_;  // null or no run once it is over
};

// A model as two halves, forward and backward. It owns the parameters; callers own gradients and
// outputs.
//
// Thread safety: all methods from any thread. Forwards that run at the same time read the same
// running statistics, and those of the one that ends last stay.
class SplitModule {
 public:
  // Fails listing all nodes that have no gradient or no kernel.
  static Result<std::unique_ptr<SplitModule>> Create(Model model, SplitModuleOptions options = {});
  ~SplitModule();

  // Any number of forwards may wait for their backward. Feeds are borrowed until the run is over,
  // and must stay unchanged; observers see both halves and live as long. Running statistics are
  // written when the forward ends. A forward that fails has changed nothing.
  Result<ForwardRun> Forward(const NamedValues& feeds,
                             std::vector<ExecutionObserver*> observers = {});
  // Takes up a run that was saved, perhaps in another process by a module of the same model and
  // options; where threads and providers are the same too, Backward gives the same bits. Fails with
  // kNotFound, with kInvalidModel for a file that is no such run or is damaged, and with
  // kInvalidArgument, naming the first difference, for one of another model.
  Result<ForwardRun> LoadRun(const std::string& path) const;
  // The model's outputs in evaluation mode; nothing is kept for a backward.
  Result<std::vector<RuntimeValue>> Predict(const NamedValues& feeds);

  // The values whose gradients Backward returns: inputs in the model's order, then trained
  // parameters.
  const std::vector<std::string>& gradient_names() const;
  // Values that no output depends on: their gradients are zeros.
  const std::vector<std::string>& unreachable() const;
  // The nodes of the module that went to the host for the sake of shapes, where there is a device
  // (CAESURA_AGGRESSIVE_CPU_FALLBACK).
  const CpuFallbackReport& cpu_fallback() const;
  const std::vector<std::string>& output_names() const;
  // Indices of the outputs that gradients can come in for.
  std::vector<int> differentiable_outputs() const;

  // Trained parameters, then running statistics, by the model's names.
  std::vector<std::string> ParameterNames() const;
  // Its present bytes, which nobody may write to. Fails with kNotFound.
  Result<Tensor> Parameter(const std::string& name) const;
  // Takes copies of `values` (same dtypes and shapes) for all runs that begin from here on; runs in
  // flight go on with the parameters that they began with. All or nothing.
  Status SetParameters(const std::map<std::string, Tensor>& values);

  // The providers, and what became of one that has failed.
  ProviderFallback& fallback() { return *fallback_; }
  const ProviderFallback& fallback() const { return *fallback_; }

 private:
  SplitModule();
  Status Prepare(Model model, const SplitModuleOptions& options);
  std::shared_ptr<ParameterSet> Parameters() const;
  void Replace(std::vector<std::pair<int, Tensor>> values);
  Status Overwrite(const std::vector<std::pair<int, Tensor>>& values);

  std::shared_ptr<ProviderFallback> fallback_;
  std::shared_ptr<ForwardRun::Program> program_;
  std::unique_ptr<Program> predict_;
  uint64_t seed_ = 0;
  bool shares_parameters_ = false;
  std::atomic<uint64_t> forwards_{0};
  mutable std::mutex mutex_;  // of parameters_
  std::shared_ptr<ParameterSet>
      parameters_;  // shared with runs in flight: replaced, not changed, while they hold it
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_SPLIT_MODULE_H_
