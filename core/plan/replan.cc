// SPDX-License-Identifier: Apache-2.0
// A plan for feeds of other sizes, from a plan that is there: walks over its recipe and plans anew
// only the nodes that the change reaches.
#include <algorithm>
#include <cstring>

#include "core/kernels/kernel_creation.h"
#include "core/kernels/kernel_registry.h"
#include "core/plan/execution_plan.h"
#include "core/plan/node_error.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {

using How = NodeRecord::Kind;

namespace {

// A node that no longer fits how it was planned ends the walk: the plan is then made from the
// start.
class Replanner {
 public:
  explicit Replanner(const PlanData& from)
      : plan_(from), recipe_(*from.recipe), changed_(from.values.size(), 0) {}

  // Null where the plan is to be made anew.
  Result<std::shared_ptr<const ExecutionPlan>> Run(const std::vector<FeedSpec>& feeds) {
    bool fits = SetFeeds(feeds);
    for (auto record = recipe_.nodes.begin(); fits && record != recipe_.nodes.end(); ++record) {
      fits = Settle(*record);
      if (!failure_.ok()) return AtNode(failure_, *record->node, record->provider->name());
    }
    fits = fits && (!moves_ || AssignOffsets(plan_).ok());
    return fits ? std::make_shared<const ExecutionPlan>(std::move(plan_)) : nullptr;
  }

 private:
  PlannedBuffer& BufferOf(uint32_t id) { return plan_.buffers[plan_.values[id].buffer]; }
  static size_t BytesOf(const PlannedValue& value) {
    return caesura::BytesOf(value.shape, value.dtype);
  }
  const uint32_t* Inputs(const NodeRecord& record) const { return recipe_.ids.data() + record.ids; }
  const uint32_t* Outputs(const NodeRecord& record) const {
    return Inputs(record) + record.input_count;
  }

  bool SetFeeds(const std::vector<FeedSpec>& feeds) {
    if (feeds.size() != plan_.feeds.size()) return false;
    for (size_t i = 0; i < feeds.size(); ++i) {
      FeedSpec& own = plan_.feeds[i];
      const FeedSpec& given = feeds[i];
      if (own.is_tensor != given.is_tensor || own.dtype != given.dtype ||
          own.device != given.device)
        return false;
      if (own.value.defined() || given.value.defined()) return false;
      const uint32_t id = plan_.feed_values[i];
      if (id == 0 || own.shape == given.shape) continue;
      own.shape = given.shape;
      if (!SetShape(id, given.shape, {})) return false;
      BufferOf(id).bytes = BytesOf(plan_.values[id]);
    }
    return true;
  }

  // Blocks of the arena stay where they are while all of them need as many bytes as before.
  void SetBytes(size_t& held, size_t bytes) {
    const auto blocks = [](size_t n) { return (n + kBufferAlignment - 1) / kBufferAlignment; };
    moves_ |= blocks(bytes) != blocks(held);
    held = bytes;
  }

  // False for a value with no elements, before or after: those are planned in another way.
  bool SetShape(uint32_t id, const Shape& shape, Layout layout) {
    PlannedValue& value = plan_.values[id];
    if (value.shape == shape && value.layout == layout) return true;
    if (value.shape.elements() == 0 || shape.elements() == 0) return false;
    value.shape = shape;
    value.layout = std::move(layout);
    changed_[id] = 1;
    return true;
  }

  InputInfo Describe(uint32_t id) {
    InputInfo info = caesura::Describe(plan_.values[id]);
    if (recipe_.known_contents[id]) info.value = &plan_.constants[BufferOf(id).index];
    return info;
  }

  std::vector<InputInfo> DescribeInputs(const NodeRecord& record) {
    std::vector<InputInfo> infos;
    infos.reserve(record.input_count);
    for (uint32_t i = 0; i < record.input_count; ++i) infos.push_back(Describe(Inputs(record)[i]));
    return infos;
  }

  bool Settle(const NodeRecord& record) {
    const uint32_t* inputs = Inputs(record);
    const auto changed = [this](uint32_t id) { return changed_[id] != 0; };
    if (record.kind == How::kDynamic || std::none_of(inputs, inputs + record.input_count, changed))
      return true;
    if (record.kind == How::kFixed) return false;
    std::vector<InputInfo> infos = DescribeInputs(record);
    // They are dense until this node has their producers write elsewhere.
    for (InputInfo& input : infos) {
      if (record.kind == How::kWritten) input.layout = {};
    }
    if (record.kind == How::kFolded) return Fold(record, infos);
    KernelInfo info(*record.node, std::move(infos), plan_.threads);
    if (!Create(record, info)) return false;
    switch (record.kind) {
      case How::kStep: return SettleStep(record, info);
      case How::kViews: return SettleViews(record, info);
      case How::kWritten: return SettleWritten(record, info);
      default: return SettleAlias(record, info);
    }
  }

