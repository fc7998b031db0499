// SPDX-License-Identifier: Apache-2.0
// Outputs that need no step of their own: another way of looking at bytes that are there already
// (Transpose, Reshape, Split), or parts that their producers can write to where they are wanted
// (Transpose, Concat).
#include <algorithm>

#include "core/kernels/kernel_creation.h"
#include "core/kernels/kernel_registry.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {
namespace {

using Kind = PlannedBuffer::Kind;

}  // namespace

bool ReadersTakeStrides(const PlanDraft& plan, const Value* value, int position) {
  auto readers = plan.readers.find(value);
  if (readers == plan.readers.end()) return true;
  return std::all_of(readers->second.begin(), readers->second.end(), [&](const Reader& reader) {
    if (reader.position <= position) return true;
    if (reader.node == nullptr || reader.input < 0) return false;
    const ExecutionProvider* provider = plan.placement->ProviderOf(*reader.node);
    if (provider == nullptr) return false;
    const bool copied = plan.data.devices.size() > 1 &&
                        plan.placement->InputDevice(*reader.node, *provider, reader.input) !=
                            plan.placement->DeviceOf(value);
    const std::vector<const KernelDef*> defs = provider->kernels().Find(*reader.node);
    return !copied && !defs.empty() &&
           std::all_of(defs.begin(), defs.end(),
                       [&](const KernelDef* d) { return d->TakesStrides(reader.input); });
  });
}

bool RunsOnPlacedProvider(const PlanDraft& plan, const NodeDraft& draft) {
  return plan.data.devices.size() == 1 || plan.placement->ProviderOf(*draft.node) == draft.provider;
}

Layout LayoutOfPermuted(const Shape& permuted, const std::vector<int64_t>& permutation) {
  const std::vector<int64_t> dense = permuted.Strides();
  Layout layout{std::vector<int64_t>(dense.size(), 0), 0};
  for (size_t i = 0; i < dense.size(); ++i) layout.strides[permutation[i]] = dense[i];
  return layout;
}

std::optional<Layout> LayoutOfViewed(const Shape& shape, const Layout& layout,
                                     const std::vector<int64_t>& permutation, const Shape& viewed) {
  const std::vector<int64_t> strides = StridesOf(shape, layout);
  if (permutation.empty()) return Reshaped(shape, Layout{strides, layout.offset}, viewed);
  Layout out{std::vector<int64_t>(strides.size(), 0), layout.offset};
  for (size_t i = 0; i < strides.size(); ++i) out.strides[permutation[i]] = strides[i];
  return out;
}

namespace {

// The output lies in a buffer that is there.
void PlaceIn(PlanDraft& plan, uint32_t buffer, uint32_t id, const OutputInfo& output,
             Layout layout) {
  ValueDraft& value = plan.values[id];
  value.known = true;
  value.dtype = output.dtype;
  value.shape = output.shape;
  value.layout = std::move(layout);
  value.buffer = buffer;
  int& last_reader = plan.buffers[buffer].last_reader;
  last_reader = std::max(last_reader, value.last_reader);
}

bool PlaceViews(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info) {
  const ViewInfo& view = info.view();
  const uint32_t input = draft.inputs[0];
  const PlannedBuffer& buffer = plan.buffers[plan.values[input].buffer];
  if (buffer.kind == Kind::kDynamic || view.layouts.size() != draft.outputs.size()) return false;
  std::vector<Layout> layouts = view.layouts;
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (draft.outputs[i] == 0) continue;
    const OutputInfo& output = info.outputs()[i];
    const bool whole = BytesOf(output.shape, output.dtype) == buffer.bytes;
    if (layouts[i].dense() && whole) continue;
    if (output.shape.rank() == 0)
      return false;  // dense by its strides, though a part of the buffer
    if (layouts[i].strides.empty()) layouts[i].strides = output.shape.Strides();
    if (!ReadersTakeStrides(plan, plan.values[draft.outputs[i]].value)) return false;
  }
  for (size_t i = 0; i < layouts.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0) continue;
    PlaceIn(plan, plan.values[input].buffer, id, info.outputs()[i], layouts[i]);
    ValueDraft& value = plan.values[id];
    value.from_parameters = plan.values[input].from_parameters;
    value.parameters = plan.values[input].parameters;
    if (view.kind == ViewInfo::Kind::kLayout) continue;
    value.view_of = input;
    value.permutation = view.permutation;
  }
  return true;
}

