// SPDX-License-Identifier: Apache-2.0
#include "core/profile/nvtx_ranges.h"

#include <dlfcn.h>

#include <optional>

#include "core/profile/profiler.h"

namespace caesura {
namespace {

// nvtxEventAttributes_t of NVTX version 2, whose layout is part of its binary interface.
struct NvtxEvent {
  uint16_t version = 2;
  uint16_t size = 48;
  uint32_t category = 0;
  int32_t color_type = 1;  // ARGB
  uint32_t color = 0;
  int32_t payload_type = 0, reserved = 0;
  uint64_t payload = 0;
  int32_t message_type = 1;  // ASCII
  const char* message = nullptr;
};
static_assert(sizeof(NvtxEvent) == 48);

class NvtxSink : public RangeSink {
 public:
  using PushFunction = int (*)(const NvtxEvent*);
  using PopFunction = int (*)();
  NvtxSink(void* library, PushFunction push, PopFunction pop)
      : library_(library), push_(push), pop_(pop) {}
  ~NvtxSink() override { dlclose(library_); }
  void Begin(const std::string& name, uint32_t argb) override {
    NvtxEvent event;
    event.color = argb;
    event.message = name.c_str();
    push_(&event);
  }
  void End() override { pop_(); }

 private:
  void* library_;
  PushFunction push_;
  PopFunction pop_;
};

uint32_t ColorOf(Phase phase) {
  switch (phase) {
    case Phase::kForward: return 0xff4f81bd;
    case Phase::kBackward: return 0xffc0504d;
    case Phase::kOptimizer: return 0xff9bbb59;
  }
  return 0xff808080;
}
constexpr uint32_t kStepColor = 0xfff0c040;

}  // namespace

Result<std::unique_ptr<RangeSink>> OpenNvtx(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return NotFound("cannot load " + library + ": " + dlerror());
  auto push = reinterpret_cast<NvtxSink::PushFunction>(dlsym(handle, "nvtxRangePushEx"));
  auto pop = reinterpret_cast<NvtxSink::PopFunction>(dlsym(handle, "nvtxRangePop"));
  if (push == nullptr || pop == nullptr) {
    dlclose(handle);
    return NotFound(library + " has no nvtxRangePushEx and nvtxRangePop");
  }
  return std::unique_ptr<RangeSink>(std::make_unique<NvtxSink>(handle, push, pop));
}

void PhaseRanges::OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int index) {
  const PlanStep& step = plan.steps()[index];
  const Phase phase = step.node->phase();
  std::optional<Phase> open;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = open_.find(&state);
    if (it != open_.end()) open = it->second;
    if (!open || *open < phase) open_[&state] = phase;
  }
  // Phases only go forward: what backward computes again of the forward part stays in its range.
  if (open && *open < phase) sink_.End();
  if (!open || *open < phase) sink_.Begin(RunTag(state) + " " + PhaseName(phase), ColorOf(phase));
  if (steps_) {
    sink_.Begin(step.node->op_type() + "." + std::to_string(step.graph_index) + "(" +
                    step.node->name() + ")",
                kStepColor);
  }
}

void PhaseRanges::OnStepEnd(const ExecutionPlan&, const ExecutionState&, int, const Status&) {
  if (steps_) sink_.End();
}

void PhaseRanges::OnLeave(const ExecutionPlan&, const ExecutionState& state, const Status&) {
  bool open = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open = open_.erase(&state) > 0;
  }
  if (open) sink_.End();
}

}  // namespace caesura
