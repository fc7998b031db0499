// SPDX-License-Identifier: Apache-2.0
#include "core/execute/state_snapshot.h"

#include <algorithm>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/execute/execution_state.h"
#include "core/plan/parameter_writes.h"
#include "core/providers/tensor_copy.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

namespace {

// A step that another plan of the graph has too, by the first value that it makes; empty for copies
// between devices, which each plan has of its own.
std::string StepName(const ExecutionPlan& plan, const PlanStep& step) {
  if (step.kind == PlanStep::Kind::kCopy) return {};
  if (step.kind == PlanStep::Kind::kYield) return "yield " + std::to_string(step.index);
  const uint32_t* outputs = plan.argument_values().data() + step.first_argument + step.input_count;
  for (uint32_t i = 0; i < step.output_count; ++i) {
    if (outputs[i] != 0) return plan.values()[outputs[i]].value->name();
  }
  return step.node->Label();
}

std::vector<std::string> StepNames(const ExecutionPlan& plan, int begin) {
  std::vector<std::string> names;
  for (size_t s = begin; s < plan.steps().size(); ++s) {
    std::string name = StepName(plan, plan.steps()[s]);
    if (!name.empty()) names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> ProvidersWithRounding(const ExecutionPlan& plan) {
  std::vector<std::string> names;
  for (const auto& provider : plan.providers())
    names.push_back(provider->name() + " (" + provider->rounding() + ")");
  return names;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The values that steps from `pc` on read, and that were there before: computed, fed or taken in.
std::vector<uint32_t> LiveValues(const ExecutionPlan& plan, int pc) {
  std::unordered_map<uint32_t, int> maker;
  std::vector<uint32_t> read;
  for (int s = 0; s < static_cast<int>(plan.steps().size()); ++s) {
    const PlanStep& step = plan.steps()[s];
    const uint32_t* ids = plan.argument_values().data() + step.first_argument;
    for (uint32_t i = 0; i < step.output_count; ++i) maker.emplace(ids[step.input_count + i], s);
    if (s >= pc) read.insert(read.end(), ids, ids + step.input_count);
  }
  for (const Yield::Item& item : plan.fetches()) read.push_back(item.value);
  std::vector<uint32_t> live;
  std::unordered_set<uint32_t> seen;
  for (uint32_t id : read) {
    if (id == 0 || !seen.insert(id).second) continue;
    const PlannedBuffer& buffer = plan.buffers()[plan.values()[id].buffer];
    const auto made = maker.find(id);
    const bool later = made != maker.end() && made->second >= pc;
    if (!later && buffer.first_step < pc) live.push_back(id);
  }
  return live;
}

std::string DescribeSpec(const FeedSpec& spec) {
  if (!spec.is_tensor) return "no tensor";
  if (spec.dtype == DType::kUndefined) return "left out";
  return DTypeName(spec.dtype) + spec.shape.ToString();
}

bool SameValue(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() ||
         (a.dtype() == b.dtype() && a.shape() == b.shape() && a.dtype() != DType::kString &&
          std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

// The first thing that keeps a run of `plan` from going on where the snapshot was taken.
Status CheckFits(const StateSnapshot& snapshot, const ExecutionPlan& plan) {
  const auto differs = [](const std::string& what, const std::string& there,
                          const std::string& here) {
    return InvalidArgument("the snapshot does not fit the program: " + what + " is " + there +
                           " in the snapshot and " + here + " in the program");
  };
  if (snapshot.feeds.size() != plan.feeds().size()) {
    return differs("the number of inputs", std::to_string(snapshot.feeds.size()),
                   std::to_string(plan.feeds().size()));
  }
  for (size_t i = 0; i < snapshot.feeds.size(); ++i) {
    const auto& [name, spec, value] = snapshot.feeds[i];
    const std::string& own = plan.graph().inputs()[i]->name();
    if (name != own)
      return differs("input " + std::to_string(i), "'" + name + "'", "'" + own + "'");
    const FeedSpec& expected = plan.feeds()[i];
    if (DescribeSpec(spec) != DescribeSpec(expected))
      return differs("input '" + name + "'", DescribeSpec(spec), DescribeSpec(expected));
    if (!SameValue(spec.value, expected.value))
      return differs("input '" + name + "'", "of one value", "of another");
  }
  const std::vector<const Value*>& parameters = plan.options().parameters;
  if (snapshot.parameters.size() != parameters.size()) {
    return differs("the number of parameters", std::to_string(snapshot.parameters.size()),
                   std::to_string(parameters.size()));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const StateSnapshot::Parameter& there = snapshot.parameters[i];
    const Tensor& own = *plan.graph().Initializer(parameters[i]);
    const auto text = [](const std::string& name, DType dtype, const Shape& shape) {
      return "'" + name + "' " + DTypeName(dtype) + shape.ToString();
    };
    const std::string expected = text(parameters[i]->name(), own.dtype(), own.shape());
    const std::string got = text(there.name, there.dtype, there.shape);
    if (got != expected) return differs("parameter " + std::to_string(i), got, expected);
  }
  return {};
}

}  // namespace

std::vector<std::string> DescribeDifferences(const StateSnapshot& snapshot,
                                             const ExecutionPlan& plan) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const std::string& there, const std::string& here) {
    if (there != here)
      differences.push_back(std::string(what) + ": " + there + " there, " + here + " here");
  };
  if (snapshot.fingerprint == plan.fingerprint()) return differences;
  compare("threads", std::to_string(snapshot.threads), std::to_string(plan.threads()));
  compare("providers", Joined(snapshot.providers), Joined(ProvidersWithRounding(plan)));
  if (differences.empty())
    differences.push_back("kernels: other ones were chosen, or the program was planned otherwise");
  return differences;
}

// --- from a state ---

bool ExecutionState::IsWritten(int parameter) const {
  bool written = false;
  for (int s = 0; s < pc_ && !written; ++s)
    ForEachWrittenParameter(*plan_, s, [&](int p) { written |= p == parameter; });
  return written;
}

uint32_t ExecutionState::HolderOf(uint32_t id) const {
  const uint32_t buffer = plan_->values()[id].buffer;
  if (plan_->buffers()[buffer].kind != Kind::kResume) return id;
  for (const Yield& yield : plan_->yields()) {
    for (uint32_t given : yield.resume_values) {
      if (given != 0 && plan_->values()[given].buffer == buffer) return given;
    }
  }
  return id;
}

// The feed that holds a live value, or -1. A feed that was copied to another device counts, too.
int ExecutionState::FeedOf(uint32_t live) const {
  const PlannedBuffer& buffer = plan_->buffers()[plan_->values()[live].buffer];
  if (buffer.kind == Kind::kFeed) return buffer.index;
  const std::vector<uint32_t>& fed = plan_->feed_values();
  const auto found = std::find(fed.begin(), fed.end(), live);
  return found == fed.end() ? -1 : static_cast<int>(found - fed.begin());
}

Result<RuntimeValue> ExecutionState::OnHost(const RuntimeValue& value) const {
  if (!value.is_tensor() || value.tensor().device().is_host()) return value;
  ASSIGN_OR_RETURN(Tensor copy, CopyTo(value.tensor(), 0, AllocatorOf(0)));
  return RuntimeValue(std::move(copy));
}

// Everything but the values of feeds and of nodes.
StateSnapshot ExecutionState::CapturePosition() const {
  StateSnapshot out;
  out.fingerprint = plan_->fingerprint();
  out.threads = plan_->threads();
  out.providers = ProvidersWithRounding(*plan_);
  out.remaining = StepNames(*plan_, pc_);
  out.program_counter = pc_;
  out.yield_index = stage_ == Stage::kYielded ? yield_index_ : -1;
  out.seed = options_.seed.value_or(0);
  out.step = options_.step.value_or(0);
  out.tag = options_.tag;
  out.handed_out = handed_out_;
  out.yielded = yielded_;
  for (size_t i = 0; i < plan_->feeds().size(); ++i)
    out.feeds.push_back({plan_->graph().inputs()[i]->name(), plan_->feeds()[i]});
  for (size_t i = 0; i < plan_->options().parameters.size(); ++i) {
    const int index = static_cast<int>(i);
    const Tensor& tensor = options_.parameters->tensor(index);
    out.parameters.push_back(
        {plan_->options().parameters[i]->name(), tensor.dtype(), tensor.shape(), IsWritten(index)});
  }
  return out;
}

// A value that a node made: its bytes on the host, or the parameter that it is.
Status ExecutionState::CaptureValue(uint32_t id, StateSnapshot::Value* out) const {
  const Kind kind = plan_->buffers()[plan_->values()[id].buffer].kind;
  if (kind != Kind::kDynamic && kind != Kind::kResume) {
    ASSIGN_OR_RETURN(out->value, HostValueOf(id));
    return {};
  }
  const RuntimeValue& own = dynamic_[id];
  for (int p = 0; own.is_tensor() && p < static_cast<int>(plan_->options().parameters.size());
       ++p) {
    if (options_.parameters->tensor(p).raw() == own.tensor().raw())
      out->parameter = options_.parameters->name(p);
  }
  if (!out->parameter.empty()) return {};
  ASSIGN_OR_RETURN(out->value, OnHost(own));
  return {};
}

Result<StateSnapshot> ExecutionState::Capture() const try {
  if (stage_ != Stage::kReady && stage_ != Stage::kYielded) {
    return InvalidArgument("a snapshot needs a run that was started and has not ended");
  }
  StateSnapshot out = CapturePosition();
  std::unordered_set<std::string> names;
  for (uint32_t live : LiveValues(*plan_, pc_)) {
    if (const int feed = FeedOf(live); feed >= 0) {
      ASSIGN_OR_RETURN(out.feeds[feed].value, OnHost(feeds_[feed]));
      continue;
    }
    const Kind kind = plan_->buffers()[plan_->values()[live].buffer].kind;
    if (kind == Kind::kConstant || kind == Kind::kParameter) continue;
    const uint32_t id = HolderOf(live);
    StateSnapshot::Value value{plan_->values()[id].value->name()};
    if (!names.insert(value.name).second) continue;  // the same on two devices
    if (kind == Kind::kResume && IsAwaited(id)) continue;
    RETURN_IF_ERROR(CaptureValue(id, &value));
    out.values.push_back(std::move(value));
  }
  RETURN_IF_ERROR(WaitForDevices());
  return out;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was captured");
}

// --- to a state ---

// True if the yield that the run waits at takes the value in.
bool ExecutionState::IsAwaited(uint32_t id) const {
  if (stage_ != Stage::kYielded) return false;
  const std::vector<uint32_t>& taken = plan_->yields()[yield_index_].resume_values;
  return std::find(taken.begin(), taken.end(), id) != taken.end();
}

Status ExecutionState::PlaceValue(uint32_t id, const Tensor& given) {
  const PlannedValue& value = plan_->values()[id];
  const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
  void*& address = addresses_[value.buffer];
  if (buffer.kind == Kind::kCached && cached_[buffer.index] == nullptr) {
    ASSIGN_OR_RETURN(cached_[buffer.index], AllocatorOf(buffer.device).Allocate(buffer.bytes));
    address = cached_[buffer.index]->data();
  }
  if (value.layout.dense())
    return plan_->CopyBytes(buffer.device, address, 0, given.raw(), given.bytes());
  const size_t element = DTypeSize(given.dtype());
  if (buffer.device == 0) {
    CopyToLayout(given.raw(), value.shape, value.layout, element, address);
    return {};
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> all, AllocatorOf(0).Allocate(buffer.bytes));
  RETURN_IF_ERROR(plan_->CopyBytes(0, all->data(), buffer.device, address, buffer.bytes));
  RETURN_IF_ERROR(WaitForDevices());
  CopyToLayout(given.raw(), value.shape, value.layout, element, all->data());
  RETURN_IF_ERROR(plan_->CopyBytes(buffer.device, address, 0, all->data(), buffer.bytes));
  return WaitForDevices();
}

Status ExecutionState::RestoreValue(uint32_t id, const StateSnapshot::Value& given) {
  const PlannedValue& value = plan_->values()[id];
  const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
  const bool held = buffer.kind == Kind::kDynamic || buffer.kind == Kind::kResume;
  const auto wrong = [&](const std::string& expected) {
    return InvalidArgument("the snapshot does not fit the program: value '" + given.name + "' is " +
                           given.value.Describe() + " in the snapshot and " + expected +
                           " in the program");
  };
  if (!given.parameter.empty()) {
    const int parameter =
        options_.parameters == nullptr ? -1 : options_.parameters->Find(given.parameter);
    if (buffer.kind != Kind::kDynamic || parameter < 0) return wrong("no parameter");
    SetDynamic(id, options_.parameters->tensor(parameter));
    return {};
  }
  const bool fits = given.value.is_tensor() && given.value.tensor().dtype() == value.dtype &&
                    given.value.tensor().shape() == value.shape;
  if (value.known && !fits) return wrong(DTypeName(value.dtype) + value.shape.ToString());
  if (!held) return PlaceValue(id, given.value.tensor());
  RuntimeValue own = given.value;
  if (own.is_tensor()) {
    ASSIGN_OR_RETURN(Tensor copy, CopyTo(own.tensor(), buffer.device, AllocatorOf(buffer.device)));
    own = std::move(copy);
  }
  SetDynamic(id, std::move(own));
  return {};
}

Status ExecutionState::FindPosition(const StateSnapshot& snapshot) {
  pc_ = 0;
  // A run that has not begun fits every program of these inputs and parameters.
  if (snapshot.program_counter == 0 && snapshot.values.empty()) return {};
  const int count = static_cast<int>(plan_->steps().size());
  const std::vector<std::string> own = StepNames(*plan_, 0);
  const size_t left = snapshot.remaining.size();
  // Compared from the end: what ran before the snapshot may have been planned otherwise.
  for (size_t i = 0; i < left && i < own.size(); ++i) {
    const std::string& there = snapshot.remaining[left - 1 - i];
    const std::string& here = own[own.size() - 1 - i];
    if (there == here) continue;
    return InvalidArgument("the snapshot does not fit the program: step " + std::to_string(i + 1) +
                           " from the end makes '" + there + "' in the snapshot and '" + here +
                           "' in the program");
  }
  if (left > own.size()) {
    return InvalidArgument("the snapshot does not fit the program: it has " + std::to_string(left) +
                           " steps to run, the program has " + std::to_string(own.size()));
  }
  pc_ = count;
  for (size_t found = 0; found < left;) {
    if (!StepName(*plan_, plan_->steps()[--pc_]).empty()) ++found;
  }
  // Copies for a step are made by the run itself where the snapshot is of the same plan.
  const int there = snapshot.program_counter;
  if (there >= 0 && there < pc_ && StepNames(*plan_, there) == snapshot.remaining) pc_ = there;
  return {};
}

Status ExecutionState::Restore(const StateSnapshot& snapshot, RunOptions options) try {
  Cancel();
  RETURN_IF_ERROR(CheckFits(snapshot, *plan_));
  const auto yields = static_cast<int>(plan_->yields().size());
  if (snapshot.yield_index < -1 || snapshot.yield_index >= yields) {
    return InvalidArgument("the snapshot does not fit the program: it waits at yield " +
                           std::to_string(snapshot.yield_index) + ", the program has " +
                           std::to_string(yields));
  }
  const Status restored = RestoreRun(snapshot, std::move(options));
  if (!restored.ok()) Cancel();
  return restored;
} catch (const std::bad_alloc&) {
  Cancel();
  return OutOfMemory("memory ran out while a run was restored");
}

Status ExecutionState::RestoreRun(const StateSnapshot& snapshot, RunOptions options) {
  options_ = std::move(options);
  options_.seed = snapshot.seed;
  options_.step = snapshot.step;
  options_.tag = snapshot.tag;
  RETURN_IF_ERROR(FindPosition(snapshot));
  RETURN_IF_ERROR(BindArenas());
  RETURN_IF_ERROR(PutRandomKeys());
  RETURN_IF_ERROR(BindParameters());
  for (int p = 0; p < static_cast<int>(snapshot.parameters.size()); ++p) {
    if (snapshot.parameters[p].written == IsWritten(p)) continue;
    return InvalidArgument("the snapshot does not fit the program: parameter '" +
                           snapshot.parameters[p].name + "' is " +
                           (IsWritten(p)
                                ? "updated at this step in the program, not in the snapshot"
                                : "updated in the snapshot, not at this step in the program"));
  }
  RETURN_IF_ERROR(RestoreStage(snapshot));
  RETURN_IF_ERROR(BindFetches());
  RETURN_IF_ERROR(RestoreValues(snapshot));
  RETURN_IF_ERROR(WaitForDevices());
  return VerifyContiguous();
}

// Ready to run the next step, or waiting at the snapshot's yield.
Status ExecutionState::RestoreStage(const StateSnapshot& snapshot) {
  stage_ = Stage::kReady;
  if (snapshot.yield_index < 0) {
    handed_out_.reserve(plan_->fetches().size());
    return {};
  }
  stage_ = Stage::kYielded;
  yield_index_ = snapshot.yield_index;
  const Yield& yield = plan_->yields()[yield_index_];
  const size_t taken = snapshot.handed_out.size(), seen = snapshot.yielded.size();
  if (yield.step != pc_ - 1 || (taken != 0 && taken != yield.outputs.size()) ||
      (seen != 0 && seen != yield.outputs.size())) {
    return InvalidArgument("the snapshot does not fit the program: it waits at yield " +
                           std::to_string(yield_index_) + ", the program does not");
  }
  handed_out_ = snapshot.handed_out;
  yielded_ = snapshot.yielded;
  return {};
}

// Every value that the steps from here on read. One plan reads a parameter or a constant where it
// is; another one has copied it from or to a device: so these are sources, too.
Status ExecutionState::RestoreValues(const StateSnapshot& snapshot) {
  feeds_.assign(snapshot.feeds.size(), {});
  std::unordered_map<std::string, StateSnapshot::Value> values;
  for (const StateSnapshot::Value& value : snapshot.values) values[value.name] = value;
  for (const StateSnapshot::Feed& feed : snapshot.feeds) {
    if (feed.value.has_value()) values.try_emplace(feed.name, feed.name, feed.value);
  }
  std::unordered_map<std::string, Tensor> lasting;
  for (int p = 0; p < static_cast<int>(snapshot.parameters.size()); ++p) {
    if (IsWritten(p)) continue;
    lasting.emplace(plan_->options().parameters[p]->name(), options_.parameters->tensor(p));
  }
  std::unordered_set<uint32_t> done;
  for (uint32_t live : LiveValues(*plan_, pc_)) {
    if (const int feed = FeedOf(live); feed >= 0) {
      StateSnapshot::Feed given = snapshot.feeds[feed];
      if (const auto found = values.find(given.name); found != values.end())
        given.value = found->second.value;
      RETURN_IF_ERROR(RestoreFeed(feed, given));
      continue;
    }
    const Kind kind = plan_->buffers()[plan_->values()[live].buffer].kind;
    if (kind == Kind::kConstant || kind == Kind::kParameter) continue;
    const uint32_t id = HolderOf(live);
    if (!done.insert(id).second || (kind == Kind::kResume && IsAwaited(id))) continue;
    const std::string& name = plan_->values()[id].value->name();
    const Tensor* constant = plan_->graph().Initializer(plan_->values()[id].value);
    if (constant != nullptr) lasting.try_emplace(name, *constant);
    if (const auto own = lasting.find(name); own != lasting.end() && values.count(name) == 0) {
      ASSIGN_OR_RETURN(Tensor here, ToHost(own->second, plan_->providers()));
      values.try_emplace(name, name, std::move(here));
    }
    const auto found = values.find(name);
    if (found == values.end()) {
      return InvalidArgument("the snapshot does not fit the program: value '" + name +
                             "', which later steps read, is not in the snapshot");
    }
    RETURN_IF_ERROR(RestoreValue(id, found->second));
  }
  return {};
}

Status ExecutionState::RestoreFeed(int feed, const StateSnapshot::Feed& given) {
  const uint32_t id = plan_->feed_values()[feed];
  if (id == 0 || feeds_[feed].has_value()) return {};
  const FeedSpec& spec = plan_->feeds()[feed];
  RuntimeValue value = given.value;
  if (value.is_tensor() && spec.device != value.tensor().device()) {
    const PlannedBuffer& buffer = plan_->buffers()[plan_->values()[id].buffer];
    ASSIGN_OR_RETURN(Tensor copy,
                     CopyTo(value.tensor(), buffer.device, AllocatorOf(buffer.device)));
    value = std::move(copy);
  }
  if (!spec.Matches(value)) {
    return InvalidArgument("the snapshot does not fit the program: input '" + given.name + "' is " +
                           value.Describe() + " in the snapshot and " + DescribeSpec(spec) +
                           " in the program");
  }
  if (value.is_tensor()) addresses_[plan_->values()[id].buffer] = value.tensor().raw();
  else dynamic_[id] = value;
  feeds_[feed] = std::move(value);
  return {};
}

}  // namespace caesura