  // By the same kernel as before.
  bool Create(const NodeRecord& record, KernelInfo& info) {
    if (record.first_candidate) return Succeeded(CreateKernel(*record.def, info));
    const Result<const KernelDef*> chosen =
        record.provider->kernels().Create(info, record.provider->name());
    return Succeeded(chosen.status()) && *chosen == record.def;
  }

  // Provider and memory failures are reported, not retried with a fresh plan.
  bool Succeeded(Status status) {
    const bool machine =
        status.code() == StatusCode::kProviderFailure || status.code() == StatusCode::kOutOfMemory;
    if (!machine) return status.ok();
    failure_ = std::move(status);
    return false;
  }

  // The input that shares its bytes with the output; 0: none.
  uint32_t Shared(const NodeRecord& record, uint32_t output) const {
    const uint32_t* inputs = Inputs(record);
    const auto* found = std::find_if(inputs, inputs + record.input_count, [&](uint32_t id) {
      return id != 0 && plan_.values[id].buffer == plan_.values[output].buffer;
    });
    return found == inputs + record.input_count ? 0 : *found;
  }
  // Sharing needs as many bytes as before, without gaps.
  bool MayShare(uint32_t input, uint32_t output) {
    return plan_.values[input].layout.dense() &&
           BytesOf(plan_.values[output]) == BufferOf(output).bytes;
  }

  bool SettleStep(const NodeRecord& record, KernelInfo& info) {
    if (!info.aliases().empty()) return false;
    for (uint32_t i = 0; i < record.output_count; ++i) {
      const uint32_t id = Outputs(record)[i];
      if (id == 0) continue;
      const OutputInfo& decided = info.outputs()[i];
      const bool planned = BufferOf(id).kind != PlannedBuffer::Kind::kDynamic;
      if (decided.kind !=
          (planned ? OutputInfo::Kind::kPlanned : OutputInfo::Kind::kSizedInCompute))
        return false;
      if (!planned) continue;
      if (decided.dtype != plan_.values[id].dtype || !SetShape(id, decided.shape, {})) return false;
      if (recipe_.in_chain[id]) continue;  // SettleWritten decides where it lies
      const uint32_t shared = Shared(record, id);
      if (shared != 0 && !MayShare(shared, id)) return false;
      SetBytes(BufferOf(id).bytes, BytesOf(plan_.values[id]));
    }
    plan_.steps[record.step].compute = info.TakeCompute();
    SetBytes(plan_.steps[record.step].scratch_bytes, info.scratch_bytes());
    return static_cast<bool>(plan_.steps[record.step].compute);
  }

  bool SettleAlias(const NodeRecord& record, const KernelInfo& info) {
    for (uint32_t i = 0; i < record.output_count; ++i) {
      const uint32_t id = Outputs(record)[i];
      if (id == 0) continue;
      const OutputInfo& decided = info.outputs()[i];
      if (decided.kind != OutputInfo::Kind::kPlanned || !SetShape(id, decided.shape, {}))
        return false;
      const uint32_t shared = Shared(record, id);
      if (shared == 0 || !MayShare(shared, id)) return false;
    }
    return true;
  }

  bool SettleViews(const NodeRecord& record, const KernelInfo& info) {
    const std::vector<Layout>& layouts = info.view().layouts;
    if (layouts.size() != record.output_count) return false;
    for (uint32_t i = 0; i < record.output_count; ++i) {
      const uint32_t id = Outputs(record)[i];
      if (id == 0) continue;
      const Shape& shape = info.outputs()[i].shape;
      Layout layout = layouts[i];
      const bool was_dense = plan_.values[id].layout.dense();
      if (!SetShape(id, shape, {})) return false;
      if (recipe_.in_chain[id] && !layout.dense()) return false;
      if (recipe_.in_chain[id]) continue;  // SettleWritten decides where it lies
      if (!layout.dense() || BytesOf(plan_.values[id]) != BufferOf(id).bytes) {
        if (was_dense || shape.rank() == 0) return false;  // its readers may take only dense inputs
        if (layout.strides.empty()) layout.strides = shape.Strides();
        changed_[id] = 1;
        plan_.values[id].layout = std::move(layout);
      }
    }
    return true;
  }

