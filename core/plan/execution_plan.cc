// SPDX-License-Identifier: Apache-2.0
#include "core/plan/execution_plan.h"

#include <algorithm>
#include <cstring>

#include "core/graph/op_def.h"
#include "core/plan/parameter_writes.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/write_gate.h"

namespace caesura {
namespace {

const char* KindName(PlannedBuffer::Kind kind) {
  constexpr const char* kNames[] = {"absent", "feed",  "resume",  "parameter", "constant",
                                    "arena",  "fetch", "dynamic", "cached"};
  return kNames[static_cast<int>(kind)];
}

int FirstWrite(const ExecutionPlan& plan) {
  const auto count = static_cast<int>(plan.steps().size());
  for (int s = 0; s < count; ++s) {
    bool writes = false;
    ForEachWrittenParameter(plan, s, [&](int) { writes = true; });
    if (writes) return s;
  }
  return count;
}

int LastRisk(const ExecutionPlan& plan) {
  const auto count = static_cast<int>(plan.steps().size());
  for (const Yield::Item& item : plan.fetches()) {
    const PlannedBuffer& buffer = plan.buffers()[plan.values()[item.value].buffer];
    const bool handed_over = item.move && (buffer.kind == PlannedBuffer::Kind::kFetch ||
                                           buffer.kind == PlannedBuffer::Kind::kDynamic);
    if (buffer.device != 0 || !handed_over) return count;
  }
  int last = count - 1;
  const ExecutionProvider* cpu = nullptr;  // the one whose name was looked at
  for (; last >= 0; --last) {
    const PlanStep& step = plan.steps()[last];
    if (step.kind != PlanStep::Kind::kCompute || !step.bodies.empty()) break;
    if (step.provider == cpu) continue;
    if (step.provider->name() != kCpuProviderName) break;
    cpu = step.provider;
  }
  return last;
}

// A driver takes some thousand launches ahead, and then makes the host wait for the device. These
// steps make a tenth of it: a launch for 50 tensors, or three.
constexpr int kMostHeldSteps = 64;
constexpr uint32_t kMostHeldOutputs = 8192;

int FirstHeld(const ExecutionPlan& plan) {
  const auto count = static_cast<int>(plan.steps().size());
  for (const Yield::Item& item : plan.fetches()) {
    const PlannedValue& value = plan.values()[item.value];
    const PlannedBuffer& buffer = plan.buffers()[value.buffer];
    const bool is_given = buffer.kind == PlannedBuffer::Kind::kFetch && item.move;
    const bool has_gaps = buffer.device != 0 && !value.layout.dense();
    if (has_gaps || (item.device != 0 && !is_given)) return count;
  }
  int first = count, held = 0;
  uint32_t outputs = 0;
  for (int s = count - 1; s >= 0; --s) {
    const PlanStep& step = plan.steps()[s];
    if (step.kind != PlanStep::Kind::kCompute || !step.bodies.empty()) break;
    if (step.provider->device().is_host()) continue;
    if (step.Gate() == nullptr) break;
    first = s;
    outputs += step.output_count;
    if (++held > kMostHeldSteps || outputs > kMostHeldOutputs) return count;
  }
  return first;
}

std::vector<int> RandomDevices(const ExecutionPlan& plan) {
  std::vector<int> out;
  for (int d = 1; d < static_cast<int>(plan.devices().size()); ++d) {
    const bool draws =
        std::any_of(plan.steps().begin(), plan.steps().end(), [d](const PlanStep& step) {
          return step.device == d && step.node != nullptr && OpDefOf(*step.node).random;
        });
    if (draws) out.push_back(d);
  }
  return out;
}

}  // namespace

ExecutionPlan::ExecutionPlan(PlanData data)
    : data_(std::move(data)),
      first_write_(FirstWrite(*this)),
      last_risk_(LastRisk(*this)),
      first_held_(FirstHeld(*this)),
      random_devices_(RandomDevices(*this)) {}

const char* StepKindName(PlanStep::Kind kind) {
  constexpr const char* kNames[] = {"compute", "dynamic", "cached", "yield", "copy"};
  return kNames[static_cast<int>(kind)];
}

FeedSpec FeedSpec::Of(const RuntimeValue& value) {
  FeedSpec spec;
  spec.is_tensor = value.is_tensor();
  if (spec.is_tensor) {
    spec.dtype = value.tensor().dtype();
    spec.shape = value.tensor().shape();
    spec.device = value.tensor().device();
  }
  return spec;
}

bool FeedSpec::Matches(const RuntimeValue& given) const {
  if (!is_tensor) return !given.is_tensor();
  if (dtype == DType::kUndefined) return !given.has_value();
  if (!given.is_tensor() || given.tensor().dtype() != dtype || given.tensor().shape() != shape)
    return false;
  if (given.tensor().device() != device) return false;
  if (!value.defined()) return true;
  return given.tensor().raw() == value.raw() ||
         (dtype != DType::kString &&
          std::memcmp(given.tensor().raw(), value.raw(), value.bytes()) == 0);
}

std::shared_ptr<SubgraphRunner> PlanStep::Body(const std::string& name) const {
  for (const auto& [body_name, runner] : bodies) {
    if (body_name == name) return runner;
  }
  return nullptr;
}

const WriteGate* PlanStep::Gate() const {
  const auto* gate = dynamic_cast<const WriteGate*>(provider);
  return gate != nullptr && def != nullptr && gate->Holds(*def) ? gate : nullptr;
}

Status ExecutionPlan::CopyBytes(int to_device, void* to, int from_device, const void* from,
                                size_t bytes) const {
  if (to_device == from_device && to_device == 0) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
  }
  const CopyKind kind = to_device == from_device ? CopyKind::kWithin
                        : to_device == 0         ? CopyKind::kToHost
                                                 : CopyKind::kToDevice;
  return data_.devices[to_device == 0 ? from_device : to_device].provider->Copy(kind, to, from,
                                                                                bytes);
}

