// SPDX-License-Identifier: Apache-2.0
// Things that break when told to: an allocator whose n-th call fails, a provider whose n-th kernel
// call fails.
#ifndef CAESURA_TESTS_CORE_EXECUTE_FAULTY_PROVIDER_H_
#define CAESURA_TESTS_CORE_EXECUTE_FAULTY_PROVIDER_H_

#include <atomic>
#include <climits>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/providers/execution_provider.h"

namespace caesura::testing {

// Counts down with each call; the call that finds it at zero fails, and so do all later ones until
// it is set again.
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

// Another provider's kernels, counted: kernel call number `fail_at` of the process of counting
// fails.
class FailingProvider : public ExecutionProvider {
 public:
  // `name`: empty for that of `inner`. With `scribbles` the call that fails has first filled its
  // outputs with garbage.
  explicit FailingProvider(std::shared_ptr<const ExecutionProvider> inner, std::string name = {},
                           bool scribbles = false)
      : inner_(std::move(inner)),
        name_(name.empty() ? inner_->name() : std::move(name)),
        scribbles_(scribbles) {
    for (KernelDef def : inner_->kernels().defs()) {
      def.create = [this, create = def.create](KernelInfo& info) -> Status {
        if (created_++ == fail_at_creation_) return ProviderFailure("planted failure of a factory");
        Status status = create(info);
        if (!status.ok()) return status;
        std::vector<size_t> bytes;
        for (const OutputInfo& output : info.outputs()) {
          const bool planned =
              output.kind == OutputInfo::Kind::kPlanned && output.dtype != DType::kString;
          bytes.push_back(
              planned ? static_cast<size_t>(output.shape.elements()) * DTypeSize(output.dtype) : 0);
        }
        const bool floats =
            bytes.size() > 0 && bytes[0] > 0 && info.outputs()[0].dtype == DType::kFloat32;
        info.SetCompute([this, bytes, floats,
                         compute = info.TakeCompute()](KernelContext& context) -> Status {
          const int call = calls_++;
          if (call == spoil_at_ && floats) {
            const Status status = compute(context);
            float* output = context.Output<float>(0);
            spoilt_ = output != nullptr;
            if (spoilt_) *output += 1;
            return status;
          }
          if (fail_at_ < 0 || call < fail_at_ || (call > fail_at_ && !fails_on_))
            return compute(context);
          for (size_t i = 0; scribbles_ && i < bytes.size(); ++i) {
            if (void* output = bytes[i] > 0 ? context.Output<void>(static_cast<int>(i)) : nullptr) {
              std::memset(output, 0xa5, bytes[i]);
            }
          }
          return ProviderFailure("planted failure");
        });
        return {};
      };
      kernels_.Add(std::move(def));
    }
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return inner_->device(); }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return inner_->allocator(); }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    return inner_->Copy(kind, to, from, bytes);
  }
  Status Synchronise() const override { return inner_->Synchronise(); }

  // Begins to count anew; -1: no call fails. With `and_later` those after it fail too.
  void FailAt(int call, bool and_later = false) {
    calls_ = 0;
    fail_at_ = call;
    fails_on_ = and_later;
  }
  int calls() const { return calls_; }
  // Begins to count anew; call number `call` gives a wrong first element without a word, where its
  // first output is of float32.
  void SpoilAt(int call) {
    calls_ = 0;
    spoil_at_ = call;
    spoilt_ = false;
  }
  bool spoilt() const { return spoilt_; }
  // The same for kernels that are created.
  void FailAtCreation(int kernel) {
    created_ = 0;
    fail_at_creation_ = kernel;
  }
  int created() const { return created_; }

 private:
  std::shared_ptr<const ExecutionProvider> inner_;
  std::string name_;
  const bool scribbles_;
  KernelRegistry kernels_;
  std::atomic<int> calls_{0}, created_{0}, fail_at_{-1}, fail_at_creation_{-1};
  std::atomic<int> spoil_at_{-1};
  std::atomic<bool> fails_on_{false}, spoilt_{false};
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_EXECUTE_FAULTY_PROVIDER_H_
