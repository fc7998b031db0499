// SPDX-License-Identifier: Apache-2.0
#include "core/plan/phases/plan_draft.h"

#include <omp.h>

#include "core/base/env.h"

namespace caesura {

PlanDraft::PlanDraft(std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds,
                     const ProviderList& providers, const PlanOptions& options) {
  data.graph = std::move(graph);
  data.feeds = feeds;
  data.providers = providers;
  data.options = options;
  data.threads = options.threads > 0 ? options.threads : env::NumThreads();
  if (data.threads <= 0) data.threads = omp_get_max_threads();
  const size_t count = data.graph->Values().size() + 1;
  values.reserve(count);
  buffers.reserve(count);
  data.steps.reserve(data.graph->nodes().size());
  data.argument_values.reserve(2 * count);
  value_ids.reserve(count);
  readers.reserve(count);
  values.emplace_back();  // 0: absent
  buffers.emplace_back();
}

uint32_t ValueId(PlanDraft& plan, const Value* value) {
  if (value == nullptr) return 0;
  auto [it, fresh] = plan.value_ids.try_emplace(value, static_cast<uint32_t>(plan.values.size()));
  if (!fresh) return it->second;
  ValueDraft& draft = plan.values.emplace_back();
  draft.value = value;
  draft.dtype = value->dtype();
  auto readers = plan.readers.find(value);
  if (readers != plan.readers.end()) draft.last_reader = readers->second.back().position;
  return it->second;
}

uint32_t NewBuffer(PlanDraft& plan, PlannedBuffer::Kind kind, size_t bytes, int index, uint32_t id,
                   int device) {
  BufferDraft& buffer = plan.buffers.emplace_back();
  buffer.kind = kind;
  buffer.device = static_cast<uint8_t>(device);
  buffer.bytes = bytes;
  buffer.index = index;
  buffer.last_reader = plan.values[id].last_reader;
  return static_cast<uint32_t>(plan.buffers.size() - 1);
}

void PlaceValue(PlanDraft& plan, uint32_t id, PlannedBuffer::Kind kind, DType dtype,
                const Shape& shape, int index, int device) {
  ValueDraft& value = plan.values[id];
  value.known = true;
  value.dtype = dtype;
  value.shape = shape;
  value.buffer = NewBuffer(plan, kind, BytesOf(shape, dtype), index, id, device);
}

InputInfo Describe(const PlannedValue& value) {
  if (value.value == nullptr) return {};
  InputInfo info;
  info.present = true;
  info.is_tensor = value.known || value.value->type().is_tensor();
  info.dtype = value.dtype;
  info.shape = value.shape;
  info.layout = value.layout;
  return info;
}

void RecordDecision(PlanDraft& plan, const NodeDraft& draft, NodeRecord::Kind kind,
                    const KernelDef* def, int step) {
  NodeRecord record;
  // The provider that placement wants has refused: with other sizes it might not.
  const bool refused = draft.candidates.empty() || draft.provider != draft.candidates.front();
  record.kind = refused || !draft.bodies.empty() ? NodeRecord::Kind::kFixed : kind;
  record.first_candidate = def == draft.first_candidate;
  record.node = draft.node;
  record.provider = draft.provider;
  record.def = def;
  record.step = step;
  record.ids = static_cast<uint32_t>(plan.recipe.ids.size());
  record.input_count = static_cast<uint32_t>(draft.inputs.size());
  record.output_count = static_cast<uint32_t>(draft.outputs.size());
  for (uint32_t id : draft.outputs)
    plan.values[id].record = static_cast<int>(plan.recipe.nodes.size());
  for (const auto* ids : {&draft.inputs, &draft.outputs})
    plan.recipe.ids.insert(plan.recipe.ids.end(), ids->begin(), ids->end());
  plan.recipe.nodes.push_back(record);
}

}  // namespace caesura