// Empty where all is on the host.
std::string ExecutionPlan::CopiesLine() const {
  if (data_.devices.size() == 1) return {};
  size_t to_device = 0, to_host = 0, out = 0, before = 0;
  for (const PlannedCopy& copy : data_.copies) {
    if (copy.when == PlannedCopy::When::kHandedOut) ++out;
    else if (copy.when != PlannedCopy::When::kStep) ++before;
    else ++(copy.to == 0 ? to_host : to_device);
  }
  return "copies a run: " + std::to_string(to_device) + " to a device, " + std::to_string(to_host) +
         " to the host (each waits), " + std::to_string(out) + " handed out; " +
         std::to_string(before) + " constants and parameters before\n";
}

std::vector<size_t> ExecutionPlan::LiveBytes() const {
  std::vector<int64_t> change(data_.steps.size() + 2, 0);
  for (const PlannedBuffer& buffer : data_.buffers) {
    if (buffer.kind != PlannedBuffer::Kind::kArena || buffer.last_step < 0) continue;
    change[buffer.first_step] += static_cast<int64_t>(buffer.bytes);
    change[std::min<size_t>(buffer.last_step + 1, data_.steps.size())] -=
        static_cast<int64_t>(buffer.bytes);
  }
  std::vector<size_t> out;
  int64_t live = 0;
  for (size_t s = 0; s < data_.steps.size(); ++s)
    out.push_back(static_cast<size_t>(live += change[s]));
  return out;
}

std::vector<std::pair<size_t, size_t>> ExecutionPlan::LiveRanges(int pc, int device) const {
  std::vector<std::pair<size_t, size_t>> out;
  for (const PlannedBuffer& buffer : data_.buffers) {
    if (buffer.kind != PlannedBuffer::Kind::kArena || buffer.device != device) continue;
    if (buffer.first_step < pc && buffer.last_step >= pc) {
      out.emplace_back(buffer.offset, buffer.bytes);
    }
  }
  return out;
}

std::string ExecutionPlan::ToString() const {
  const std::vector<size_t> live = LiveBytes();
  const size_t peak = live.empty() ? 0 : std::max_element(live.begin(), live.end()) - live.begin();
  std::string out = std::to_string(data_.steps.size()) + " steps of " +
                    std::to_string(data_.graph->nodes().size()) + " nodes, arena " +
                    std::to_string(arena_bytes()) + " bytes";
  if (!live.empty())
    out += " (most alive: " + std::to_string(live[peak]) + " at step " + std::to_string(peak) + ")";
  out += ", " + std::to_string(data_.constants.size()) + " constant(s), " +
         std::to_string(data_.cache_entries) + " cached value(s), " +
         std::to_string(data_.yields.size()) + " yield(s), " + std::to_string(data_.threads) +
         " thread(s)\n" + CopiesLine();
  for (size_t s = 0; s < data_.steps.size(); ++s) {
    const PlanStep& step = data_.steps[s];
    out += std::to_string(s) + " " + StepKindName(step.kind) + " " + step.node->Label() + " on " +
           step.provider->name();
    for (uint32_t a = 0; a < step.input_count + step.output_count; ++a) {
      out += (a == step.input_count ? " -> " : " ") +
             Describe(data_.argument_values[step.first_argument + a]);
    }
    out += "\n";
    if (step.kind != PlanStep::Kind::kYield) continue;
    for (const Yield::Item& item : data_.yields[step.index].outputs) {
      out += std::string("    hands out ") + (item.move ? "" : "a copy of ") +
             Describe(item.value) + "\n";
    }
  }
  for (const Yield::Item& item : data_.fetches) {
    out += std::string("output ") + (item.move ? "" : "(a copy) ") + Describe(item.value) + "\n";
  }
  return out;
}

std::string ExecutionPlan::Describe(uint32_t value_id) const {
  const PlannedValue& value = data_.values[value_id];
  if (value.value == nullptr) return "-";
  const PlannedBuffer& buffer = data_.buffers[value.buffer];
  std::string out = value.value->name() + ":" + DTypeName(value.dtype);
  out += (value.known ? value.shape.ToString() : "[?]") + "@" + KindName(buffer.kind);
  if (buffer.kind == PlannedBuffer::Kind::kArena) out += "+" + std::to_string(buffer.offset);
  if (buffer.device != 0) out += " on " + data_.devices[buffer.device].device.ToString();
  if (!value.layout.dense()) {
    out += " strides " + Shape(value.layout.strides).ToString() + "+" +
           std::to_string(value.layout.offset);
  }
  return out;
}

}  // namespace caesura
