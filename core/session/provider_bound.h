// SPDX-License-Identifier: Apache-2.0
// A model made ready to run on a session's providers, and made anew where the session falls back to
// others.
#ifndef CAESURA_CORE_SESSION_PROVIDER_BOUND_H_
#define CAESURA_CORE_SESSION_PROVIDER_BOUND_H_

#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "core/base/status_macros.h"
#include "core/session/provider_fallback.h"

namespace caesura {

// `Program` has graph(), a Graph. Thread safety: all methods from any thread.
template <typename Program>
class ProviderBound {
 public:
  using Make = std::function<Result<std::shared_ptr<Program>>(Model, const ProviderList&)>;
  // A program, and whose providers it is for (ProviderFallback::generation).
  struct Held {
    std::shared_ptr<Program> program;
    int generation = -1;
  };

  // Makes the program, on the default providers where the others fail. A copy of `source` (tensors'
  // bytes are shared) is kept as long as a fallback is possible.
  static Result<std::unique_ptr<ProviderBound>> Create(std::shared_ptr<ProviderFallback> fallback,
                                                       Model source, Make make) {
    std::unique_ptr<ProviderBound> out(
        new ProviderBound(std::move(fallback), std::move(source), std::move(make)));
    auto first = out->Now();
    if (!first.ok()) {
      const auto rebuild = [&](const ProviderList& providers) {
        return out->Replace(providers, nullptr);
      };
      RETURN_IF_ERROR(out->fallback_->GoOver(0, first.status(), FallbackPhase::kCreate, rebuild));
    }
    return out;
  }

  // The program on the providers of now; made if the session fell back through another program.
  Result<Held> Now() {
    Held held = Get();
    if (held.generation >= fallback_->generation()) return held;
    std::lock_guard<std::mutex> lock(making_);
    held = Get();
    const int generation = fallback_->generation();
    if (held.generation >= generation) return held;
    // Without a fallback to come the program is made of the model itself.
    const bool last = generation == 0 && !fallback_->pending();
    auto made = make_(last ? std::move(source_) : source_.Clone(), fallback_->providers());
    if (!made.ok()) return generation == 0 ? made.status() : fallback_->AfterRetry(made.status());
    if (generation > 0) source_.graph.reset();
    return Put({*std::move(made), generation});
  }

  // prepare(program) gives the plan of a run and call(held, plan) a Result; both are called again,
  // on the new program, where the session falls back.
  template <typename Prepare, typename Call>
  auto Run(const Prepare& prepare, const Call& call)
      -> std::invoke_result_t<Call, const Held&, const std::shared_ptr<const ExecutionPlan>&> {
    ASSIGN_OR_RETURN(Held now, Now());
    FallbackPhase phase = FallbackPhase::kCompile;
    auto attempt = [&]() -> decltype(call(now, nullptr)) {
      ASSIGN_OR_RETURN(const std::shared_ptr<const ExecutionPlan> plan, prepare(*now.program));
      phase = FallbackPhase::kRun;
      return call(now, plan);
    };
    auto result = attempt();
    if (!result.ok()) {
      RETURN_IF_ERROR(GoOver(now.generation, result.status(), phase, prepare));
      ASSIGN_OR_RETURN(now, Now());
      result = attempt();
      if (!result.ok()) return fallback_->AfterRetry(result.status());
    }
    fallback_->CountRun();
    return result;
  }

  // As ProviderFallback::GoOver; the new program must have a plan for the run.
  template <typename Prepare>
  Status GoOver(int generation, const Status& cause, FallbackPhase phase, const Prepare& prepare) {
    return fallback_->GoOver(generation, cause, phase, [&](const ProviderList& providers) {
      return Replace(providers, prepare);
    });
  }

 private:
  ProviderBound(std::shared_ptr<ProviderFallback> fallback, Model source, Make make)
      : fallback_(std::move(fallback)), source_(std::move(source)), make_(std::move(make)) {}

  Held Get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return held_;
  }
  Held Put(Held held) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = held;
    return held;
  }
  // Called while the session goes over. `prepare` may be null.
  template <typename Prepare>
  Result<ProviderFallback::Bytes> Replace(const ProviderList& providers, const Prepare& prepare) {
    ASSIGN_OR_RETURN(std::shared_ptr<Program> made, make_(source_.Clone(), providers));
    std::shared_ptr<const ExecutionPlan> plan;
    if constexpr (!std::is_null_pointer_v<Prepare>) {
      ASSIGN_OR_RETURN(plan, prepare(*made));
    }
    const ProviderFallback::Bytes bytes = CountBytes(*source_.graph, made->graph(), plan.get());
    source_.graph.reset();
    Put({std::move(made), 1});
    return bytes;
  }

  const std::shared_ptr<ProviderFallback> fallback_;
  Model source_;
  const Make make_;
  std::mutex making_;         // held while a program is made behind another program's fallback
  mutable std::mutex mutex_;  // of held_
  Held held_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_SESSION_PROVIDER_BOUND_H_
