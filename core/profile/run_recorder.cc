// SPDX-License-Identifier: Apache-2.0
#include "core/profile/run_recorder.h"

#include <atomic>
#include <utility>

namespace caesura {
namespace {

constexpr int64_t kShapeElements = 64;  // as graph_transforms/shapes/cpu_fallback.h has it

struct ProcessRecording {
  std::atomic<bool> is_on = false;  // which runs ask before they take the lock
  std::mutex mutex;
  std::shared_ptr<RunRecorder> recorder;
};

ProcessRecording& OfProcess() {
  static auto* const recording = new ProcessRecording;  // runs may outlive the end of main
  return *recording;
}

std::string TypeText(const PlannedValue& value) {
  return std::string(DTypeName(value.dtype)) + (value.known ? value.shape.ToString() : "[?]");
}

bool IsShapeLike(const PlannedValue& value) {
  const bool counts =
      value.dtype == DType::kInt64 || value.dtype == DType::kInt32 || value.dtype == DType::kBool;
  return counts && value.known && value.shape.elements() <= kShapeElements;
}

RecordedStep Describe(const ExecutionPlan& plan, const PlanStep& step) {
  RecordedStep out;
  const Node& node = *step.node;
  out.kind = step.kind;
  out.op_type = step.kind == PlanStep::Kind::kCopy ? "Copy" : node.op_type();
  out.node = node.name();
  out.provider = step.provider == nullptr ? "" : step.provider->name();
  out.phase = node.phase();
  out.source = node.source();
  if (node.Is("FusedRows", kCaesuraDomain)) {
    for (const Graph* body : node.Subgraphs()) {
      for (const auto& part : body->nodes())
        out.parts.push_back({part->op_type(), part->name(), part->source()});
    }
  }
  bool all_shapes = step.output_count > 0;
  for (uint32_t a = 0; a < step.input_count + step.output_count; ++a) {
    const uint32_t id = plan.argument_values()[step.first_argument + a];
    if (id == 0) continue;
    const PlannedValue& value = plan.values()[id];
    const bool is_input = a < step.input_count;
    (is_input ? out.inputs : out.outputs).push_back(value.value->name() + " " + TypeText(value));
    all_shapes &= is_input || IsShapeLike(value);
  }
  out.makes_shapes = all_shapes && step.kind != PlanStep::Kind::kYield && !out.outputs.empty();
  return out;
}

}  // namespace

// One run with observers of its own: events of other runs with the same tag are not among theirs.
struct RunRecorder::Running {
  const ExecutionPlan* plan = nullptr;
  std::vector<RecordedStep> steps;
  int64_t begin_ns = 0;
  int threads = 1;
  Profiler profiler;
  MemoryProfile memory{1};
};

Status BeginRecording(std::shared_ptr<RunRecorder> recorder) {
  ProcessRecording& recording = OfProcess();
  std::lock_guard<std::mutex> lock(recording.mutex);
  if (recording.recorder != nullptr)
    return InvalidArgument("the runs of this process are already being recorded");
  recording.recorder = std::move(recorder);
  recording.is_on = true;
  return {};
}

void EndRecording() {
  ProcessRecording& recording = OfProcess();
  std::lock_guard<std::mutex> lock(recording.mutex);
  recording.is_on = false;
  recording.recorder = nullptr;
}

std::shared_ptr<RunRecorder> ProcessRecorder() {
  ProcessRecording& recording = OfProcess();
  if (!recording.is_on) return nullptr;
  std::lock_guard<std::mutex> lock(recording.mutex);
  return recording.recorder;
}

std::vector<RecordedRun> RunRecorder::Runs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<RecordedRun> out;
  for (const auto& running : runs_) {
    RecordedRun run;
    run.begin_ns = running->begin_ns;
    run.threads = running->threads;
    run.steps = running->steps;
    for (const ProfileEvent& event : running->profiler.Events()) {
      if (event.kind == ProfileEvent::Kind::kRun) {
        run.tag = event.tag;
        run.duration_ns += event.duration_ns;
        run.failed |= event.failed;
      } else if (event.kind == ProfileEvent::Kind::kStep) {
        RecordedStep& step = run.steps[event.plan_index];
        step.begin_ns = running->begin_ns + event.begin_ns;
        step.duration_ns = event.duration_ns;
        step.sizes = event.sizes;
        step.statistics = event.statistics;
      }
    }
    const std::vector<MemoryRecord> memory = running->memory.Records();
    if (!memory.empty()) run.memory = memory.front();
    run.error = run.memory.error;
    out.push_back(std::move(run));
  }
  return out;
}

size_t RunRecorder::dropped() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return dropped_;
}

std::shared_ptr<RunRecorder::Running> RunRecorder::Find(const ExecutionState& state) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = running_.find(&state);
  return found == running_.end() ? nullptr : found->second;
}

void RunRecorder::OnEnter(const ExecutionPlan& plan, const ExecutionState& state) {
  std::shared_ptr<Running> running = Find(state);
  const bool goes_on = state.program_counter() != 0 && running != nullptr && running->plan == &plan;
  if (!goes_on) {
    running = std::make_shared<Running>();
    running->plan = &plan;
    running->threads = plan.threads();
    for (const PlanStep& step : plan.steps()) running->steps.push_back(Describe(plan, step));
    const auto since = std::chrono::steady_clock::now() - origin_;
    running->begin_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
    std::lock_guard<std::mutex> lock(mutex_);
    if (runs_.size() >= max_runs_) {
      dropped_ += state.program_counter() == 0;  // once, though it goes on after a yield
      running_.erase(&state);
      return;
    }
    runs_.push_back(running);
    running_[&state] = running;
  }
  running->memory.OnEnter(plan, state);
  running->profiler.OnEnter(plan, state);
}

void RunRecorder::OnFenceBefore(const ExecutionPlan& plan, const ExecutionState& state, int step) {
  if (const auto running = Find(state)) running->profiler.OnFenceBefore(plan, state, step);
}

void RunRecorder::OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) {
  if (const auto running = Find(state)) running->profiler.OnStepBegin(plan, state, step);
}

void RunRecorder::OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                            const Status& status) {
  const auto running = Find(state);
  if (running == nullptr) return;
  running->profiler.OnStepEnd(plan, state, step, status);
  running->memory.OnStepEnd(plan, state, step, status);
}

void RunRecorder::OnLeave(const ExecutionPlan& plan, const ExecutionState& state,
                          const Status& status) {
  const auto running = Find(state);
  if (running == nullptr) return;
  running->profiler.OnLeave(plan, state, status);
  running->memory.OnLeave(plan, state, status);
  if (status.ok() && state.stage() != ExecutionState::Stage::kFinished) return;  // it goes on later
  std::lock_guard<std::mutex> lock(mutex_);
  running_.erase(&state);
}

}  // namespace caesura
