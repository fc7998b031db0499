// SPDX-License-Identifier: Apache-2.0
#include "core/plan/plan_builder.h"

#include <omp.h>

#include <algorithm>
#include <set>

#include "core/base/env.h"
#include "core/base/status_macros.h"
#include "core/kernels/kernel_context.h"

namespace caesura {

struct PlanBuilder::Draft {
  const Node* node;
  const ExecutionProvider* provider;
  std::vector<uint32_t> inputs;  // value ids; explicit, then implicit
  std::vector<uint32_t> outputs;
  std::vector<InputInfo> infos;
  std::vector<std::pair<std::string, std::shared_ptr<SubgraphRunner>>> bodies;
  int explicit_inputs;
};

namespace {

// Serves a kernel that runs while planning: its dynamic outputs become tensors here.
class FoldHost : public KernelHost {
 public:
  FoldHost(const uint32_t* ids, const std::vector<InputInfo>& inputs, std::vector<Tensor>& outputs)
      : ids_(ids), inputs_(inputs), outputs_(outputs) {}
  RuntimeValue ArgumentValue(const uint32_t* argument) override {
    const InputInfo& info = inputs_[argument - ids_];
    return info.value == nullptr ? RuntimeValue() : RuntimeValue(*info.value);
  }
  Result<Tensor> AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) override {
    ASSIGN_OR_RETURN(outputs_[argument - ids_ - inputs_.size()], Tensor::Allocate(dtype, std::move(shape)));
    return outputs_[argument - ids_ - inputs_.size()];
  }
  void SetArgumentValue(const uint32_t* argument, RuntimeValue value) override {
    if (value.is_tensor()) outputs_[argument - ids_ - inputs_.size()] = value.tensor();
  }
  RandomKey random_key(uint32_t stream) const override { return {0, 0, stream}; }

 private:
  const uint32_t* ids_;
  const std::vector<InputInfo>& inputs_;
  std::vector<Tensor>& outputs_;
};

// Folding may enlarge a plan by at most this, or by the size of what the node read.
constexpr size_t kFoldBytes = size_t{1} << 20;

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
  plan_->buffers_.push_back({});  // 0: absent
  plan_->values_.push_back({});
  known_values_.push_back(nullptr);
  parameters_of_.emplace_back();
  from_parameters_.push_back(false);
  last_use_.push_back(-1);
}

uint32_t PlanBuilder::ValueId(const Value* value) {
  if (value == nullptr) return 0;
  auto [it, fresh] = value_ids_.try_emplace(value, static_cast<uint32_t>(plan_->values_.size()));
  if (fresh) {
    plan_->values_.push_back({value, 0, false, value->dtype(), {}});
    known_values_.push_back(nullptr);
    parameters_of_.emplace_back();
    from_parameters_.push_back(false);
    auto last = last_use_of_.find(value);
    last_use_.push_back(last == last_use_of_.end() ? -1 : last->second);
  }
  return it->second;
}

uint32_t PlanBuilder::NewBuffer(Kind kind, size_t bytes, int index) {
  PlannedBuffer buffer;
  buffer.kind = kind;
  buffer.bytes = bytes;
  buffer.index = index;
  plan_->buffers_.push_back(buffer);
  return static_cast<uint32_t>(plan_->buffers_.size() - 1);
}

InputInfo PlanBuilder::Describe(uint32_t value_id) const {
  if (value_id == 0) return {};
  const PlannedValue& value = plan_->values_[value_id];
  InputInfo info;
  info.present = true;
  info.is_tensor = value.known || value.value->type().is_tensor();
  info.dtype = value.dtype;
  info.shape = value.shape;
  info.value = known_values_[value_id];
  return info;
}

void PlanBuilder::AddFeed(const Value* value, int index) {
  const FeedSpec& spec = plan_->feeds_[index];
  const uint32_t id = ValueId(value);
  PlannedValue& planned = plan_->values_[id];
  planned.known = spec.is_tensor;
  planned.dtype = spec.dtype;
  planned.shape = spec.shape;
  planned.buffer = NewBuffer(spec.is_tensor ? Kind::kFeed : Kind::kDynamic,
                             static_cast<size_t>(spec.shape.elements()) * DTypeSize(spec.dtype), index);
  if (spec.value.defined()) known_values_[id] = &spec.value;
  plan_->feed_values_.push_back(id);
}

