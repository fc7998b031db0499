// SPDX-License-Identifier: Apache-2.0
// Outputs that need no step of their own: another way of looking at bytes that are there already
// (Transpose, Reshape, Split), or parts that their producers can write to where they are wanted
// (Transpose, Concat).
#include <algorithm>

#include "core/kernels/kernel_creation.h"
#include "core/plan/plan_builder.h"

namespace caesura {

bool PlanBuilder::ReadersTakeStrides(const Value* value, int position) const {
  auto readers = readers_.find(value);
  if (readers == readers_.end()) return true;
  return std::all_of(readers->second.begin(), readers->second.end(), [&](const Reader& reader) {
    if (reader.position <= position) return true;
    if (reader.node == nullptr || reader.input < 0) return false;
    const ExecutionProvider* provider = placement_->ProviderOf(*reader.node);
    if (provider == nullptr) return false;
    const bool copied = plan_->devices_.size() > 1 &&
                        placement_->InputDevice(*reader.node, *provider, reader.input) !=
                            placement_->DeviceOf(value);
    const std::vector<const KernelDef*> defs = provider->kernels().Find(*reader.node);
    return !copied && !defs.empty() &&
           std::all_of(defs.begin(), defs.end(),
                       [&](const KernelDef* d) { return d->TakesStrides(reader.input); });
  });
}

bool PlanBuilder::TryViews(const Draft& draft, const KernelInfo& info, const KernelDef& def) {
  const ViewInfo& view = info.view();
  if (view.kind == ViewInfo::Kind::kNone || !IsWherePlaced(draft)) return false;
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] != 0 && info.outputs()[i].shape.elements() == 0) return false;
  }
  const bool side_by_side = view.kind == ViewInfo::Kind::kSideBySide;
  const bool written = side_by_side ? WriteSideBySide(draft, info)
                                    : view.kind == ViewInfo::Kind::kPermutation &&
                                          WriteInOrder(draft, view, info.outputs()[0]);
  const bool placed = !written && !side_by_side && PlaceViews(draft, view, info);
  if (written || placed)
    Record(draft, placed ? NodeRecord::Kind::kViews : NodeRecord::Kind::kFixed, &def);
  return written || placed;
}

void PlanBuilder::PlaceIn(uint32_t buffer, uint32_t id, const OutputInfo& output, Layout layout) {
  PlannedValue& value = plan_->values_[id];
  value.known = true;
  value.dtype = output.dtype;
  value.shape = output.shape;
  value.layout = std::move(layout);
  value.buffer = buffer;
  plan_->buffers_[buffer].last_step = std::max(plan_->buffers_[buffer].last_step, last_use_[id]);
}

bool PlanBuilder::PlaceViews(const Draft& draft, const ViewInfo& view, const KernelInfo& info) {
  const uint32_t input = draft.inputs[0];
  const PlannedBuffer& buffer = plan_->buffers_[plan_->values_[input].buffer];
  if (buffer.kind == Kind::kDynamic || view.layouts.size() != draft.outputs.size()) return false;
  std::vector<Layout> layouts = view.layouts;
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (draft.outputs[i] == 0) continue;
    const OutputInfo& output = info.outputs()[i];
    const bool whole =
        static_cast<size_t>(output.shape.elements()) * DTypeSize(output.dtype) == buffer.bytes;
    if (layouts[i].dense() && whole) continue;
    if (output.shape.rank() == 0)
      return false;  // dense by its strides, though a part of the buffer
    if (layouts[i].strides.empty()) layouts[i].strides = output.shape.Strides();
    if (!ReadersTakeStrides(plan_->values_[draft.outputs[i]].value)) return false;
  }
  for (size_t i = 0; i < layouts.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    PlaceIn(plan_->values_[input].buffer, id, info.outputs()[i], layouts[i]);
    from_parameters_[id] = from_parameters_[input];
    parameters_of_[id] = parameters_of_[input];
    if (view.kind != ViewInfo::Kind::kLayout) origins_[id] = {input, view.permutation};
  }
  return true;
}

// False where the provider that placement chose has refused, so that what readers were told is not
// so.
bool PlanBuilder::IsWherePlaced(const Draft& draft) const {
  return plan_->devices_.size() == 1 || placement_->ProviderOf(*draft.node) == draft.provider;
}

void PlanBuilder::RememberWriter(const Draft& draft, const KernelDef& def, int step) {
  if (!IsWherePlaced(draft)) return;
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0 || !KernelDef::Lists(def.strided_outputs, static_cast<int>(i))) continue;
    auto shares = [&](uint32_t other) {
      return other != 0 && other != id && plan_->values_[other].buffer == plan_->values_[id].buffer;
    };
    if (std::any_of(draft.inputs.begin(), draft.inputs.end(), shares)) continue;
    if (std::any_of(draft.outputs.begin(), draft.outputs.end(), shares)) continue;
    written_by_[id] = {step, static_cast<int>(i)};
    writers_[step] = {&def, draft.infos, std::vector<Layout>(draft.outputs.size())};
  }
}

