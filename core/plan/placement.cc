// SPDX-License-Identifier: Apache-2.0
#include "core/plan/placement.h"

#include <algorithm>

#include "core/graph/op_def.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

bool IsHostObject(const Value* value) {
  if (value == nullptr) return false;
  using Kind = ValueType::Kind;
  const Kind kind = value->type().kind;
  return kind == Kind::kSequence || kind == Kind::kOptional || kind == Kind::kMap ||
         value->dtype() == DType::kString;
}

bool HandlesHostObjects(const Node& node) {
  return std::any_of(node.inputs().begin(), node.inputs().end(), IsHostObject) ||
         std::any_of(node.outputs().begin(), node.outputs().end(), IsHostObject);
}

}  // namespace

bool RunsBodies(const Node& node) { return node.Is("If") || node.Is("Loop") || node.Is("Scan"); }

std::vector<DeviceMemory> DevicesOf(const ProviderList& providers) {
  std::vector<DeviceMemory> out = {{Device{}, nullptr, &HostAllocator()}};
  for (const auto& provider : providers) {
    auto same = [&](const DeviceMemory& memory) { return memory.device == provider->device(); };
    auto found = std::find_if(out.begin(), out.end(), same);
    if (found == out.end()) found = out.insert(out.end(), {provider->device(), nullptr, nullptr});
    if (found->provider != nullptr) continue;
    found->provider = provider;
    found->allocator = &provider->allocator();
  }
  return out;
}

std::vector<const ExecutionProvider*> ProvidersFor(const Node& node, const ProviderList& providers,
                                                   std::string* why) {
  std::vector<const ExecutionProvider*> out;
  const bool only_host = HandlesHostObjects(node), updates = node.phase() == Phase::kOptimizer;
  for (const auto& provider : providers) {
    const bool pinned = provider->name() == node.provider();
    if (!provider->device().is_host() && (only_host || (updates && !pinned))) continue;
    std::string reason;
    const bool serves = !provider->kernels().Find(node, why == nullptr ? nullptr : &reason).empty();
    if (serves) out.insert(pinned ? out.begin() : out.end(), provider.get());
    else if (why != nullptr) *why += (why->empty() ? "" : "; ") + provider->name() + ": " + reason;
  }
  return out;
}

Placement::Placement(const Graph& graph, const ProviderList& providers,
                     std::unordered_map<const Value*, int> given)
    : providers_(providers), devices_(DevicesOf(providers)), device_of_(std::move(given)) {
  if (devices_.size() > 1) Walk(graph);
}

int Placement::IndexOf(Device device) const {
  auto same = [&](const DeviceMemory& memory) { return memory.device == device; };
  auto found = std::find_if(devices_.begin(), devices_.end(), same);
  return found == devices_.end() ? -1 : static_cast<int>(found - devices_.begin());
}

const ExecutionProvider* Placement::ProviderOf(const Node& node) const {
  const std::vector<const ExecutionProvider*> candidates = ProvidersFor(node, providers_);
  return candidates.empty() ? nullptr : candidates.front();
}

int Placement::DeviceOf(const Value* value) const {
  auto found = device_of_.find(value);
  return found == device_of_.end() ? 0 : found->second;
}

int Placement::OutputDevice(const Node& node, const ExecutionProvider& provider, int i) const {
  if (IsYield(node) || node.Is("If") || carried_.count(&node) > 0) return DeviceOf(node.output(i));
  if (provider.device().is_host()) return 0;
  for (const KernelDef* def : provider.kernels().Find(node)) {
    if (KernelDef::Lists(def->host_outputs, i)) return 0;
  }
  return IndexOf(provider.device());
}

int Placement::InputDevice(const Node& node, const ExecutionProvider& provider, int i) const {
  if (IsYield(node) || i >= static_cast<int>(node.inputs().size())) return kAnywhere;
  if (provider.device().is_host()) {
    auto loop = carried_.find(&node);
    return loop == carried_.end() || i < 2 ? 0 : loop->second[static_cast<size_t>(i) - 2];
  }
  for (const KernelDef* def : provider.kernels().Find(node)) {
    if (def->IsHostInput(node, i)) return 0;
  }
  return IndexOf(provider.device());
}

std::vector<std::optional<Device>> Placement::BodyResults(const Node& node,
                                                          const ExecutionProvider& provider) const {
  std::vector<std::optional<Device>> out;
  if (node.Is("If") || !provider.device().is_host()) {
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      out.push_back(devices_[OutputDevice(node, provider, static_cast<int>(i))].device);
    }
  }
  auto loop = carried_.find(&node);
  if (loop == carried_.end()) return out;
  out.push_back(Device{});  // the condition
  for (int device : loop->second) out.push_back(devices_[device].device);
  return out;
}

void Placement::Walk(const Graph& graph) {
  for (const auto& node : graph.nodes()) PlaceNode(*node);
}

void Placement::PlaceNode(const Node& node) {
  auto place = [&](int output, int device) {
    if (node.output(output) == nullptr) return;
    if (device == 0) device_of_.erase(node.output(output));
    else device_of_[node.output(output)] = device;
  };
  const int outputs = static_cast<int>(node.outputs().size());
  if (IsYield(node)) {
    const std::vector<int> inputs = DifferentiableInputs(node);
    for (int i = 0; i < outputs && i < static_cast<int>(inputs.size()); ++i)
      place(i, DeviceOf(node.input(inputs[i])));
    return;
  }
  const ExecutionProvider* provider = ProviderOf(node);
  if (provider == nullptr) return;
  if (!provider->device().is_host()) {
    for (int i = 0; i < outputs; ++i) place(i, OutputDevice(node, *provider, i));
    return;
  }
  if (node.Is("Loop")) return PlaceLoop(node);
  const std::vector<Graph*> bodies = RunsBodies(node) ? node.Subgraphs() : std::vector<Graph*>();
  for (const Graph* body : bodies) Walk(*body);
  for (int i = 0; i < outputs; ++i) {
    int device = 0;
    for (const Graph* branch : bodies) {
      const bool there = node.Is("If") && i < static_cast<int>(branch->outputs().size());
      if (there) device = std::max(device, DeviceOf(branch->outputs()[i]));
    }
    place(i, device);
  }
}

void Placement::PlaceLoop(const Node& node) {
  const Graph& body = *node.Subgraphs().front();
  std::vector<int> carried;
  for (size_t i = 2; i < node.inputs().size(); ++i) carried.push_back(DeviceOf(node.inputs()[i]));
  if (body.inputs().size() != 2 + carried.size() || body.outputs().size() < 1 + carried.size())
    return;  // is refused
  for (bool moved = true; moved;) {
    for (size_t j = 0; j < carried.size(); ++j) device_of_[body.inputs()[2 + j]] = carried[j];
    Walk(body);
    moved = false;
    for (size_t j = 0; j < carried.size(); ++j) {
      const int result = DeviceOf(body.outputs()[1 + j]);
      moved |= result > carried[j];
      carried[j] = std::max(carried[j], result);
    }
  }
  for (size_t j = 0; j < carried.size() && j < node.outputs().size(); ++j) {
    if (node.outputs()[j] != nullptr) device_of_[node.outputs()[j]] = carried[j];
  }
  carried_[&node] = std::move(carried);
}

}  // namespace caesura