// --- producers that write elsewhere ---

// Makes the step that produces chain[0] write it elsewhere.
struct Rewrite {
  std::vector<uint32_t> chain;  // a value, then what it is a view of, up to the step's output
  std::vector<Layout> layouts;  // of each
  uint32_t buffer;
};

// For the node at `position`, which is the only reader that is planned: later ones must take the
// layout that they find.
std::optional<Rewrite> MakeRewrite(const PlanDraft& plan, uint32_t id, Layout layout,
                                   uint32_t buffer, int position) {
  Rewrite out{{}, {}, buffer};
  for (;;) {
    const ValueDraft& value = plan.values[id];
    const std::vector<Reader>& readers = plan.readers.at(value.value);
    const auto planned = std::count_if(readers.begin(), readers.end(), [&](const Reader& reader) {
      return reader.position <= position;
    });
    if (planned != 1 || !ReadersTakeStrides(plan, value.value, position)) return std::nullopt;
    out.chain.push_back(id);
    out.layouts.push_back(Simplified(value.shape, layout));
    if (value.view_of == 0) break;
    std::optional<Layout> viewed =
        LayoutOfViewed(value.shape, layout, value.permutation, plan.values[value.view_of].shape);
    if (!viewed) return std::nullopt;
    layout = *std::move(viewed);
    id = value.view_of;
  }
  const ValueDraft& made = plan.values[id];
  const bool ours = plan.buffers[made.buffer].kind == Kind::kArena && made.writer >= 0;
  return ours ? std::optional<Rewrite>(std::move(out)) : std::nullopt;
}

// The kernel of a step with its outputs under other layouts.
struct NewKernel {
  int step;
  std::vector<Layout> layouts;
  ComputeFunction compute;
  size_t scratch_bytes;
};

// Nothing where a producer cannot be created anew.
std::optional<std::vector<NewKernel>> CreateAnew(const PlanDraft& plan,
                                                 const std::vector<Rewrite>& rewrites) {
  std::vector<NewKernel> kernels;
  for (const Rewrite& rewrite : rewrites) {
    const ValueDraft& made = plan.values[rewrite.chain.back()];
    auto kernel = std::find_if(kernels.begin(), kernels.end(),
                               [&](const NewKernel& k) { return k.step == made.writer; });
    if (kernel == kernels.end()) {
      kernels.push_back({made.writer, plan.writers.at(made.writer).layouts, {}, 0});
      kernel = kernels.end() - 1;
    }
    kernel->layouts[made.writer_output] = rewrite.layouts.back();
  }
  for (NewKernel& kernel : kernels) {
    const StridedWriter& writer = plan.writers.at(kernel.step);
    KernelInfo info(*plan.data.steps[kernel.step].node, writer.infos, plan.data.threads);
    info.set_output_layouts(kernel.layouts);
    if (!CreateKernel(*writer.def, info).ok()) return std::nullopt;
    kernel.compute = info.TakeCompute();
    kernel.scratch_bytes = info.scratch_bytes();
  }
  return kernels;
}

// All or nothing: every producer is created anew with its outputs' layouts before the plan changes.
bool Apply(PlanDraft& plan, const std::vector<Rewrite>& rewrites) {
  std::optional<std::vector<NewKernel>> kernels = CreateAnew(plan, rewrites);
  if (!kernels) return false;
  for (NewKernel& kernel : *kernels) {
    PlanStep& step = plan.data.steps[kernel.step];
    step.compute = std::move(kernel.compute);
    step.scratch_bytes = kernel.scratch_bytes;
    plan.writers.at(kernel.step).layouts = std::move(kernel.layouts);
  }
  for (const Rewrite& rewrite : rewrites) {
    WrittenChain chain{{}, plan.values[rewrite.chain.back()].record};
    for (size_t i = 0; i < rewrite.chain.size(); ++i) {
      ValueDraft& value = plan.values[rewrite.chain[i]];
      chain.links.push_back({rewrite.chain[i], value.permutation});
      // One that an earlier node has moved is not planned for other sizes.
      if (!value.layout.dense()) plan.recipe.nodes[value.record].kind = NodeRecord::Kind::kFixed;
      value.layout = rewrite.layouts[i];
      value.buffer = rewrite.buffer;
    }
    plan.recipe.chains.push_back(std::move(chain));
  }
  return true;
}

