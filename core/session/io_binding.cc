// SPDX-License-Identifier: Apache-2.0
#include "core/session/session.h"

#include <algorithm>
#include <new>

#include "core/base/status_macros.h"
#include "core/runtime/feeds.h"
#include "core/runtime/program.h"

namespace caesura {
namespace {

// Position of the value called `name`; -1 where there is none.
int Find(const std::vector<Value*>& values, const std::string& name) {
  const auto it =
      std::find_if(values.begin(), values.end(), [&](const Value* v) { return v->name() == name; });
  return it == values.end() ? -1 : static_cast<int>(it - values.begin());
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() && a.bytes() == b.bytes();
}

bool Overlaps(const Tensor& a, const Tensor& b) {
  if (a.device() != b.device() || a.bytes() == 0 || b.bytes() == 0) return false;
  const char *first_a = a.data<char>(), *first_b = b.data<char>();
  return first_a < first_b + b.bytes() && first_b < first_a + a.bytes();
}

}  // namespace

IoBinding::IoBinding(const Session& session) : session_(&session) {
  Bound bound;
  bound.feeds.resize(session.inputs().size());
  bound_ = std::make_shared<const Bound>(std::move(bound));
}

Status IoBinding::BindInput(const std::string& name, RuntimeValue value) {
  const int index = Find(session_->inputs(), name);
  if (index < 0) return InvalidArgument("the model has no input '" + name + "' to bind");
  RETURN_IF_ERROR(CheckFeed(*session_->inputs()[index], value));
  Bound changed = *bound_;
  changed.feeds[index] = std::move(value);
  return Adopt(std::move(changed));
}

Status IoBinding::BindOutput(const std::string& name, Tensor buffer, Overlap overlap) {
  const int index = Find(session_->outputs(), name);
  if (index < 0) return InvalidArgument("the model has no output '" + name + "' to bind");
  const ValueType& type = session_->outputs()[index]->type();
  const bool tensor = type.is_tensor() || type.kind == ValueType::Kind::kUnknown;
  if (!tensor || !buffer.defined() || !Fits(type, buffer)) {
    return InvalidArgument(
        "output '" + name + "' is " + type.ToString() + ", the buffer bound to it is " +
        (buffer.defined() ? DTypeName(buffer.dtype()) + buffer.shape().ToString() : "undefined"));
  }
  const Device device = buffer.device();
  return Put({static_cast<size_t>(index), std::move(buffer), device, overlap});
}

Status IoBinding::BindOutput(const std::string& name, Device device) {
  const int index = Find(session_->outputs(), name);
  if (index < 0) return InvalidArgument("the model has no output '" + name + "' to bind");
  std::string places;
  bool reachable = device.is_host();
  for (const auto& provider : session_->fallback_->providers()) {
    reachable |= provider->device() == device;
    if (!provider->device().is_host()) places += ", " + provider->device().ToString();
  }
  if (!reachable) {
    return InvalidArgument("output '" + name + "' cannot be bound to " + device.ToString() +
                           ": the session's memory is on cpu" + places);
  }
  return Put({static_cast<size_t>(index), Tensor(), device, Overlap::kRefused});
}

Status IoBinding::Put(Output output) {
  Bound changed = *bound_;
  const auto same = [&](const Output& o) { return o.index == output.index; };
  const auto it = std::find_if(changed.outputs.begin(), changed.outputs.end(), same);
  if (it == changed.outputs.end()) changed.outputs.push_back(std::move(output));
  else *it = std::move(output);
  return Adopt(std::move(changed));
}

void IoBinding::ClearInputs() {
  Bound changed = *bound_;
  for (RuntimeValue& feed : changed.feeds) feed = {};
  changed.buffers_on_feeds = false;
  bound_ = std::make_shared<const Bound>(std::move(changed));
}

void IoBinding::ClearOutputs() {
  Bound changed;
  changed.feeds = bound_->feeds;
  bound_ = std::make_shared<const Bound>(std::move(changed));
}

std::vector<std::string> IoBinding::output_names() const {
  std::vector<std::string> names;
  for (const Output& output : bound_->outputs) names.push_back(NameOf(output));
  return names;
}

Status IoBinding::Adopt(Bound changed) {
  const size_t count = session_->outputs().size();
  changed.buffers.clear();
  changed.devices.clear();
  changed.buffers_on_feeds = false;
  std::vector<size_t> indices;
  for (const Output& output : changed.outputs) indices.push_back(output.index);
  changed.wanted = session_->WantedOutputs(indices);
  const ProviderList providers = session_->fallback_->providers();
  const bool devices = std::any_of(providers.begin(), providers.end(),
                                   [](const auto& p) { return !p->device().is_host(); });
  for (size_t i = 0; i < changed.outputs.size(); ++i) {
    const Output& output = changed.outputs[i];
    if (devices) {
      changed.devices.resize(count);  // what is not bound stays where it is made
      changed.devices[output.index] = output.device;
    }
    if (!output.buffer.defined()) continue;
    changed.buffers.resize(count);
    changed.buffers[output.index] = output.buffer;
    for (size_t j = 0; j < i; ++j) {
      if (!changed.outputs[j].buffer.defined() ||
          !Overlaps(output.buffer, changed.outputs[j].buffer))
        continue;
      return InvalidArgument("the buffers bound to outputs '" + NameOf(changed.outputs[j]) +
                             "' and '" + NameOf(output) + "' overlap");
    }
    for (size_t k = 0; k < changed.feeds.size(); ++k) {
      if (!changed.feeds[k].is_tensor() || !Overlaps(output.buffer, changed.feeds[k].tensor()))
        continue;
      changed.buffers_on_feeds = true;
      if (output.overlap == Overlap::kExact && SameBytes(output.buffer, changed.feeds[k].tensor()))
        continue;
      return InvalidArgument(
          "the buffer bound to output '" + NameOf(output) + "' overlaps input '" +
          session_->inputs()[k]->name() + "'" +
          (output.overlap == Overlap::kExact ? ", but is not the same bytes" : ""));
    }
  }
  bound_ = std::make_shared<const Bound>(std::move(changed));
  return {};
}

Result<std::vector<RuntimeValue>> Session::Run(const IoBinding& binding, RunOptions options) try {
  if (binding.session_ != this) return InvalidArgument("the binding is one of another session");
  const std::shared_ptr<const IoBinding::Bound> bound = binding.bound_;
  if (bound->outputs.empty()) return InvalidArgument("no output is bound");
  if (!options.fetch_buffers.empty())
    return InvalidArgument("a caller's buffers are bound, not given as options");
  RETURN_IF_ERROR(CheckComplete(*model().graph, bound->feeds));
  options.fetch_buffers = bound->buffers;
  options.buffers_on_feeds = bound->buffers_on_feeds;
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> all,
                   RunBound(bound->feeds, std::move(options), bound->wanted, bound->devices));
  std::vector<RuntimeValue> results;
  results.reserve(bound->outputs.size());
  for (const IoBinding::Output& output : bound->outputs)
    results.push_back(std::move(all[output.index]));
  return results;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a run");
}

Result<std::vector<OutputSpec>> Session::OutputSpecs(const NamedValues& feeds) try {
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> bound, Bind(feeds));
  return SpecsOf(bound);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was planned");
}

Result<std::vector<OutputSpec>> Session::OutputSpecs(const IoBinding& binding) try {
  if (binding.session_ != this) return InvalidArgument("the binding is one of another session");
  RETURN_IF_ERROR(CheckComplete(*model().graph, binding.bound_->feeds));
  return SpecsOf(binding.bound_->feeds);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was planned");
}

Result<std::vector<OutputSpec>> Session::SpecsOf(const std::vector<RuntimeValue>& feeds) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const ExecutionPlan> plan, program_->Plan(feeds));
  std::vector<OutputSpec> specs;
  for (size_t i = 0; i < outputs().size(); ++i) {
    const PlannedValue& value = plan->values()[plan->fetches()[i].value];
    specs.push_back({outputs()[i]->name(), value.known, value.dtype, value.shape});
  }
  return specs;
}

}  // namespace caesura
