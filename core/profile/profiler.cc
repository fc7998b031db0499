// SPDX-License-Identifier: Apache-2.0
#include "core/profile/profiler.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <map>

namespace caesura {
namespace {

int64_t Nanoseconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

ThreadStatistics StatisticsNow() {
  ThreadStatistics now;
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  now.context_switches = usage.ru_nvcsw + usage.ru_nivcsw;
  now.thread_cpu_ns = Nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  now.process_cpu_ns = Nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
  return now;
}

}  // namespace

std::string RunTag(const ExecutionState& state) {
  const RunOptions& options = state.options();
  return options.tag.empty() ? "step " + std::to_string(options.step.value_or(0)) : options.tag;
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kOptimizer: return "optimizer";
  }
  return "?";
}

Profiler::Profiler(size_t max_events) : max_events_(max_events) {}

int64_t Profiler::Now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              origin_)
      .count();
}

std::vector<ProfileEvent> Profiler::Events() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return events_;
}

size_t Profiler::dropped() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return dropped_;
}

void Profiler::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.clear();
  dropped_ = 0;
}

// REQUIRES: mutex_ is held.
void Profiler::Record(ProfileEvent event) {
  if (events_.size() >= max_events_) {
    ++dropped_;
    return;
  }
  event.thread = threads_.try_emplace(std::this_thread::get_id(), static_cast<int>(threads_.size()))
                     .first->second;
  events_.push_back(std::move(event));
}

ProfileEvent Profiler::EventOf(const ExecutionPlan& plan, const Running& running, int index,
                               ProfileEvent::Kind kind) const {
  const PlanStep& step = plan.steps()[index];
  ProfileEvent event;
  event.kind = kind;
  event.tag = running.tag;
  event.begin_ns = running.mark_ns;
  event.node = step.node->name();
  event.op_type = step.node->op_type();
  event.provider = step.provider->name();
  event.phase = step.node->phase();
  event.graph_index = step.graph_index;
  event.plan_index = index;
  return event;
}

void Profiler::OnEnter(const ExecutionPlan&, const ExecutionState& state) {
  std::lock_guard<std::mutex> lock(mutex_);
  Running& running = running_[&state];
  running.tag = RunTag(state);
  running.first_step = state.program_counter();
  running.run_ns = Now();
}

void Profiler::OnFenceBefore(const ExecutionPlan&, const ExecutionState& state, int) {
  std::lock_guard<std::mutex> lock(mutex_);
  running_[&state].mark_ns = Now();
}

void Profiler::OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) {
  std::lock_guard<std::mutex> lock(mutex_);
  Running& running = running_[&state];
  ProfileEvent fence = EventOf(plan, running, step, ProfileEvent::Kind::kFenceBefore);
  fence.duration_ns = Now() - fence.begin_ns;
  Record(std::move(fence));
  running.at_begin = StatisticsNow();
  running.mark_ns = Now();  // last, so that our own work is not in the step's time
}

void Profiler::OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                         const Status& status) {
  const int64_t now = Now();
  const ThreadStatistics end = StatisticsNow();
  std::lock_guard<std::mutex> lock(mutex_);
  Running& running = running_[&state];
  ProfileEvent event = EventOf(plan, running, step, ProfileEvent::Kind::kStep);
  event.duration_ns = now - event.begin_ns;
  event.failed = !status.ok();
  if (status.ok()) event.sizes = SizesOf(state, step);
  event.statistics.threads = plan.threads();
  event.statistics.thread_cpu_ns = end.thread_cpu_ns - running.at_begin.thread_cpu_ns;
  event.statistics.process_cpu_ns = end.process_cpu_ns - running.at_begin.process_cpu_ns;
  event.statistics.context_switches = end.context_switches - running.at_begin.context_switches;
  Record(std::move(event));
  running.mark_ns = Now();
}

void Profiler::OnFenceAfter(const ExecutionPlan& plan, const ExecutionState& state, int step) {
  std::lock_guard<std::mutex> lock(mutex_);
  ProfileEvent fence = EventOf(plan, running_[&state], step, ProfileEvent::Kind::kFenceAfter);
  fence.duration_ns = Now() - fence.begin_ns;
  Record(std::move(fence));
}

void Profiler::OnLeave(const ExecutionPlan&, const ExecutionState& state, const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Running& running = running_[&state];
  ProfileEvent event;
  event.kind = ProfileEvent::Kind::kRun;
  event.tag = running.tag;
  event.begin_ns = running.run_ns;
  event.duration_ns = Now() - running.run_ns;
  event.failed = !status.ok();
  event.plan_index = running.first_step;
  Record(std::move(event));
  running_.erase(&state);
}

std::string Profiler::Summary() const {
  struct Row {
    int64_t calls = 0, ns = 0, cpu_ns = 0;
    size_t bytes = 0;
  };
  std::map<std::string, Row> rows;
  Row total;
  for (const ProfileEvent& event : Events()) {
    if (event.kind != ProfileEvent::Kind::kStep) continue;
    for (Row* row : {&rows[event.op_type], &total}) {
      ++row->calls;
      row->ns += event.duration_ns;
      row->cpu_ns += event.statistics.process_cpu_ns;
      row->bytes +=
          event.sizes.activation_bytes + event.sizes.parameter_bytes + event.sizes.output_bytes;
    }
  }
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  sorted.emplace_back("all", total);
  std::string out = "      time ms  share     calls   CPU ms        MB  op\n";
  for (const auto& [op, row] : sorted) {
    char line[160];
    std::snprintf(line, sizeof(line), "%13.3f %5.1f%% %9lld %8.2f %9.2f  ", row.ns * 1e-6,
                  total.ns > 0 ? 100.0 * row.ns / total.ns : 0.0, static_cast<long long>(row.calls),
                  row.cpu_ns * 1e-6, row.bytes * 1e-6);
    out += line + op + "\n";
  }
  return out;
}

}  // namespace caesura
