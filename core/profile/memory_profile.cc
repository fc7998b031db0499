// SPDX-License-Identifier: Apache-2.0
#include "core/profile/memory_profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/profile/profiler.h"
#include "core/profile/step_sizes.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

namespace {

constexpr size_t kLargest = 16;

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kArena: return "arena";
    case Kind::kFetch: return "fetch";
    case Kind::kDynamic: return "dynamic";
    case Kind::kCached: return "cached";
    default: return "other";
  }
}

// One sample a step, of what the plan decides.
std::vector<MemorySample> PlannedSamples(const ExecutionPlan& plan) {
  const size_t steps = plan.steps().size();
  std::vector<MemorySample> samples(steps);
  const std::vector<size_t> arena = plan.LiveBytes();
  for (size_t s = 0; s < steps; ++s) {
    samples[s].step = static_cast<int>(s);
    samples[s].node = plan.steps()[s].node->name();
    samples[s].op_type = plan.steps()[s].node->op_type();
    samples[s].arena_bytes = arena[s];
  }
  for (const PlannedBuffer& buffer : plan.buffers()) {
    const int last = std::min(buffer.last_step, static_cast<int>(steps) - 1);
    // Fetches are allocated when the run starts; what is cached stays.
    if (buffer.kind == Kind::kFetch) {
      for (int s = 0; s <= last; ++s) samples[s].fetch_bytes += buffer.bytes;
    } else if (buffer.kind == Kind::kCached) {
      for (size_t s = std::max(0, buffer.first_step); s < steps; ++s)
        samples[s].cached_bytes += buffer.bytes;
    }
  }
  return samples;
}

// The largest values alive while `step` runs. `dynamic` holds bytes by value id, or is empty.
std::vector<LiveValue> LargestAt(const ExecutionPlan& plan, int step,
                                 const std::vector<size_t>& dynamic) {
  std::vector<LiveValue> live;
  std::vector<bool> seen(plan.buffers().size(), false);  // a buffer is named by its first value
  for (uint32_t id = 1; id < plan.values().size(); ++id) {
    const PlannedValue& value = plan.values()[id];
    const PlannedBuffer& buffer = plan.buffers()[value.buffer];
    const bool counts = buffer.kind == Kind::kArena || buffer.kind == Kind::kFetch ||
                        buffer.kind == Kind::kDynamic || buffer.kind == Kind::kCached;
    if (!counts || seen[value.buffer] || buffer.first_step > step || buffer.last_step < step)
      continue;
    seen[value.buffer] = true;
    const size_t bytes =
        buffer.kind == Kind::kDynamic ? (id < dynamic.size() ? dynamic[id] : 0) : buffer.bytes;
    const std::string type =
        std::string(DTypeName(value.dtype)) + (value.known ? value.shape.ToString() : "[?]");
    live.push_back({value.value->name(), type, KindName(buffer.kind), bytes, buffer.first_step,
                    buffer.last_step});
  }
  std::stable_sort(live.begin(), live.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (live.size() > kLargest) live.resize(kLargest);
  return live;
}

MemoryRecord EmptyRecord(const ExecutionPlan& plan) {
  MemoryRecord record;
  record.arena_bytes = plan.arena_bytes();
  for (const PlannedBuffer& buffer : plan.buffers()) {
    if (buffer.kind == Kind::kFeed) record.feed_bytes += buffer.bytes;
    if (buffer.kind == Kind::kParameter) record.parameter_bytes += buffer.bytes;
    if (buffer.kind == Kind::kConstant) record.constant_bytes += buffer.bytes;
  }
  return record;
}

}  // namespace

int MemoryRecord::Peak() const {
  auto most = std::max_element(samples.begin(), samples.end(),
                               [](const auto& a, const auto& b) { return a.total() < b.total(); });
  return most == samples.end() ? -1 : static_cast<int>(most - samples.begin());
}