// For the node at `position`, the one reader that is planned: those behind it must take what they
// find.
std::optional<PlanBuilder::Rewrite> PlanBuilder::MakeRewrite(uint32_t id, Layout layout,
                                                             uint32_t buffer, int position) const {
  Rewrite out{{}, {}, buffer};
  for (;;) {
    const PlannedValue& value = plan_->values_[id];
    const std::vector<Reader>& readers = readers_.at(value.value);
    const auto planned = std::count_if(readers.begin(), readers.end(), [&](const Reader& reader) {
      return reader.position <= position;
    });
    if (planned != 1 || !ReadersTakeStrides(value.value, position)) return std::nullopt;
    out.chain.push_back(id);
    out.layouts.push_back(Simplified(value.shape, layout));
    auto origin = origins_.find(id);
    if (origin == origins_.end()) break;
    const PlannedValue& of = plan_->values_[origin->second.of];
    if (origin->second.permutation.empty()) {
      const Layout here{StridesOf(value.shape, layout), layout.offset};
      std::optional<Layout> pulled = Reshaped(value.shape, here, of.shape);
      if (!pulled) return std::nullopt;
      layout = *std::move(pulled);
    } else {
      const std::vector<int64_t> strides = StridesOf(value.shape, layout);
      layout.strides.assign(strides.size(), 0);
      for (size_t i = 0; i < strides.size(); ++i)
        layout.strides[origin->second.permutation[i]] = strides[i];
    }
    id = origin->second.of;
  }
  const bool ours =
      plan_->buffers_[plan_->values_[id].buffer].kind == Kind::kArena && written_by_.count(id) > 0;
  return ours ? std::optional<Rewrite>(std::move(out)) : std::nullopt;
}

// All or nothing: every producer is created anew with its outputs' layouts before the plan changes.
bool PlanBuilder::Apply(const std::vector<Rewrite>& rewrites) {
  std::unordered_map<int, std::vector<Layout>> layouts;
  for (const Rewrite& rewrite : rewrites) {
    const auto [step, output] = written_by_.at(rewrite.chain.back());
    layouts.try_emplace(step, writers_.at(step).layouts).first->second[output] =
        rewrite.layouts.back();
  }
  std::unordered_map<int, std::pair<ComputeFunction, size_t>> made;
  for (const auto& [step, wanted] : layouts) {
    const Writer& writer = writers_.at(step);
    KernelInfo info(*plan_->steps_[step].node, writer.infos, plan_->threads_);
    info.set_output_layouts(wanted);
    if (!CreateKernel(*writer.def, info).ok()) return false;
    made[step] = {info.TakeCompute(), info.scratch_bytes()};
  }
  for (auto& [step, kernel] : made) {
    plan_->steps_[step].compute = std::move(kernel.first);
    plan_->scratch_bytes_[step] = kernel.second;
    writers_.at(step).layouts = layouts.at(step);
  }
  for (const Rewrite& rewrite : rewrites) {
    for (size_t i = 0; i < rewrite.chain.size(); ++i) {
      plan_->values_[rewrite.chain[i]].layout = rewrite.layouts[i];
      plan_->values_[rewrite.chain[i]].buffer = rewrite.buffer;
      Fix(rewrite.chain[i]);
    }
    const auto [step, output] = written_by_.at(rewrite.chain.back());
    const Step& producer = plan_->steps_[step];
    plan_->arguments_[producer.first_argument + producer.input_count + output] = rewrite.buffer;
  }
  return true;
}

// Has the input's producer write in the order of the output, which is then dense in the same
// buffer.
bool PlanBuilder::WriteInOrder(const Draft& draft, const ViewInfo& view, const OutputInfo& info) {
  const uint32_t input = draft.inputs[0], output = draft.outputs[0];
  const std::vector<int64_t> dense = info.shape.Strides();
  Layout layout{std::vector<int64_t>(dense.size(), 0), 0};
  for (size_t i = 0; i < dense.size(); ++i) layout.strides[view.permutation[i]] = dense[i];
  std::optional<Rewrite> rewrite =
      MakeRewrite(input, std::move(layout), plan_->values_[input].buffer, draft.position);
  if (!rewrite || !Apply({*rewrite})) return false;
  PlaceIn(rewrite->buffer, output, info, {});
  origins_[output] = {input, view.permutation};
  return true;
}

// Has each input's producer write into its part of the output.
bool PlanBuilder::WriteSideBySide(const Draft& draft, const KernelInfo& info) {
  const uint32_t output = draft.outputs[0];
  const OutputInfo& whole = info.outputs()[0];
  const size_t bytes = static_cast<size_t>(whole.shape.elements()) * DTypeSize(whole.dtype);
  const auto buffer = static_cast<uint32_t>(plan_->buffers_.size());  // if all goes well
  const std::vector<int64_t> strides = whole.shape.Strides();
  std::vector<Rewrite> rewrites;
  int64_t offset = 0;
  for (size_t i = 0; i < draft.inputs.size(); ++i) {
    const uint32_t input = draft.inputs[i];
    if (input == 0) return false;
    std::optional<Rewrite> rewrite =
        MakeRewrite(input, Layout{strides, offset}, buffer, draft.position);
    if (!rewrite) return false;
    offset += plan_->values_[input].shape[info.view().axis] * strides[info.view().axis];
    rewrites.push_back(*std::move(rewrite));
  }
  if (!Apply(rewrites)) return false;
  PlaceIn(NewBuffer(Kind::kArena, bytes, -1, output, OutputDevice(draft, 0)), output, whole, {});
  return true;
}

}  // namespace caesura
