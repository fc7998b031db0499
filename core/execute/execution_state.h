// SPDX-License-Identifier: Apache-2.0
// ExecutionState: all that changes while a plan runs, and all that survives between two calls:
// program counter, arena, values, feeds, random counters. States of one plan are independent of
// each other.
//
//   feeds --Start--> [ready] --Run--> [yielded] --Resume(dY)--> [ready] --Run--> [finished]
//   [finished] --TakeFetches--> values, or --Start--> [ready], which reuses the memory
//   A failed Run leaves the state [failed]: Start begins anew; the plan and other states are not
//   touched.
//
// Thread safety: one thread at a time; which thread may change between calls.
#ifndef CAESURA_CORE_EXECUTE_EXECUTION_STATE_H_
#define CAESURA_CORE_EXECUTE_EXECUTION_STATE_H_

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/execute/parameter_set.h"
#include "core/execute/run_options.h"
#include "core/execute/state_snapshot.h"
#include "core/execute/value_cache.h"
#include "core/kernels/kernel.h"
#include "core/plan/execution_plan.h"

namespace caesura {

// The state of one run. It shares the ownership of its plan and owns its arena.
class ExecutionState : public KernelHost {
 public:
  // The position in the picture above.
  enum class Stage : uint8_t { kIdle, kReady, kYielded, kFinished, kFailed };

  explicit ExecutionState(std::shared_ptr<const ExecutionPlan> plan);
  ExecutionState(const ExecutionState&) = delete;
  ExecutionState& operator=(const ExecutionState&) = delete;

  // Begins a run. Feeds (in the order of plan.feeds()) are borrowed and must stay unchanged until
  // the run has ended; they must be what the plan was made for. Verifies that inputs which a kernel
  // wants in one block lie so.
  Status Start(std::vector<RuntimeValue> feeds, RunOptions options);

  const ExecutionPlan& plan() const { return *plan_; }
  Stage stage() const { return stage_; }
  const RunOptions& options() const { return options_; }
  // When the rest of a run that waits is suspended again.
  void set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline) {
    options_.deadline = deadline;
  }
  // The rest of a run that waits is watched by these.
  void set_observers(std::vector<ExecutionObserver*> observers) {
    options_.observers = std::move(observers);
  }
  // The next step to execute.
  int program_counter() const { return pc_; }
  // True if a step before the program counter has changed a parameter. The one at it does not
  // count: kernels that update in place fail, if at all, before they write.
  bool has_written() const { return pc_ > plan_->first_write(); }

  // --- at a yield (stage() == kYielded) ---
  int yield_index() const { return yield_index_; }
  // The yield's values, in the order of YieldOp's inputs. The tensors are the caller's: they
  // may be overwritten or dropped at once, and stay valid after the state is gone.
  std::vector<RuntimeValue> TakeYielded();
  // Gives YieldOp's outputs. An absent value stands for zeros; a one-element tensor is spread over
  // the shape. Tensors are borrowed until the run has ended. Then stage() is kReady.
  Status Resume(std::vector<RuntimeValue> values);

  // --- at the end (stage() == kFinished) ---
  // Graph outputs, owned by the caller. Once a run.
  std::vector<RuntimeValue> TakeFetches();

  // A second state at the same point, with a copy of all that a later step may read: for a second
  // backward (retain_graph). Yielded values that were not taken are not copied. Fails with
  // kInvalidArgument unless stage() is kReady or kYielded, as Capture and Relocate do.
  Result<std::unique_ptr<ExecutionState>> Clone() const;

  // Gives what later steps read as data on the host (state_snapshot.h); tensors may be views of the
  // state's memory, valid until it runs on.
  Result<StateSnapshot> Capture() const;
  // Goes on where the snapshot was captured, in the place of a Start; seed, step and tag are the
  // snapshot's. `options.parameters` hold what the captured run's held. The plan is of the same
  // graph and feeds; threads and providers may be others (DescribeDifferences). Fails with
  // kInvalidArgument, naming the first thing that does not fit; then stage() is kIdle.
  Status Restore(const StateSnapshot& snapshot, RunOptions options);

  // Moves the arena and the fetches to fresh memory, copying what is alive and filling all else,
  // there and in the old place, with `poison`; forgets the addresses of what no later step reads.
  // For tests that show that nothing reads dead bytes.
  Status Relocate(uint8_t poison);

  // Copies the feeds, so that their owner may change them while the run waits.
  // REQUIRES: stage() is kReady or kYielded.
  Status OwnFeeds();
  const std::vector<RuntimeValue>& feeds() const { return feeds_; }

  // Drops everything that the run holds; the arena is kept for the next Start.
  void Cancel();
  // True if Start finds arenas from before; takes those of a state that waits for its next run, in
  // the place of its own: what is too small for this one is freed.
  bool has_arenas() const { return !arenas_.empty(); }
  void TakeArenas(ExecutionState& waiting);