  // A permutation, or a Concat of parts.
  bool SettleWritten(const NodeRecord& record, const KernelInfo& info) {
    const ViewInfo& view = info.view();
    const bool concat = view.kind == ViewInfo::Kind::kConcat;
    if (!concat && view.kind != ViewInfo::Kind::kPermutation) return false;
    const Shape& whole = info.outputs()[0].shape;
    const std::vector<int64_t> strides = whole.Strides();
    int64_t offset = 0;
    for (uint32_t i = 0; i < (concat ? record.input_count : 1); ++i) {
      const Layout layout =
          concat ? Layout{strides, offset} : LayoutOfPermuted(whole, view.permutation);
      if (!WriteElsewhere(recipe_.chains[record.first_chain + i], layout)) return false;
      if (concat) offset += plan_.values[Inputs(record)[i]].shape[view.axis] * strides[view.axis];
    }
    const uint32_t output = Outputs(record)[0];
    if (!SetShape(output, whole, {})) return false;
    SetBytes(BufferOf(output).bytes, BytesOf(plan_.values[output]));
    return true;
  }

  // Gives the chain's first value this layout, and its producer a kernel that writes so.
  bool WriteElsewhere(const WrittenChain& chain, Layout layout) {
    for (size_t i = 0; i < chain.links.size(); ++i) {
      PlannedValue& value = plan_.values[chain.links[i].id];
      if (value.shape.elements() == 0) return false;
      value.layout = Simplified(value.shape, layout);
      changed_[chain.links[i].id] = 1;
      if (i + 1 == chain.links.size()) break;
      std::optional<Layout> viewed = LayoutOfViewed(value.shape, layout, chain.links[i].permutation,
                                                    plan_.values[chain.links[i + 1].id].shape);
      if (!viewed) return false;
      layout = *std::move(viewed);
    }
    const NodeRecord& producer = recipe_.nodes[chain.producer];
    if (producer.kind != How::kStep) return false;
    KernelInfo info(*producer.node, DescribeInputs(producer), plan_.threads);
    std::vector<Layout> layouts(producer.output_count);
    for (uint32_t i = 0; i < producer.output_count; ++i) {
      if (Outputs(producer)[i] != 0) layouts[i] = plan_.values[Outputs(producer)[i]].layout;
    }
    info.set_output_layouts(std::move(layouts));
    if (!Succeeded(CreateKernel(*producer.def, info))) return false;
    plan_.steps[producer.step].compute = info.TakeCompute();
    SetBytes(plan_.steps[producer.step].scratch_bytes, info.scratch_bytes());
    return true;
  }

  bool Fold(const NodeRecord& record, const std::vector<InputInfo>& infos) {
    KernelInfo info(*record.node, infos, plan_.threads);
    if (!Create(record, info) || !IsFoldable(infos, info, *record.def)) return false;
    const Result<std::vector<Tensor>> results = ComputeNow(infos, info);
    if (!results.ok()) return false;
    for (uint32_t i = 0; i < record.output_count; ++i) {
      const uint32_t id = Outputs(record)[i];
      if (id == 0) continue;
      const Tensor& now = (*results)[i];
      Tensor& before = plan_.constants[BufferOf(id).index];
      if (!now.defined() || now.dtype() != before.dtype()) return false;
      const bool same =
          now.shape() == before.shape() && now.dtype() != DType::kString &&
          (now.bytes() == 0 || std::memcmp(now.raw(), before.raw(), now.bytes()) == 0);
      if (same) continue;
      before = now;
      plan_.values[id].shape = now.shape();
      BufferOf(id).bytes = BytesOf(plan_.values[id]);
      changed_[id] = 1;
    }
    return true;
  }

  PlanData plan_;
  const PlanRecipe& recipe_;
  std::vector<char> changed_;  // by value id: its sizes, its layout or what is known of its value
  bool moves_ = false;         // offsets in the arena are to be planned anew
  Status failure_;
};

}  // namespace

Result<std::shared_ptr<const ExecutionPlan>> ExecutionPlan::Resized(
    const std::vector<FeedSpec>& feeds) const {
  if (data_.recipe == nullptr) return std::shared_ptr<const ExecutionPlan>();
  return Replanner(data_).Run(feeds);
}

}  // namespace caesura
