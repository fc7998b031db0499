// SPDX-License-Identifier: Apache-2.0
#include "core/plan/plan_builder.h"

#include <omp.h>

#include <algorithm>

#include "core/base/env.h"
#include "core/base/status_macros.h"
#include "core/plan/function_expansion.h"
#include "core/plan/node_error.h"
#include "core/providers/compiled_subgraph.h"

namespace caesura {
namespace {

// A provider has a kernel for the body as a whole; it is not run here.
bool IsCompiled(const Node& node) { return node.Is(kCompiledSubgraphOp, kCaesuraDomain); }

}  // namespace

PlanBuilder::PlanBuilder(std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds,
                         const ProviderList& providers, const PlanOptions& options)
    : plan_(std::make_shared<ExecutionPlan>()), graph_(*graph) {
  plan_->graph_ = std::move(graph);
  plan_->feeds_ = feeds;
  plan_->providers_ = providers;
  plan_->options_ = options;
  plan_->threads_ = options.threads > 0 ? options.threads : env::NumThreads();
  if (plan_->threads_ <= 0) plan_->threads_ = omp_get_max_threads();
  const size_t values = graph_.Values().size() + 1;
  plan_->values_.reserve(values);
  plan_->buffers_.reserve(values);
  plan_->steps_.reserve(graph_.nodes().size());
  value_ids_.reserve(values);
  readers_.reserve(values);
  plan_->buffers_.push_back({});  // 0: absent
  plan_->values_.push_back({});
  known_values_.push_back(nullptr);
  parameters_of_.emplace_back();
  from_parameters_.push_back(false);
  last_use_.push_back(-1);
  record_of_.push_back(-1);
}

uint32_t PlanBuilder::ValueId(const Value* value) {
  if (value == nullptr) return 0;
  auto [it, fresh] = value_ids_.try_emplace(value, static_cast<uint32_t>(plan_->values_.size()));
  if (fresh) {
    plan_->values_.push_back({value, 0, false, value->dtype(), {}, {}});
    known_values_.push_back(nullptr);
    parameters_of_.emplace_back();
    from_parameters_.push_back(false);
    auto readers = readers_.find(value);
    last_use_.push_back(readers == readers_.end() ? -1 : readers->second.back().position);
    record_of_.push_back(-1);
  }
  return it->second;
}

uint32_t PlanBuilder::NewBuffer(Kind kind, size_t bytes, int index, uint32_t id, int device) {
  PlannedBuffer buffer;
  buffer.kind = kind;
  buffer.device = static_cast<uint8_t>(device);
  buffer.bytes = bytes;
  buffer.index = index;
  // Until lifetimes are computed, last_step is the position of the last *node* that reads the
  // buffer.
  buffer.last_step = last_use_[id];
  plan_->buffers_.push_back(buffer);
  return static_cast<uint32_t>(plan_->buffers_.size() - 1);
}

void PlanBuilder::Place(uint32_t id, Kind kind, DType dtype, const Shape& shape, int index,
                        int device) {
  PlannedValue& value = plan_->values_[id];
  value.known = true;
  value.dtype = dtype;
  value.shape = shape;
  value.buffer =
      NewBuffer(kind, static_cast<size_t>(shape.elements()) * DTypeSize(dtype), index, id, device);
}

InputInfo PlanBuilder::Describe(const ExecutionPlan& plan, uint32_t value_id) {
  if (value_id == 0) return {};
  const PlannedValue& value = plan.values_[value_id];
  InputInfo info;
  info.present = true;
  info.is_tensor = value.known || value.value->type().is_tensor();
  info.dtype = value.dtype;
  info.shape = value.shape;
  info.layout = value.layout;
  return info;
}

InputInfo PlanBuilder::Describe(uint32_t value_id) const {
  InputInfo info = Describe(*plan_, value_id);
  info.value = known_values_[value_id];
  return info;
}

void PlanBuilder::AddFeed(const Value* value, int index) {
  const FeedSpec& spec = plan_->feeds_[index];
  const uint32_t id = ValueId(value);
  Place(id, spec.is_tensor ? Kind::kFeed : Kind::kDynamic, spec.dtype, spec.shape, index,
        placement_->IndexOf(spec.device));
  plan_->values_[id].known = spec.is_tensor;
  if (spec.value.defined()) known_values_[id] = &spec.value;
  plan_->feed_values_.push_back(id);
}

void PlanBuilder::AddParameter(const Value* value, const Tensor& initial, int index) {
  const uint32_t id = ValueId(value);
  Place(id, Kind::kParameter, initial.dtype(), initial.shape(), index,
        placement_->IndexOf(initial.device()));
  parameters_of_[id] = {index};
  from_parameters_[id] = true;
}

void PlanBuilder::AddConstant(const Value* value, const Tensor& tensor) {
  const uint32_t id = ValueId(value);
  Place(id, Kind::kConstant, tensor.dtype(), tensor.shape(),
        static_cast<int>(plan_->constants_.size()), placement_->IndexOf(tensor.device()));
  plan_->constants_.push_back(tensor);
  if (tensor.device().is_host()) known_values_[id] = graph_.Initializer(value);
}

// Decides on providers and devices. `ends`: what the feeds are for.
Status PlanBuilder::PlaceNodes(const std::vector<const Value*>& ends) {
  if (plan_->feeds_.size() != ends.size()) {
    return InvalidArgument("the graph has " + std::to_string(ends.size()) + " inputs, got " +
                           std::to_string(plan_->feeds_.size()) + " feeds");
  }
  plan_->devices_ = DevicesOf(plan_->providers_);
  if (plan_->devices_.size() > kMaxDevices) {
    return Unsupported("a plan over " + std::to_string(plan_->devices_.size()) +
                       " devices; at most " + std::to_string(kMaxDevices));
  }
  std::unordered_map<const Value*, int> given;
  auto add = [&](const Value* value, Device device) -> Status {
    auto same = [&](const DeviceMemory& memory) { return memory.device == device; };
    auto found = std::find_if(plan_->devices_.begin(), plan_->devices_.end(), same);
    if (found == plan_->devices_.end()) {
      return InvalidArgument("'" + value->name() + "' is on " + device.ToString() +
                             ", which no provider serves");
    }
    if (found != plan_->devices_.begin())
      given[value] = static_cast<int>(found - plan_->devices_.begin());
    return {};
  };
  for (size_t i = 0; i < ends.size(); ++i) RETURN_IF_ERROR(add(ends[i], plan_->feeds_[i].device));
  for (const auto& [value, tensor] : graph_.initializers()) {
    if (tensor.device() != Device{}) RETURN_IF_ERROR(add(value, tensor.device()));
  }
  placement_.emplace(graph_, plan_->providers_, std::move(given));
  return {};
}

Status PlanBuilder::AddEnds(const std::vector<const Value*>& captured) {
  std::vector<const Value*> ends(graph_.inputs().begin(), graph_.inputs().end());
  ends.insert(ends.end(), captured.begin(), captured.end());
  RETURN_IF_ERROR(PlaceNodes(ends));
  for (size_t i = 0; i < ends.size(); ++i) {
    // A feed that is left out falls back to the initializer of its name.
    const bool left_out = plan_->feeds_[i].is_tensor && plan_->feeds_[i].dtype == DType::kUndefined;
    if (left_out && graph_.Initializer(ends[i]) != nullptr) {
      plan_->feed_values_.push_back(0);
    } else {
      AddFeed(ends[i], static_cast<int>(i));
    }
  }
  for (size_t i = 0; i < plan_->options_.parameters.size(); ++i) {
    const Value* value = plan_->options_.parameters[i];
    const Tensor* initial = graph_.Initializer(value);
    if (initial == nullptr)
      return Internal("parameter '" + value->name() + "' has no initial value");
    AddParameter(value, *initial, static_cast<int>(i));
  }
  for (const Value* value : graph_.Values()) {
    const Tensor* tensor = graph_.Initializer(value);
    if (tensor != nullptr && !value_ids_.count(value)) AddConstant(value, *tensor);
  }
  return {};
}

PlanBuilder::Draft PlanBuilder::MakeDraft(const Node& node, int position) {
  Draft draft{&node, position, ProvidersFor(node, plan_->providers_),
              plan_->providers_.front().get(), static_cast<int>(node.inputs().size())};
  if (!draft.candidates.empty()) draft.provider = draft.candidates.front();
  for (const Value* input : node.inputs()) draft.inputs.push_back(ValueId(input));
  for (const Value* input : Graph::ImplicitInputs(node)) draft.inputs.push_back(ValueId(input));
  for (uint32_t id : draft.inputs) draft.infos.push_back(Describe(id));
  for (const Value* output : node.outputs()) draft.outputs.push_back(ValueId(output));
  if (!node.Subgraphs().empty() && !IsCompiled(node)) AddBodies(draft);
  return draft;
}

void PlanBuilder::AddBodies(Draft& draft) {
  for (const Graph* body :
       draft.node
           ->Subgraphs()) {  // planned when they are reached; what they lack should be known before
    const std::vector<std::string> lines = MissingInBody(*body, plan_->providers_);
    missing_.insert(missing_.end(), lines.begin(), lines.end());
  }
  if (!plan_->options_.make_subgraph) return;
  SubgraphRequest request;
  request.first_captured = draft.explicit_inputs;
  if (plan_->devices_.size() > 1)
    request.fetch_devices = placement_->BodyResults(*draft.node, *draft.provider);
  for (size_t i = draft.explicit_inputs; i < draft.inputs.size(); ++i) {
    request.captured.push_back(plan_->values_[draft.inputs[i]].value);
    FeedSpec spec;
    if (draft.infos[i].value != nullptr) spec.value = *draft.infos[i].value;
    request.captured_specs.push_back(std::move(spec));
  }
  for (const auto& [name, attribute] : draft.node->attributes()) {
    if (auto* body = std::get_if<std::shared_ptr<Graph>>(&attribute)) {
      request.body = *body;
      draft.bodies.emplace_back(name, plan_->options_.make_subgraph(request));
    }
  }
}

bool PlanBuilder::NeedsRuntimeShapes(Draft& draft) const {
  for (int i = 0; i < draft.explicit_inputs;
       ++i) {  // bodies take their captured values in the run anyway
    if (draft.inputs[i] != 0 && !plan_->values_[draft.inputs[i]].known) return true;
  }
  std::vector<DType> dtypes;
  for (const InputInfo& info : draft.infos) dtypes.push_back(info.dtype);
  const std::vector<const KernelDef*> defs = draft.provider->kernels().Find(*draft.node, dtypes);
  draft.first = defs.empty() ? nullptr : defs.front();
  for (const KernelDef* def : defs) {
    for (int i = 0; i < draft.explicit_inputs; ++i) {
      if (draft.infos[i].present && draft.infos[i].value == nullptr &&
          def->IsHostInput(*draft.node, i))
        return true;
    }
  }
  return false;
}

Status PlanBuilder::AddNode(const Node& node, int position) {
  if (node.Is("YieldOp", kCaesuraDomain)) return AddYield(node, position);
  Draft draft = MakeDraft(node, position);
  std::string why;
  for (const ExecutionProvider* provider : draft.candidates) {
    draft.provider = provider;
    const Result<bool> done = TryProvider(draft, &why);
    if (!done.ok()) return AtNode(done.status(), node, provider->name());
    if (*done) return {};
  }
  if (draft.candidates.empty()) {
    ProvidersFor(node, plan_->providers_, &why);
    why = node.Label() + " has no kernel on " + why;
  }
  missing_.push_back(why);
  return AddDynamic(draft);  // so that the walk goes on and finds the others
}

// False when all kernels of the provider refuse; `why` then grows by their reasons.
Result<bool> PlanBuilder::TryProvider(Draft& draft, std::string* why) {
  if (NeedsRuntimeShapes(draft)) {
    RETURN_IF_ERROR(AddDynamic(draft));
    return true;
  }
  KernelInfo info(*draft.node, draft.infos, plan_->threads_);
  bool runs_bodies = false;
  info.set_subgraph_runner([&](const std::string& name) -> std::shared_ptr<SubgraphRunner> {
    runs_bodies = true;
    for (const auto& [body_name, runner] : draft.bodies) {
      if (body_name == name) return runner;
    }
    return nullptr;
  });
  auto created = draft.provider->kernels().Create(info, draft.provider->name());
  if (!created.ok() && created.status().code() == StatusCode::kUnsupported) {
    *why += (why->empty() ? "" : "; ") + created.status().message();
    return false;
  }
  if (!created.ok()) return created.status();
  if (!runs_bodies) draft.bodies.clear();  // they only say what the kernel computes
  ASSIGN_OR_RETURN(const bool folded, TryFold(draft, info, **created));
  if (folded) Record(draft, NodeRecord::Kind::kFolded, *created);
  else RETURN_IF_ERROR(AddPlanned(draft, info, **created));
  return true;
}

// --- for plans of other sizes ---

void PlanBuilder::Record(const Draft& draft, NodeRecord::Kind kind, const KernelDef* def,
                         int step) {
  NodeRecord record;
  // The provider that placement wants has refused: with other sizes it might not.
  const bool refused = draft.candidates.empty() || draft.provider != draft.candidates.front();
  record.kind = refused || !draft.bodies.empty() ? NodeRecord::Kind::kFixed : kind;
  record.first = def == draft.first;
  record.node = draft.node;
  record.provider = draft.provider;
  record.def = def;
  record.step = step;
  record.ids = static_cast<uint32_t>(recipe_.ids.size());
  record.input_count = static_cast<uint32_t>(draft.inputs.size());
  record.output_count = static_cast<uint32_t>(draft.outputs.size());
  for (uint32_t id : draft.outputs) record_of_[id] = static_cast<int>(recipe_.nodes.size());
  for (const auto* ids : {&draft.inputs, &draft.outputs})
    recipe_.ids.insert(recipe_.ids.end(), ids->begin(), ids->end());
  recipe_.nodes.push_back(record);
}

void PlanBuilder::Fix(uint32_t id) {
  recipe_.nodes[record_of_[id]].kind = NodeRecord::Kind::kFixed;
}

void PlanBuilder::FinishRecipe() {
  if (plan_->devices_.size() > 1 || !plan_->yields_.empty() || !plan_->contiguous_.empty()) return;
  recipe_.known_values.reserve(known_values_.size());
  for (const Tensor* value : known_values_) recipe_.known_values.push_back(value != nullptr);
  plan_->recipe_ = std::make_shared<const PlanRecipe>(std::move(recipe_));
}

Status PlanBuilder::AddFetches() {
  for (const Value* output : graph_.outputs()) {
    if (!IsWanted(plan_->fetches_.size())) {
      plan_->fetches_.push_back({0, false, output->name(), 0});
      continue;
    }
    const uint32_t id = ValueId(output);
    if (plan_->values_[id].buffer == 0) {
      return InvalidModel("graph output '" + output->name() +
                          "' is made by no node, input or initializer");
    }
    const std::vector<std::optional<Device>>& wanted = plan_->options_.fetch_devices;
    const size_t i = plan_->fetches_.size();
    const Device device = i < wanted.size() && wanted[i] ? *wanted[i] : Device{};
    const int index = i < wanted.size() && !wanted[i] ? DeviceOf(id) : placement_->IndexOf(device);
    if (index < 0)
      return InvalidArgument("no provider serves " + device.ToString() + ", where graph output '" +
                             output->name() + "' is wanted");
    plan_->fetches_.push_back({id, false, output->name(), static_cast<uint8_t>(index)});
  }
  return {};
}

Result<std::shared_ptr<const ExecutionPlan>> PlanBuilder::Build(
    const std::vector<const Value*>& captured) {
  FindNeeded();
  FindReaders();
  RETURN_IF_ERROR(AddEnds(captured));
  int position = -1;
  for (const auto& node : graph_.nodes()) {
    if (needed_[++position]) RETURN_IF_ERROR(AddNode(*node, position));
  }
  RETURN_IF_ERROR(NoKernels(missing_));
  RETURN_IF_ERROR(AddFetches());
  ComputeLifetimes();
  MoveFetches();
  AddHandedOutCopies();
  AddReleases();
  RETURN_IF_ERROR(PlaceBuffers(*plan_));
  FinishRecipe();
  return std::shared_ptr<const ExecutionPlan>(plan_);
}

}  // namespace caesura