Status PlanBuilder::AddEnds(const std::vector<const Value*>& captured) {
  std::vector<const Value*> ends(graph_.inputs().begin(), graph_.inputs().end());
  ends.insert(ends.end(), captured.begin(), captured.end());
  if (plan_->feeds_.size() != ends.size()) {
    return InvalidArgument("the graph has " + std::to_string(ends.size()) + " inputs, got " +
                           std::to_string(plan_->feeds_.size()) + " feeds");
  }
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
    if (initial == nullptr) return Internal("parameter '" + value->name() + "' has no initial value");
    const uint32_t id = ValueId(value);
    plan_->values_[id].known = true;
    plan_->values_[id].dtype = initial->dtype();
    plan_->values_[id].shape = initial->shape();
    plan_->values_[id].buffer = NewBuffer(Kind::kParameter, initial->bytes(), static_cast<int>(i));
    parameters_of_[id] = {static_cast<int>(i)};
    from_parameters_[id] = true;
  }
  for (const Value* value : graph_.Values()) {
    const Tensor* tensor = graph_.Initializer(value);
    if (tensor == nullptr || value_ids_.count(value)) continue;
    const uint32_t id = ValueId(value);
    plan_->values_[id].known = true;
    plan_->values_[id].dtype = tensor->dtype();
    plan_->values_[id].shape = tensor->shape();
    plan_->values_[id].buffer = NewBuffer(Kind::kConstant, tensor->bytes(), static_cast<int>(plan_->constants_.size()));
    plan_->constants_.push_back(*tensor);
    known_values_[id] = tensor;
  }
  return {};
}

PlanBuilder::Draft PlanBuilder::MakeDraft(const Node& node) {
  Draft draft{&node, plan_->providers_.front().get(), {}, {}, {}, {}, static_cast<int>(node.inputs().size())};
  for (const auto& provider : plan_->providers_) {  // placement: the first provider that has a kernel
    if (provider->kernels().Find(node).empty()) continue;
    draft.provider = provider.get();
    break;
  }
  for (const Value* input : node.inputs()) draft.inputs.push_back(ValueId(input));
  for (const Value* input : Graph::ImplicitInputs(node)) draft.inputs.push_back(ValueId(input));
  for (uint32_t id : draft.inputs) draft.infos.push_back(Describe(id));
  for (const Value* output : node.outputs()) draft.outputs.push_back(ValueId(output));
  if (!node.Subgraphs().empty()) AddBodies(draft);
  return draft;
}