MemoryRecord PlannedMemory(const ExecutionPlan& plan) {
  MemoryRecord record = EmptyRecord(plan);
  record.tag = "planned";
  record.samples = PlannedSamples(plan);
  if (record.Peak() >= 0) record.largest = LargestAt(plan, record.Peak(), {});
  return record;
}

std::vector<MemoryRecord> MemoryProfile::Records() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {records_.begin(), records_.end()};
}

void MemoryProfile::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  records_.clear();
}

void MemoryProfile::OnEnter(const ExecutionPlan& plan, const ExecutionState& state) {
  std::lock_guard<std::mutex> lock(mutex_);
  Running& running = running_[&state];
  if (state.program_counter() != 0 && running.plan == &plan) return;  // a run goes on
  running.plan = &plan;
  running.record = EmptyRecord(plan);
  running.record.tag = RunTag(state);
  running.planned = PlannedSamples(plan);
  running.dynamic.assign(plan.values().size(), 0);
}

void MemoryProfile::OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int index,
                              const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  Running& running = running_[&state];
  const PlanStep& step = plan.steps()[index];
  for (uint32_t a = step.input_count; status.ok() && a < step.input_count + step.output_count;
       ++a) {
    const uint32_t id = plan.argument_values()[step.first_argument + a];
    if (plan.buffers()[plan.values()[id].buffer].kind == Kind::kDynamic)
      running.dynamic[id] = ValueBytes(state, id);
  }
  MemorySample sample = running.planned[index];
  for (size_t bytes : running.dynamic) sample.dynamic_bytes += bytes;
  running.record.samples.push_back(std::move(sample));
  if (!status.ok()) return;  // what is alive is what the record is about
  for (uint32_t id : step.release) running.dynamic[id] = 0;
}

void MemoryProfile::OnLeave(const ExecutionPlan& plan, const ExecutionState& state,
                            const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status.ok() && state.stage() != ExecutionState::Stage::kFinished) return;  // it goes on later
  auto it = running_.find(&state);
  if (it == running_.end()) return;
  MemoryRecord& record = it->second.record;
  record.failed = !status.ok();
  record.error = status.message();
  const int at = record.failed ? static_cast<int>(record.samples.size()) - 1 : record.Peak();
  if (at >= 0) record.largest = LargestAt(plan, record.samples[at].step, it->second.dynamic);
  records_.push_back(std::move(record));
  if (records_.size() > max_records_) records_.pop_front();
  running_.erase(it);
}

std::string MemoryJson(const std::vector<MemoryRecord>& records) {
  using nlohmann::json;
  json runs = json::array();
  for (const MemoryRecord& record : records) {
    json samples = json::array(), largest = json::array();
    for (const MemorySample& s : record.samples) {
      samples.push_back({{"step", s.step},
                         {"node", s.node},
                         {"op_type", s.op_type},
                         {"arena_bytes", s.arena_bytes},
                         {"fetch_bytes", s.fetch_bytes},
                         {"dynamic_bytes", s.dynamic_bytes},
                         {"cached_bytes", s.cached_bytes},
                         {"total_bytes", s.total()}});
    }
    for (const LiveValue& v : record.largest) {
      largest.push_back({{"name", v.name},
                         {"type", v.type},
                         {"kind", v.kind},
                         {"bytes", v.bytes},
                         {"first_step", v.first_step},
                         {"last_step", v.last_step}});
    }
    runs.push_back({{"tag", record.tag},
                    {"failed", record.failed},
                    {"error", record.error},
                    {"arena_bytes", record.arena_bytes},
                    {"feed_bytes", record.feed_bytes},
                    {"parameter_bytes", record.parameter_bytes},
                    {"constant_bytes", record.constant_bytes},
                    {"peak_sample", record.Peak()},
                    {"samples", std::move(samples)},
                    {"largest", std::move(largest)}});
  }
  return json{{"runs", std::move(runs)}}.dump(1, ' ', false, json::error_handler_t::replace);
}

}  // namespace caesura
