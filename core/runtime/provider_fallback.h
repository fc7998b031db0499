// SPDX-License-Identifier: Apache-2.0
// Provider fallback: a session whose provider fails goes on with the default providers.
//
// Only kProviderFailure counts as failing: a provider's factory, kernel, copy or allocator
// (the lack of a device's memory is reported so) has failed, while the session was made, while a
// run was planned, or in a run. All else is reported as it is: a mistake of the caller's, a broken
// model, a missing kernel, no host memory.
//
// The session is then made anew from its model, once, for the default providers: the CUDA provider
// where the session has one and it is not the one that failed, then the CPU provider. The new
// program shares the weights' bytes with the old one. It takes the old one's place when the run
// that failed can be planned with it; that run is done again, the session stays there, and there is
// no way back and no second fallback. Runs in flight end on the old program, which lives as long as
// they do. A session that has no provider but the CPU's has nowhere to go.
//
// Feeds and buffers on the failed provider's device are read and filled as before: its memory still
// serves copies, its kernels are not called again.
#ifndef CAESURA_CORE_RUNTIME_PROVIDER_FALLBACK_H_
#define CAESURA_CORE_RUNTIME_PROVIDER_FALLBACK_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/providers/execution_provider.h"

namespace caesura {

class ExecutionPlan;  // core/plan/execution_plan.h

// Makes the passes for these providers; asked again where a session falls back to others. Empty:
// none.
using PassMaker = std::function<PassList(const ProviderList&)>;

// The work during which a provider failed.
enum class FallbackStage {
  kCreate,   // a provider or the session was made: passes, function bodies
  kCompile,  // a run was planned: kernels created, constants folded
  kRun,
};

// "create", "compile", "run".
const char* FallbackStageName(FallbackStage stage);

// The state of a session's fallback.
struct FallbackRecord {
  std::string provider;  // that failed
  FallbackStage stage = FallbackStage::kRun;
  std::string node;   // "Op 'name'", or "memory"; empty where no node can be blamed
  std::string cause;  // the failed Status as text
  std::chrono::system_clock::time_point when;
  uint64_t runs_before = 0;  // that had come to their end
  double milliseconds = 0;   // of making the new program, the plan of the failed run included
  size_t bytes = 0;          // of weights and constants that were made anew for it
  size_t shared_bytes = 0;   // of those that it shares with the model
  std::vector<std::string> providers;  // that run nodes from then on
};

// A provider that is made when its session is.
struct ProviderRequest {
  std::string name;
  std::function<Result<std::shared_ptr<const ExecutionProvider>>()> make;
};

// The providers of one session, which its programs share. Thread safety: all methods from any
// thread.
class ProviderFallback {
 public:
  using MakeProvider = std::function<std::shared_ptr<const ExecutionProvider>()>;

  // `make_cpu` is asked where `providers` (at least one) have no CPU provider and one is needed.
  ProviderFallback(ProviderList providers, MakeProvider make_cpu, bool enabled = true);
  // Makes the providers. One that fails with kProviderFailure is the session's fallback already,
  // where that is enabled; all else is the caller's error, and nothing is left out silently.
  static Result<std::shared_ptr<ProviderFallback>> Create(
      const std::vector<ProviderRequest>& requests, MakeProvider make_cpu, bool enabled = true);

  // False: from here on a provider's failure is the run's error. What has fallen back stays where
  // it is.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  // Called in the fallback, with the providers that come, before programs are made for them: brings
  // what lies in a failed device's memory to where they want it. Where it fails nothing is
  // switched. To be set before the first run.
  void BeforeSwitch(std::function<Status(const ProviderList& providers)> bring) {
    bring_ = std::move(bring);
  }
  // Some provider may fail, and none has so far.
  bool can_fall_back() const { return possible_ && generation() == 0; }
  // 0 before the fallback, 1 after it.
  int generation() const { return generation_.load(std::memory_order_acquire); }
  // The current providers. A failed device appears as a provider without kernels, whose memory
  // still serves copies.
  ProviderList providers() const;
  // Names of the providers that run nodes now, in order of preference.
  std::vector<std::string> provider_names() const;
  // Nothing where no provider has been replaced.
  std::optional<FallbackRecord> record() const;
  // A run has come to its end.
  void CountRun() {
    if (can_fall_back()) runs_.fetch_add(1, std::memory_order_relaxed);
  }

  // Bytes of weights and constants: made for the new program, and shared with the old one.
  struct Bytes {
    size_t made = 0, shared = 0;
  };
  // Makes what replaces the failed program; the result is in place when it returns.
  using Rebuild = std::function<Result<Bytes>(const ProviderList& providers)>;
  // `cause` is what a program of `generation` has failed with. Ok: the session is, by this call or
  // another thread's, on other providers than that program: do it again there. Otherwise the status
  // to report, and nothing has changed.
  Status SwitchProviders(int generation, const Status& cause, FallbackStage stage,
                         const Rebuild& rebuild);
  // The error of a second try that fails as well: names the first cause; one that is the same
  // is told once.
  Status DescribeRetryFailure(const Status& second) const;

 private:
  ProviderList Defaults(const std::string& failed) const;
  void Adopt(ProviderList providers, FallbackRecord record);

  const ProviderList given_;
  const MakeProvider make_cpu_;
  const bool possible_;
  std::atomic<bool> enabled_;
  std::function<Status(const ProviderList&)> bring_;
  std::atomic<int> generation_{0};
  std::atomic<uint64_t> runs_{0};
  std::mutex switching_;      // held while the fallback is under way
  mutable std::mutex mutex_;  // of what follows
  ProviderList providers_;
  std::optional<FallbackRecord> record_;
};

// The bytes of a program's weights and constants that it shares with `source`, and those that it
// does not.
ProviderFallback::Bytes CountBytes(const Graph& source, const Graph& program,
                                   const ExecutionPlan* plan);

}  // namespace caesura

#endif  // CAESURA_CORE_RUNTIME_PROVIDER_FALLBACK_H_