void PlanBuilder::AddBodies(Draft& draft) {
  if (!plan_->options_.make_subgraph) return;
  SubgraphRequest request;
  request.first_captured = draft.explicit_inputs;
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

bool PlanBuilder::MustBeLate(const Draft& draft) const {
  for (size_t i = 0; i < draft.inputs.size(); ++i) {
    // Bodies take their captured values at run time anyway.
    if (static_cast<int>(i) >= draft.explicit_inputs) break;
    if (draft.inputs[i] != 0 && !plan_->values_[draft.inputs[i]].known) return true;
  }
  std::vector<DType> dtypes;
  for (const InputInfo& info : draft.infos) dtypes.push_back(info.dtype);
  for (const KernelDef* def : draft.provider->kernels().Find(*draft.node, dtypes)) {
    for (int i = 0; i < draft.explicit_inputs; ++i) {
      if (draft.infos[i].present && draft.infos[i].value == nullptr && def->IsHostInput(i)) return true;
    }
  }
  return false;
}

Status PlanBuilder::AddNode(const Node& node, int position) {
  if (node.Is("YieldOp", kCaesuraDomain)) return AddYield(node);
  Draft draft = MakeDraft(node);
  if (MustBeLate(draft)) return AddLate(draft);
  KernelInfo info(node, draft.infos, plan_->threads_);
  info.set_subgraph_runner([&draft](const std::string& name) -> std::shared_ptr<SubgraphRunner> {
    for (const auto& [body_name, runner] : draft.bodies) {
      if (body_name == name) return runner;
    }
    return nullptr;
  });
  auto created = draft.provider->kernels().Create(info, draft.provider->name());
  if (!created.ok()) {
    if (created.status().code() != StatusCode::kUnsupported) return created.status();
    missing_.push_back(created.status().message());
    return AddLate(draft);  // so that the walk goes on and finds the others
  }
  const KernelDef& def = **created;
  ASSIGN_OR_RETURN(const bool folded, TryFold(draft, info, def));
  if (folded) return {};
  return AddPlanned(draft, info, def, position);
}

Status PlanBuilder::AddLate(Draft& draft) {
  if (draft.provider->kernels().Find(*draft.node).empty()) {
    std::string why;
    draft.provider->kernels().Find(*draft.node, &why);
    const std::string text = draft.node->Label() + " has no kernel on " + draft.provider->name() + ": " + why;
    if (missing_.empty() || missing_.back().rfind(draft.node->Label(), 0) != 0) missing_.push_back(text);
  }
  for (uint32_t id : draft.outputs) {
    if (id == 0) continue;
    plan_->values_[id].known = false;
    plan_->values_[id].buffer = NewBuffer(Kind::kDynamic, 0, -1);
  }
  Step step;
  step.kind = Step::Kind::kLate;
  scratch_bytes_.push_back(0);
  FinishStep(draft, std::move(step));
  return {};
}

void PlanBuilder::FinishStep(Draft& draft, Step step) {
  step.node = draft.node;
  step.provider = draft.provider;
  step.first_argument = static_cast<uint32_t>(plan_->arguments_.size());
  step.input_count = static_cast<uint32_t>(draft.inputs.size());
  step.output_count = static_cast<uint32_t>(draft.outputs.size());
  step.bodies = std::move(draft.bodies);
  for (const auto* ids : {&draft.inputs, &draft.outputs}) {
    for (uint32_t id : *ids) {
      plan_->arguments_.push_back(plan_->values_[id].buffer);
      plan_->argument_values_.push_back(id);
    }
  }
  plan_->steps_.push_back(std::move(step));
}

Result<bool> PlanBuilder::TryFold(Draft& draft, KernelInfo& info, const KernelDef& def) {
  if (!plan_->options_.fold_constants || !def.deterministic || !draft.bodies.empty() || draft.inputs.empty()) {
    if (!draft.inputs.empty() || !def.deterministic || !plan_->options_.fold_constants) return false;
  }
  size_t read = 0, written = 0;
  for (const InputInfo& input : draft.infos) {
    if (!input.present) continue;
    if (input.value == nullptr) return false;
    read += input.value->bytes();
  }
  for (const OutputInfo& output : info.outputs()) {
    written += static_cast<size_t>(output.shape.elements()) * DTypeSize(output.dtype);
  }
  if (written > std::max(kFoldBytes, read)) return false;

  const size_t inputs = draft.inputs.size(), outputs = draft.outputs.size();
  std::vector<Tensor> results(outputs);
  std::vector<uint32_t> ids(inputs + outputs);
  std::vector<void*> addresses(inputs + outputs, nullptr);
  for (size_t i = 0; i < inputs; ++i) {
    ids[i] = static_cast<uint32_t>(i);
    if (draft.infos[i].value != nullptr) addresses[i] = draft.infos[i].value->raw();
  }
  for (size_t i = 0; i < outputs; ++i) {
    ids[inputs + i] = static_cast<uint32_t>(inputs + i);
    if (draft.outputs[i] == 0 || info.outputs()[i].kind != OutputInfo::Kind::kPlanned) continue;
    ASSIGN_OR_RETURN(results[i], Tensor::Allocate(info.outputs()[i].dtype, info.outputs()[i].shape));
    addresses[inputs + i] = results[i].raw();
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> scratch, HostAllocator().Allocate(info.scratch_bytes()));
  FoldHost host(ids.data(), draft.infos, results);
  KernelContext context(addresses.data(), ids.data(), static_cast<uint32_t>(inputs), scratch->data(), 0, &host);
  // A copy stays behind in case that the result is no tensor and the node becomes a step after all.
  const ComputeFunction compute = info.TakeCompute();
  info.SetCompute(compute);
  RETURN_IF_ERROR(compute(context));
  for (size_t i = 0; i < outputs; ++i) {
    if (draft.outputs[i] != 0 && !results[i].defined()) return false;
  }
  for (size_t i = 0; i < outputs; ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    kept_.push_back(std::make_shared<Tensor>(results[i]));
    known_values_[id] = kept_.back().get();
    PlannedValue& value = plan_->values_[id];
    value.known = true;
    value.dtype = results[i].dtype();
    value.shape = results[i].shape();
    value.buffer = NewBuffer(Kind::kConstant, results[i].bytes(), static_cast<int>(plan_->constants_.size()));
    plan_->constants_.push_back(results[i]);
  }
  return true;
}

bool PlanBuilder::IsCacheable(const Draft& draft, const KernelInfo& info, const KernelDef& def) const {
  if (!plan_->options_.cache_values || !def.deterministic || !draft.bodies.empty()) return false;
  if (draft.node->phase() != Phase::kForward || !info.in_place().empty()) return false;
  bool any = false;
  for (size_t i = 0; i < draft.inputs.size(); ++i) {
    const uint32_t id = draft.inputs[i];
    if (id == 0) continue;
    if (from_parameters_[id]) any = true;
    else if (known_values_[id] == nullptr) return false;
  }
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] != 0 && info.outputs()[i].kind != OutputInfo::Kind::kPlanned) return false;
  }
  for (const Alias& alias : def.aliases) {
    if (alias.kind == Alias::Kind::kInPlace) return false;
  }
  return any && std::count_if(draft.outputs.begin(), draft.outputs.end(), [](uint32_t id) { return id != 0; }) == 1;
}

