// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/provider_fallback.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/plan/execution_plan.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/cuda/cuda_provider.h"

namespace caesura {
namespace {

using Clock = std::chrono::steady_clock;

bool IsCpu(const std::shared_ptr<const ExecutionProvider>& provider) {
  return provider->name() == kCpuProviderName;
}

// The memory of a provider that failed: what lies there can be read and written, nothing is
// computed.
class MemoryOnly : public ExecutionProvider {
 public:
  explicit MemoryOnly(std::shared_ptr<const ExecutionProvider> failed)
      : failed_(std::move(failed)), name_(failed_->name() + " (memory only)") {}
  const std::string& name() const override { return name_; }
  Device device() const override { return failed_->device(); }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return failed_->allocator(); }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    return failed_->Copy(kind, to, from, bytes);
  }
  Status Synchronise() const override { return failed_->Synchronise(); }

 private:
  std::shared_ptr<const ExecutionProvider> failed_;
  std::string name_;
  KernelRegistry kernels_;
};

std::vector<std::string> NamesOf(const ProviderList& providers) {
  std::vector<std::string> names;
  for (const auto& provider : providers) {
    if (dynamic_cast<const MemoryOnly*>(provider.get()) == nullptr)
      names.push_back(provider->name());
  }
  return names;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void Warn(const FallbackRecord& record) {
  LogWarning("provider " + record.provider + " failed (phase: " + FallbackStageName(record.stage) +
             "), after " + std::to_string(record.runs_before) + " runs: " + record.cause +
             "; the session goes on with " + Joined(record.providers));
}

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <typename Fn>
void ForEachInitializer(const Graph& graph, const Fn& fn) {
  for (const auto& [value, tensor] : graph.initializers()) fn(tensor);
  for (const auto& node : graph.nodes()) {
    for (const Graph* body : node->Subgraphs()) ForEachInitializer(*body, fn);
  }
}

}  // namespace

const char* FallbackStageName(FallbackStage stage) {
  constexpr const char* kNames[] = {"create", "compile", "run"};
  return kNames[static_cast<int>(stage)];
}

ProviderFallback::Bytes CountBytes(const Graph& source, const Graph& program,
                                   const ExecutionPlan* plan) {
  std::unordered_set<const Buffer*> shared;
  ForEachInitializer(source, [&](const Tensor& tensor) { shared.insert(tensor.buffer().get()); });
  ProviderFallback::Bytes bytes;
  std::unordered_set<const Buffer*> seen;
  const auto count = [&](const Tensor& tensor) {
    const Buffer* buffer = tensor.buffer().get();
    if (seen.insert(buffer).second)
      (shared.count(buffer) > 0 ? bytes.shared : bytes.made) += tensor.bytes();
  };
  ForEachInitializer(program, count);
  for (const Tensor& tensor : plan == nullptr ? std::vector<Tensor>() : plan->constants())
    count(tensor);
  return bytes;
}

ProviderFallback::ProviderFallback(ProviderList providers, MakeProvider make_cpu, bool enabled)
    : given_(std::move(providers)),
      make_cpu_(std::move(make_cpu)),
      possible_(!std::all_of(given_.begin(), given_.end(), IsCpu)),
      enabled_(enabled),
      providers_(given_) {}

Result<std::shared_ptr<ProviderFallback>> ProviderFallback::Create(
    const std::vector<ProviderRequest>& requests, MakeProvider make_cpu, bool enabled) {
  const auto begin = Clock::now();
  ProviderList made;
  std::optional<FallbackRecord> record;
  for (const ProviderRequest& request : requests) {
    auto provider = request.make();
    if (provider.ok()) {
      made.push_back(*std::move(provider));
      continue;
    }
    const Status& status = provider.status();
    const bool falls_back = enabled && status.code() == StatusCode::kProviderFailure &&
                            request.name != kCpuProviderName;
    if (!falls_back) return status.WithPrefix("provider " + request.name + ": ");
    if (record) continue;
    record.emplace();
    record->provider = request.name;
    record->stage = FallbackStage::kCreate;
    record->cause = status.ToString();
  }
  if (made.empty()) made.push_back(make_cpu());
  auto out = std::make_shared<ProviderFallback>(std::move(made), std::move(make_cpu), enabled);
  if (!record) return out;
  record->milliseconds = MillisecondsSince(begin);
  ProviderList defaults = out->Defaults(record->provider);
  out->Adopt(std::move(defaults), *std::move(record));
  return out;
}