  // KernelHost
  RuntimeValue ArgumentValue(const uint32_t* argument) override;
  Result<Tensor> AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) override;
  void SetArgumentValue(const uint32_t* argument, RuntimeValue value) override;
  RandomKey random_key(uint32_t subsequence) const override {
    return {options_.seed.value_or(0), options_.step.value_or(0), subsequence};
  }
  const uint64_t* device_random_key() const override {
    const std::shared_ptr<Buffer>& key = random_keys_[plan_->steps()[pc_].device];
    return key == nullptr ? nullptr : static_cast<const uint64_t*>(key->data());
  }
  void* device_stream() const override { return plan_->steps()[pc_].provider->stream(); }
  RunCollectives* collectives() const override { return options_.collectives.get(); }
  Result<Tensor> CopyOf(const Tensor& tensor) const override;

  // The current value of value id `id` as a RuntimeValue; a view where the bytes are planned.
  RuntimeValue ValueOf(uint32_t id) const;
  // The value in memory that the host can read: what is on a device is copied, and waited for.
  Result<RuntimeValue> HostValueOf(uint32_t id) const;

 private:
  friend class PartialExecutor;
  // execution_state.cc
  Status BindFeeds(std::vector<RuntimeValue> feeds);
  Status BindParameters();
  Status BindFetches();
  Status BindFetch(const Yield::Item& item, int fetch);
  Status VerifyContiguous() const;
  Status BindArenas();
  // Puts the run's seed and step where kernels of devices read them.
  Status PutRandomKeys();
  Allocator& AllocatorOf(int device) const { return *plan_->devices()[device].allocator; }
  // The caller's buffer for graph output `fetch`, where it is on the device and may be written in
  // the middle of the run.
  const Tensor* FetchBuffer(int fetch, int device) const;
  // `allocator` is of the device; errors say whose memory ran out.
  Result<std::shared_ptr<Buffer>> Allocate(int device, size_t bytes, Allocator& allocator) const;
  // The caller's allocator for graph output `fetch`, where it serves the device.
  Allocator& FetchAllocator(int fetch, int device) const;
  int DeviceIndex(const Tensor& tensor) const;
  Result<Tensor> CopyTo(const Tensor& tensor, int device, Allocator& allocator) const;
  Status WaitForDevices() const;
  Status Poison(int device, void* data, size_t bytes, uint8_t poison) const;
  void SetDynamic(uint32_t value_id, RuntimeValue value);
  void Release(const PlanStep& step);
  // state_snapshot.cc
  bool IsWritten(int parameter) const;
  // The value id that dynamic_ holds it by: a resume value for all views of it.
  uint32_t HolderOf(uint32_t id) const;
  bool IsAwaited(uint32_t id) const;
  int FeedOf(uint32_t live) const;
  Result<RuntimeValue> OnHost(const RuntimeValue& value) const;
  StateSnapshot CapturePosition() const;
  Status CaptureValue(uint32_t id, StateSnapshot::Value* out) const;
  Status FindPosition(const StateSnapshot& snapshot);
  Status RestoreRun(const StateSnapshot& snapshot, RunOptions options);
  Status RestoreStage(const StateSnapshot& snapshot);
  Status RestoreValues(const StateSnapshot& snapshot);
  Status RestoreFeed(int feed, const StateSnapshot::Feed& given);
  Status RestoreValue(uint32_t id, const StateSnapshot::Value& given);
  Status PlaceValue(uint32_t id, const Tensor& given);
  // state_handover.cc: what crosses the border to the caller
  Result<RuntimeValue> HandOut(const Yield::Item& item, int fetch);
  Status HandOutYield();
  Status HandOutFetches();
  Status CheckBuffers() const;
  Result<RuntimeValue> TakeIn(const Yield& yield, int index, RuntimeValue value) const;
  Result<RuntimeValue> OnDeviceOf(const Yield::Item& item, RuntimeValue given) const;
  Status Fill(const Tensor& to, const Tensor& from) const;

  std::shared_ptr<const ExecutionPlan> plan_;
  Stage stage_ = Stage::kIdle;
  int pc_ = 0;
  int yield_index_ = -1;
  RunOptions options_;
  std::vector<std::shared_ptr<Buffer>> arenas_;                   // by device
  std::array<char*, kMaxDevices> arena_bases_ = {};               // their first bytes
  std::array<std::shared_ptr<Buffer>, kMaxDevices> random_keys_;  // by device: seed and step
  std::vector<void*> addresses_;                                  // by buffer
  std::vector<RuntimeValue> dynamic_;                             // by value: kDynamic and kResume
  std::vector<RuntimeValue> feeds_;
  std::vector<std::shared_ptr<Buffer>> fetch_buffers_;  // by fetch index; null once handed out
  std::vector<std::shared_ptr<Buffer>> cached_;         // by cache entry: what this run reads
  std::vector<RuntimeValue> handed_out_;                // by the yield or at the end, until taken
  std::vector<FeedSpec> yielded_;  // dtypes and shapes that the yield has handed out
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_EXECUTION_STATE_H_
