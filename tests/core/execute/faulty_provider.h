// SPDX-License-Identifier: Apache-2.0
// Things that break when told to: an allocator whose n-th call fails, a provider whose n-th kernel call fails.
#ifndef CAESURA_TESTS_CORE_EXECUTE_FAULTY_PROVIDER_H_
#define CAESURA_TESTS_CORE_EXECUTE_FAULTY_PROVIDER_H_

#include <atomic>
#include <climits>
#include <memory>
#include <string>

#include "core/kernels/kernel_context.h"
#include "core/providers/execution_provider.h"

namespace caesura::testing {

// Counts down with each call; the call that finds it at zero fails, and so do all later ones until it is set again.
class FailingAllocator : public Allocator {
 public:
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    ++calls_;
    if (left_.fetch_sub(1) <= 0) return OutOfMemory("planted: no more memory");
    return HostAllocator().Allocate(size);
  }
  Device device() const override { return {}; }
  // The next `calls` calls succeed.
  void FailAfter(int calls) {
    left_ = calls;
    calls_ = 0;
  }
  void Heal() { FailAfter(INT_MAX); }
  int calls() const { return calls_; }

 private:
  std::atomic<int> left_{INT_MAX}, calls_{0};
};

// Another provider's kernels, counted: kernel call number `fail_at` of the process of counting fails.
class FailingProvider : public ExecutionProvider {
 public:
  explicit FailingProvider(std::shared_ptr<const ExecutionProvider> inner) : inner_(std::move(inner)) {
    for (KernelDef def : inner_->kernels().defs()) {
      def.create = [this, create = def.create](KernelInfo& info) -> Status {
        Status status = create(info);
        if (!status.ok()) return status;
        info.SetCompute([this, compute = info.TakeCompute()](KernelContext& context) -> Status {
          if (calls_++ == fail_at_) return ProviderFailure("planted failure");
          return compute(context);
        });
        return {};
      };
      kernels_.Add(std::move(def));
    }
  }
  const std::string& name() const override { return inner_->name(); }
  Device device() const override { return inner_->device(); }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return inner_->allocator(); }

  // Begins to count anew; -1: no call fails.
  void FailAt(int call) {
    calls_ = 0;
    fail_at_ = call;
  }
  int calls() const { return calls_; }

 private:
  std::shared_ptr<const ExecutionProvider> inner_;
  KernelRegistry kernels_;
  std::atomic<int> calls_{0};
  int fail_at_ = -1;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_EXECUTE_FAULTY_PROVIDER_H_