uint32_t PlanBuilder::OutputBuffer(const Draft& draft, const KernelInfo& info, const KernelDef& def, int output,
                                   int position) {
  const OutputInfo& decided = info.outputs()[output];
  const size_t bytes = static_cast<size_t>(decided.shape.elements()) * DTypeSize(decided.dtype);
  std::vector<Alias> aliases = info.in_place();
  aliases.insert(aliases.end(), def.aliases.begin(), def.aliases.end());
  for (const Alias& alias : aliases) {
    if (alias.output != output || alias.input >= static_cast<int>(draft.inputs.size())) continue;
    const uint32_t input = draft.inputs[alias.input];
    if (input == 0) continue;
    const uint32_t buffer = plan_->values_[input].buffer;
    const PlannedBuffer& planned = plan_->buffers_[buffer];
    if (alias.kind != Alias::Kind::kMayReuse) return buffer;
    if (!plan_->options_.reuse_memory || planned.kind != Kind::kArena || planned.bytes != bytes) continue;
    // last_step holds, until lifetimes are computed, the position of the last node that reads the buffer.
    if (planned.last_step != position || std::count(draft.inputs.begin(), draft.inputs.end(), input) > 1) continue;
    bool taken = false;
    for (int earlier = 0; earlier < output; ++earlier) {
      taken |= draft.outputs[earlier] != 0 && plan_->values_[draft.outputs[earlier]].buffer == buffer;
    }
    // Another input may be a view of the same bytes.
    for (size_t i = 0; i < draft.inputs.size(); ++i) {
      taken |= static_cast<int>(i) != alias.input && plan_->values_[draft.inputs[i]].buffer == buffer;
    }
    if (!taken) return buffer;
  }
  return NewBuffer(Kind::kArena, bytes, -1);
}

Status PlanBuilder::AddPlanned(Draft& draft, KernelInfo& info, const KernelDef& def, int position) {
  bool only_views = true, any_output = false;
  const bool cacheable = IsCacheable(draft, info, def);
  Step step;
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    any_output = true;
    const OutputInfo& decided = info.outputs()[i];
    if (decided.kind == OutputInfo::Kind::kUnset) {
      return Internal(draft.node->Label() + " kernel did not decide on output " + std::to_string(i));
    }
    // Strings are objects: they live in values of the state, made by a late step.
    if (decided.kind == OutputInfo::Kind::kPlanned && decided.dtype == DType::kString) return AddLate(draft);
  }
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    const OutputInfo& decided = info.outputs()[i];
    PlannedValue& value = plan_->values_[id];
    if (decided.kind == OutputInfo::Kind::kSizedInCompute) {
      value.buffer = NewBuffer(Kind::kDynamic, 0, -1);
      only_views = false;
      continue;
    }
    value.known = true;
    value.dtype = decided.dtype;
    value.shape = decided.shape;
    const uint32_t buffer = OutputBuffer(draft, info, def, static_cast<int>(i), position);
    value.buffer = buffer;
    PlannedBuffer& planned = plan_->buffers_[buffer];
    planned.last_step = std::max(planned.last_step, last_use_[id]);
    bool view = false;
    for (const Alias& alias : def.aliases) {
      view |= alias.kind == Alias::Kind::kView && alias.output == static_cast<int>(i) && draft.inputs[alias.input] != 0;
    }
    only_views &= view;
    if (view) {
      const uint32_t source = draft.inputs[0];
      from_parameters_[id] = from_parameters_[source];
      parameters_of_[id] = parameters_of_[source];
    } else if (cacheable && planned.kind == Kind::kArena) {
      planned.kind = Kind::kCached;
      planned.index = step.index = plan_->cache_entries_++;
      step.kind = Step::Kind::kCached;
      std::set<int> deps;
      for (uint32_t input : draft.inputs) deps.insert(parameters_of_[input].begin(), parameters_of_[input].end());
      step.cache_parameters.assign(deps.begin(), deps.end());
      parameters_of_[id] = step.cache_parameters;
      from_parameters_[id] = true;
    }
  }
  if (any_output && only_views) return {};
  step.compute = info.TakeCompute();
  if (!step.compute) return Internal(draft.node->Label() + " kernel has no compute function");
  scratch_bytes_.push_back(info.scratch_bytes());
  Contiguous group{static_cast<int>(plan_->steps_.size()), {}};
  for (int i = 0; i < draft.explicit_inputs; ++i) {
    if (KernelDef::Lists(def.contiguous_inputs, i)) group.buffers.push_back(plan_->values_[draft.inputs[i]].buffer);
  }
  if (!group.buffers.empty()) contiguous_.push_back(std::move(group));
  FinishStep(draft, std::move(step));
  return {};
}

