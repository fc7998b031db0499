// SPDX-License-Identifier: Apache-2.0
// Plans one node: asks its providers for a kernel, then folds it, makes its outputs views, or adds
// its step.
#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/graph/op_def.h"
#include "core/kernels/kernel_registry.h"
#include "core/plan/exchange_start.h"
#include "core/plan/function_expansion.h"
#include "core/plan/node_error.h"
#include "core/plan/phases/plan_phases.h"
#include "core/providers/compiled_subgraph.h"

namespace caesura {
namespace {

// The shape that the node may be planned by for an input that is sized at run time.
std::optional<Shape> ShapeByType(const Node& node, int input) {
  return StartsExchange(node) ? node.input(input)->type().ConcreteShape() : std::nullopt;
}

// A provider has a kernel for the body as a whole; it is not run here.
bool IsCompiled(const Node& node) { return node.Is(kCompiledSubgraphOp, kCaesuraDomain); }

void AddBodies(PlanDraft& plan, NodeDraft& draft) {
  // Bodies are planned when they are reached; kernels that they lack are reported now.
  for (const Graph* body : draft.node->Subgraphs()) {
    const std::vector<std::string> lines = MissingInBody(*body, plan.data.providers);
    plan.missing.insert(plan.missing.end(), lines.begin(), lines.end());
  }
  if (!plan.data.options.make_subgraph) return;
  SubgraphRequest request;
  request.first_captured = draft.explicit_inputs;
  if (plan.data.devices.size() > 1)
    request.fetch_devices = plan.placement->BodyResults(*draft.node, *draft.provider);
  for (size_t i = draft.explicit_inputs; i < draft.inputs.size(); ++i) {
    request.captured.push_back(plan.values[draft.inputs[i]].value);
    FeedSpec spec;
    if (draft.infos[i].value != nullptr) spec.value = *draft.infos[i].value;
    request.captured_specs.push_back(std::move(spec));
  }
  for (const auto& [name, attribute] : draft.node->attributes()) {
    if (auto* body = std::get_if<std::shared_ptr<Graph>>(&attribute)) {
      request.body = *body;
      draft.bodies.emplace_back(name, plan.data.options.make_subgraph(request));
    }
  }
}

NodeDraft MakeDraft(PlanDraft& plan, const Node& node, int position) {
  NodeDraft draft{&node, position, ProvidersFor(node, plan.data.providers),
                  plan.data.providers.front().get(), static_cast<int>(node.inputs().size())};
  if (!draft.candidates.empty()) draft.provider = draft.candidates.front();
  for (const Value* input : node.inputs()) draft.inputs.push_back(ValueId(plan, input));
  for (const Value* input : Graph::ImplicitInputs(node))
    draft.inputs.push_back(ValueId(plan, input));
  for (uint32_t id : draft.inputs) {
    draft.infos.push_back(Describe(plan.values[id]));
    draft.infos.back().value = plan.values[id].contents;
  }
  for (int i = 0; i < draft.explicit_inputs; ++i) {
    if (draft.inputs[i] == 0 || plan.values[draft.inputs[i]].known) continue;
    const std::optional<Shape> shape = ShapeByType(node, i);
    if (!shape) continue;
    draft.infos[i].dtype = node.input(i)->dtype();
    draft.infos[i].shape = *shape;
  }
  for (const Value* output : node.outputs()) draft.outputs.push_back(ValueId(plan, output));
  if (!node.Subgraphs().empty() && !IsCompiled(node)) AddBodies(plan, draft);
  return draft;
}

bool NeedsRuntimeShapes(const PlanDraft& plan, NodeDraft& draft) {
  // Bodies take their captured values at run time in any case.
  for (int i = 0; i < draft.explicit_inputs; ++i) {
    if (draft.inputs[i] != 0 && !plan.values[draft.inputs[i]].known && !ShapeByType(*draft.node, i))
      return true;
  }
  std::vector<DType> dtypes;
  for (const InputInfo& info : draft.infos) dtypes.push_back(info.dtype);
  const std::vector<const KernelDef*> defs = draft.provider->kernels().Find(*draft.node, dtypes);
  draft.first_candidate = defs.empty() ? nullptr : defs.front();
  for (const KernelDef* def : defs) {
    for (int i = 0; i < draft.explicit_inputs; ++i) {
      if (draft.infos[i].present && draft.infos[i].value == nullptr &&
          def->IsHostInput(*draft.node, i))
        return true;
    }
  }
  return false;
}

// False when all kernels of the provider refuse; `why` then grows by their reasons.
Result<bool> TryProvider(PlanDraft& plan, NodeDraft& draft, std::string* why) {
  if (NeedsRuntimeShapes(plan, draft)) {
    RETURN_IF_ERROR(AddDynamicStep(plan, draft));
    return true;
  }
  KernelInfo info(*draft.node, draft.infos, plan.data.threads);
  bool runs_bodies = false;
  info.set_subgraph_runner([&](const std::string& name) -> std::shared_ptr<SubgraphRunner> {
    runs_bodies = true;
    for (const auto& [body_name, runner] : draft.bodies) {
      if (body_name == name) return runner;
    }
    return nullptr;
  });
  auto created = draft.provider->kernels().Create(info, draft.provider->name());
  if (!created.ok() && created.status().code() == StatusCode::kDeclined) {
    *why += (why->empty() ? "" : "; ") + created.status().message();
    return false;
  }
  if (!created.ok()) return created.status();
  if (!runs_bodies) draft.bodies.clear();  // they only say what the kernel computes
  ASSIGN_OR_RETURN(const bool folded, TryFold(plan, draft, info, **created));
  if (folded) RecordDecision(plan, draft, NodeRecord::Kind::kFolded, *created);
  else RETURN_IF_ERROR(AddStep(plan, draft, info, **created));
  return true;
}

}  // namespace

Status PlanNode(PlanDraft& plan, const Node& node, int position) {
  if (IsYield(node)) return AddYield(plan, node, position);
  NodeDraft draft = MakeDraft(plan, node, position);
  std::string why;
  for (const ExecutionProvider* provider : draft.candidates) {
    draft.provider = provider;
    const Result<bool> done = TryProvider(plan, draft, &why);
    if (!done.ok()) return AtNode(done.status(), node, provider->name());
    if (*done && !why.empty()) LogVerbose(1, why + "; it runs on " + provider->name());
    if (*done) return {};
  }
  if (draft.candidates.empty()) {
    ProvidersFor(node, plan.data.providers, &why);
    why = node.Label() + " has no kernel on " + why;
  }
  plan.missing.push_back(why);
  return AddDynamicStep(plan, draft);  // so that the walk goes on and finds the others
}

}  // namespace caesura
