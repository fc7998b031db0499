// SPDX-License-Identifier: Apache-2.0
// The two ends of a plan: feeds, parameters and constants; graph outputs. Also the readers of each
// value.
#include <algorithm>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/graph/op_def.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

bool IsWanted(const PlanOptions& options, size_t output) {
  const std::vector<bool>& wanted = options.wanted_fetches;
  return wanted.empty() || (output < wanted.size() && wanted[output]);
}

namespace {

void FindNeeded(PlanDraft& plan) {
  const Graph& graph = plan.graph();
  const PlanOptions& options = plan.data.options;
  plan.needed.assign(graph.nodes().size(), options.wanted_fetches.empty());
  if (options.wanted_fetches.empty()) return;
  std::unordered_set<const Value*> read;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    if (IsWanted(options, i)) read.insert(graph.outputs()[i]);
  }
  for (size_t i = plan.needed.size(); i-- > 0;) {
    const Node& node = *graph.nodes()[i];
    const auto is_read = [&](const Value* output) {
      return output != nullptr && read.count(output) > 0;
    };
    plan.needed[i] =
        IsYield(node) || std::any_of(node.outputs().begin(), node.outputs().end(), is_read);
    if (!plan.needed[i]) continue;
    read.insert(node.inputs().begin(), node.inputs().end());
    for (const Value* input : Graph::ImplicitInputs(node)) read.insert(input);
  }
}

}  // namespace

void FindReaders(PlanDraft& plan) {
  FindNeeded(plan);
  const Graph& graph = plan.graph();
  int position = -1;
  for (const auto& node : graph.nodes()) {
    if (!plan.needed[++position]) continue;
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      plan.readers[node->inputs()[i]].push_back({node.get(), position, static_cast<int>(i)});
    }
    for (const Value* input : Graph::ImplicitInputs(*node))
      plan.readers[input].push_back({node.get(), position, -1});
  }
  ++position;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    if (!IsWanted(plan.data.options, i)) continue;
    plan.readers[graph.outputs()[i]].push_back({nullptr, position, -1});
  }
}

namespace {

void AddFeed(PlanDraft& plan, const Value* value, int index) {
  const FeedSpec& spec = plan.data.feeds[index];
  const uint32_t id = ValueId(plan, value);
  PlaceValue(plan, id, spec.is_tensor ? Kind::kFeed : Kind::kDynamic, spec.dtype, spec.shape, index,
             plan.placement->IndexOf(spec.device));
  plan.values[id].known = spec.is_tensor;
  if (spec.value.defined()) plan.values[id].contents = &spec.value;
  plan.data.feed_values.push_back(id);
}

void AddParameter(PlanDraft& plan, const Value* value, const Tensor& initial, int index) {
  const uint32_t id = ValueId(plan, value);
  PlaceValue(plan, id, Kind::kParameter, initial.dtype(), initial.shape(), index,
             plan.placement->IndexOf(initial.device()));
  plan.values[id].parameters = {index};
  plan.values[id].from_parameters = true;
}

void AddConstant(PlanDraft& plan, const Value* value, const Tensor& tensor) {
  const uint32_t id = ValueId(plan, value);
  PlaceValue(plan, id, Kind::kConstant, tensor.dtype(), tensor.shape(),
             static_cast<int>(plan.data.constants.size()),
             plan.placement->IndexOf(tensor.device()));
  plan.data.constants.push_back(tensor);
  if (tensor.device().is_host()) plan.values[id].contents = plan.graph().Initializer(value);
}

// Decides on providers and devices. `ends`: the value that each feed is for.
Status PlaceNodes(PlanDraft& plan, const std::vector<const Value*>& ends) {
  if (plan.data.feeds.size() != ends.size()) {
    return InvalidArgument("the graph has " + std::to_string(ends.size()) + " inputs, got " +
                           std::to_string(plan.data.feeds.size()) + " feeds");
  }
  plan.data.devices = DevicesOf(plan.data.providers);
  if (plan.data.devices.size() > kMaxDevices) {
    return Unsupported("a plan over " + std::to_string(plan.data.devices.size()) +
                       " devices; at most " + std::to_string(kMaxDevices));
  }
  std::unordered_map<const Value*, int> given;
  auto add = [&](const Value* value, Device device) -> Status {
    auto same = [&](const DeviceMemory& memory) { return memory.device == device; };
    auto found = std::find_if(plan.data.devices.begin(), plan.data.devices.end(), same);
    if (found == plan.data.devices.end()) {
      return InvalidArgument("'" + value->name() + "' is on " + device.ToString() +
                             ", which no provider serves");
    }
    if (found != plan.data.devices.begin())
      given[value] = static_cast<int>(found - plan.data.devices.begin());
    return {};
  };
  for (size_t i = 0; i < ends.size(); ++i) RETURN_IF_ERROR(add(ends[i], plan.data.feeds[i].device));
  for (const auto& [value, tensor] : plan.graph().initializers()) {
    if (tensor.device() != Device{}) RETURN_IF_ERROR(add(value, tensor.device()));
  }
  plan.placement.emplace(plan.graph(), plan.data.providers, std::move(given));
  return {};
}

}  // namespace

Status BindInputs(PlanDraft& plan, const std::vector<const Value*>& captured) {
  std::vector<const Value*> ends(plan.graph().inputs().begin(), plan.graph().inputs().end());
  ends.insert(ends.end(), captured.begin(), captured.end());
  RETURN_IF_ERROR(PlaceNodes(plan, ends));
  for (size_t i = 0; i < ends.size(); ++i) {
    // A feed that is left out falls back to the initializer of its name.
    const bool left_out =
        plan.data.feeds[i].is_tensor && plan.data.feeds[i].dtype == DType::kUndefined;
    if (left_out && plan.graph().Initializer(ends[i]) != nullptr) {
      plan.data.feed_values.push_back(0);
    } else {
      AddFeed(plan, ends[i], static_cast<int>(i));
    }
  }
  for (size_t i = 0; i < plan.data.options.parameters.size(); ++i) {
    const Value* value = plan.data.options.parameters[i];
    const Tensor* initial = plan.graph().Initializer(value);
    if (initial == nullptr)
      return Internal("parameter '" + value->name() + "' has no initial value");
    AddParameter(plan, value, *initial, static_cast<int>(i));
  }
  for (const Value* value : plan.graph().Values()) {
    const Tensor* tensor = plan.graph().Initializer(value);
    if (tensor != nullptr && !plan.value_ids.count(value)) AddConstant(plan, value, *tensor);
  }
  return {};
}

Status BindOutputs(PlanDraft& plan) {
  for (const Value* output : plan.graph().outputs()) {
    if (!IsWanted(plan.data.options, plan.data.fetches.size())) {
      plan.data.fetches.push_back({0, false, output->name(), 0});
      continue;
    }
    const uint32_t id = ValueId(plan, output);
    if (plan.values[id].buffer == 0) {
      return InvalidModel("graph output '" + output->name() +
                          "' is made by no node, input or initializer");
    }
    const std::vector<std::optional<Device>>& wanted = plan.data.options.fetch_devices;
    const size_t i = plan.data.fetches.size();
    const Device device = i < wanted.size() && wanted[i] ? *wanted[i] : Device{};
    const int index =
        i < wanted.size() && !wanted[i] ? DeviceOf(plan, id) : plan.placement->IndexOf(device);
    if (index < 0)
      return InvalidArgument("no provider serves " + device.ToString() + ", where graph output '" +
                             output->name() + "' is wanted");
    plan.data.fetches.push_back({id, false, output->name(), static_cast<uint8_t>(index)});
  }
  return {};
}

}  // namespace caesura