Status PlanBuilder::AddYield(const Node& node) {
  Draft draft{&node, plan_->providers_.front().get(), {}, {}, {}, {}, static_cast<int>(node.inputs().size())};
  const auto names = node.Attr<std::vector<std::string>>("names", {});
  const auto no_gradient = node.Attr<std::vector<int64_t>>("non_differentiable_outputs", {});
  Yield yield;
  yield.step = static_cast<int>(plan_->steps_.size());
  std::vector<int> differentiable;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const uint32_t id = ValueId(node.inputs()[i]);
    draft.inputs.push_back(id);
    yield.outputs.push_back({id, false, i < names.size() ? names[i] : node.inputs()[i]->name()});
    if (std::find(no_gradient.begin(), no_gradient.end(), static_cast<int64_t>(i)) == no_gradient.end()) {
      differentiable.push_back(static_cast<int>(i));
    }
  }
  if (node.outputs().size() > differentiable.size()) {
    return InvalidModel(node.Label() + " has " + std::to_string(node.outputs().size()) + " outputs, but only " +
                        std::to_string(differentiable.size()) + " of its inputs are differentiable");
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const uint32_t id = ValueId(node.outputs()[i]);
    draft.outputs.push_back(id);
    yield.resume_values.push_back(id);
    yield.resume_of.push_back(differentiable[i]);
    if (id == 0) continue;
    const PlannedValue& given = plan_->values_[draft.inputs[differentiable[i]]];
    PlannedValue& taken = plan_->values_[id];
    taken.known = given.known;
    taken.dtype = given.dtype;
    taken.shape = given.shape;
    taken.buffer = NewBuffer(given.known ? Kind::kResume : Kind::kDynamic,
                             static_cast<size_t>(given.shape.elements()) * DTypeSize(given.dtype), -1);
  }
  Step step;
  step.kind = Step::Kind::kYield;
  step.index = static_cast<int>(plan_->yields_.size());
  plan_->yields_.push_back(std::move(yield));
  scratch_bytes_.push_back(0);
  FinishStep(draft, std::move(step));
  return {};
}

Status PlanBuilder::AddFetches() {
  for (const Value* output : graph_.outputs()) {
    const uint32_t id = ValueId(output);
    if (plan_->values_[id].buffer == 0) {
      return InvalidModel("graph output '" + output->name() + "' is made by no node, input or initializer");
    }
    plan_->fetches_.push_back({id, false, output->name()});
  }
  return {};
}

Result<std::shared_ptr<const ExecutionPlan>> PlanBuilder::Build(const std::vector<const Value*>& captured) {
  FindLastUses();
  RETURN_IF_ERROR(AddEnds(captured));
  int position = 0;
  for (const auto& node : graph_.nodes()) RETURN_IF_ERROR(AddNode(*node, position++));
  if (!missing_.empty()) {
    std::string text = std::to_string(missing_.size()) + " node(s) have no kernel:";
    for (const std::string& line : missing_) text += "\n  " + line;
    return Unsupported(text);
  }
  RETURN_IF_ERROR(AddFetches());
  ComputeLifetimes();
  MoveFetches();
  AddReleases();
  RETURN_IF_ERROR(PlaceBuffers());
  Fingerprint();
  return std::shared_ptr<const ExecutionPlan>(plan_);
}

}  // namespace caesura