// Has the input's producer write in the order of the output, which is then dense in the same
// buffer.
bool WritePermuted(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info) {
  const uint32_t input = draft.inputs[0], output = draft.outputs[0];
  const std::vector<int64_t>& permutation = info.view().permutation;
  Layout layout = LayoutOfPermuted(info.outputs()[0].shape, permutation);
  std::optional<Rewrite> rewrite =
      MakeRewrite(plan, input, std::move(layout), plan.values[input].buffer, draft.position);
  if (!rewrite || !Apply(plan, {*rewrite})) return false;
  PlaceIn(plan, rewrite->buffer, output, info.outputs()[0], {});
  plan.values[output].view_of = input;
  plan.values[output].permutation = permutation;
  return true;
}

// Has each input's producer write into its part of the output.
bool WriteConcatParts(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info) {
  const uint32_t output = draft.outputs[0];
  const OutputInfo& whole = info.outputs()[0];
  const auto buffer = static_cast<uint32_t>(plan.buffers.size());  // if all goes well
  const std::vector<int64_t> strides = whole.shape.Strides();
  std::vector<Rewrite> rewrites;
  int64_t offset = 0;
  for (const uint32_t input : draft.inputs) {
    if (input == 0) return false;
    std::optional<Rewrite> rewrite =
        MakeRewrite(plan, input, Layout{strides, offset}, buffer, draft.position);
    if (!rewrite) return false;
    offset += plan.values[input].shape[info.view().axis] * strides[info.view().axis];
    rewrites.push_back(*std::move(rewrite));
  }
  if (!Apply(plan, rewrites)) return false;
  NewBuffer(plan, Kind::kArena, BytesOf(whole.shape, whole.dtype), -1, output,
            OutputDevice(plan, draft, 0));
  PlaceIn(plan, buffer, output, whole, {});
  return true;
}

}  // namespace

bool TryViews(PlanDraft& plan, const NodeDraft& draft, const KernelInfo& info,
              const KernelDef& def) {
  const ViewInfo& view = info.view();
  if (view.kind == ViewInfo::Kind::kNone || !RunsOnPlacedProvider(plan, draft)) return false;
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    if (draft.outputs[i] != 0 && info.outputs()[i].shape.elements() == 0) return false;
  }
  const bool concat = view.kind == ViewInfo::Kind::kConcat;
  const bool permutes = view.kind == ViewInfo::Kind::kPermutation;
  const auto chain = static_cast<uint32_t>(plan.recipe.chains.size());
  const bool written = (concat && WriteConcatParts(plan, draft, info)) ||
                       (permutes && WritePermuted(plan, draft, info));
  const bool placed = !written && !concat && PlaceViews(plan, draft, info);
  if (!written && !placed) return false;
  RecordDecision(plan, draft, placed ? NodeRecord::Kind::kViews : NodeRecord::Kind::kWritten, &def);
  plan.recipe.nodes.back().first_chain = chain;
  return true;
}

void RememberWriter(PlanDraft& plan, const NodeDraft& draft, const KernelDef& def,
                    const std::vector<Layout>& layouts) {
  if (!RunsOnPlacedProvider(plan, draft)) return;
  for (size_t i = 0; i < draft.outputs.size(); ++i) {
    const uint32_t id = draft.outputs[i];
    if (id == 0 || !KernelDef::Lists(def.strided_outputs, static_cast<int>(i))) continue;
    auto shares = [&](uint32_t other) {
      return other != 0 && other != id && plan.values[other].buffer == plan.values[id].buffer;
    };
    if (std::any_of(draft.inputs.begin(), draft.inputs.end(), shares)) continue;
    if (std::any_of(draft.outputs.begin(), draft.outputs.end(), shares)) continue;
    const int step = static_cast<int>(plan.data.steps.size());
    plan.values[id].writer = step;
    plan.values[id].writer_output = static_cast<int>(i);
    plan.writers.try_emplace(step, StridedWriter{&def, draft.infos, layouts});
  }
}

}  // namespace caesura