ProviderList ProviderFallback::providers() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return providers_;
}

std::vector<std::string> ProviderFallback::provider_names() const { return NamesOf(providers()); }

std::optional<FallbackRecord> ProviderFallback::record() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return record_;
}

// CUDA's where there is one, the CPU's, and the memory of devices that these do not serve.
ProviderList ProviderFallback::Defaults(const std::string& failed) const {
  ProviderList out;
  const auto add = [&](const char* name) {
    auto found = std::find_if(given_.begin(), given_.end(),
                              [&](const auto& p) { return p->name() == name; });
    if (found != given_.end() && name != failed) out.push_back(*found);
    return found != given_.end();
  };
  add(kCudaProviderName);
  if (!add(kCpuProviderName)) out.push_back(make_cpu_());
  for (const auto& provider : given_) {
    const auto serves = [&](const auto& other) { return other->device() == provider->device(); };
    const bool served = provider->device().is_host() || std::any_of(out.begin(), out.end(), serves);
    if (!served) out.push_back(std::make_shared<MemoryOnly>(provider));
  }
  return out;
}

void ProviderFallback::Adopt(ProviderList providers, FallbackRecord record) {
  record.when = std::chrono::system_clock::now();
  record.runs_before = runs_;
  record.providers = NamesOf(providers);
  Warn(record);
  std::lock_guard<std::mutex> lock(mutex_);
  providers_ = std::move(providers);
  record_ = std::move(record);
  generation_.store(1, std::memory_order_release);
}

Status ProviderFallback::SwitchProviders(int generation, const Status& cause, FallbackStage stage,
                                         const Rebuild& rebuild) {
  if (cause.code() != StatusCode::kProviderFailure || !possible_ || !enabled_) return cause;
  if (generation > 0) return DescribeRetryFailure(cause);
  FailureLocation place = cause.location() != nullptr ? *cause.location() : FailureLocation();
  const auto named = [&](const auto& provider) { return provider->name() == place.provider; };
  if (std::none_of(given_.begin(), given_.end(), named)) {
    place = {"", (*std::find_if_not(given_.begin(), given_.end(), IsCpu))->name(), ""};
  }
  if (place.provider == kCpuProviderName) return cause;
  // Work that the failed run has begun must not write to the caller's buffers after the second run.
  for (const auto& provider : given_) static_cast<void>(provider->Synchronise());
  std::lock_guard<std::mutex> lock(switching_);
  if (this->generation() > 0) return {};
  const auto begin = Clock::now();
  ProviderList defaults = Defaults(place.provider);
  const Status brought = bring_ ? bring_(defaults) : Status();
  const Result<Bytes> bytes = brought.ok() ? rebuild(defaults) : Result<Bytes>(brought);
  if (!bytes.ok()) {
    return ProviderFailure(cause.message() + "; and " + Joined(NamesOf(defaults)) +
                           " cannot stand in: " + bytes.status().ToString());
  }
  FallbackRecord record;
  record.provider = std::move(place.provider);
  record.stage = stage;
  record.node = std::move(place.node);
  record.cause = cause.ToString();
  record.milliseconds = MillisecondsSince(begin);
  record.bytes = bytes->made;
  record.shared_bytes = bytes->shared;
  Adopt(std::move(defaults), std::move(record));
  return {};
}

Status ProviderFallback::DescribeRetryFailure(const Status& second) const {
  const std::optional<FallbackRecord> first = record();
  if (!first) return second;
  const std::string now = Joined(first->providers);
  const FailureLocation* place = second.location();
  const bool same = first->cause.ends_with(place != nullptr ? place->what : second.message());
  const std::string what = same ? first->cause + " (on " + now + " too)"
                                : second.message() + "; " + now + " stand in for " +
                                      first->provider + ", which failed first: " + first->cause;
  return place != nullptr ? second.At(*place, what) : Status(second.code(), what);
}

}  // namespace caesura
