// SPDX-License-Identifier: Apache-2.0
#include "core/custom_ops/plugin_op.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/graph/op_def.h"
#include "core/plugin/op_context.h"
#include "core/plugin/op_gradient.h"
#include "core/plugin/plugin_library.h"

namespace caesura {
namespace {

using Handle = std::unique_ptr<void, void (*)(void*)>;

// A run state of an instance.
struct RunState {
  Handle handle;
};

Result<std::unique_ptr<RunState>> MakeRunState(const CaesuraOp& op, void* instance) {
  void* run = nullptr;
  RETURN_IF_ERROR(TakeStatus(op.create_run(instance, &run)));
  return std::make_unique<RunState>(
      RunState{Handle(run, op.destroy_run == nullptr ? KeepNothing : op.destroy_run)});
}

// Calls `infer`, or gives the outputs the type of input 0.
Status Infer(const CaesuraOp& op, CaesuraOpNode& node) {
  node.found.resize(node.outputs.size());
  if (op.infer != nullptr) return TakeStatus(op.infer(&node));
  if (node.inputs.empty() || !node.inputs[0].present) return {};
  const CaesuraOpNode::Argument& from = node.inputs[0];
  for (auto& found : node.found)
    found = node.TypeOf(from.dtype, from.has_rank ? &from.dims : nullptr);
  return {};
}

void ShowSelf(const Node& from, CaesuraOpNode* out) {
  out->name = from.name();
  out->op_type = from.op_type();
  out->version = from.since_version();
  out->SetAttributes(from.attributes());
}

CaesuraOpNode ShowNode(const Node& from) {
  CaesuraOpNode out;
  ShowSelf(from, &out);
  for (const Value* input : from.inputs()) {
    if (input == nullptr) out.inputs.emplace_back();
    else out.AddInput(input->name(), input->type(), nullptr);
  }
  for (const Value* output : from.outputs()) {
    if (output == nullptr) out.outputs.emplace_back();
    else out.AddOutput(output->name(), output->type());
  }
  return out;
}

// In the graph, where dims may be symbols.
Status InferInGraph(const CaesuraOp& op, Node* node) {
  CaesuraOpNode shown = ShowNode(*node);
  RETURN_IF_ERROR(Infer(op, shown));
  for (size_t i = 0; i < shown.found.size(); ++i) {
    if (shown.found[i] && node->outputs()[i] != nullptr)
      node->outputs()[i]->set_type(*shown.found[i]);
  }
  return {};
}

// While a kernel is made, where dims are numbers.
Status InferKernel(const CaesuraOp& op, KernelInfo& info) {
  CaesuraOpNode node;
  ShowSelf(info.node(), &node);
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i)) {
      node.inputs.emplace_back();
      continue;
    }
    const ValueType type = info.input(i).is_tensor
                               ? ValueType::Tensor(info.InputDType(i), info.InputShape(i))
                               : ValueType();
    node.AddInput(info.node().input(i)->name(), type, info.InputValue(i));
  }
  for (int i = 0; i < info.output_count(); ++i) {
    if (info.HasOutput(i))
      node.AddOutput(info.node().output(i)->name(), info.node().output(i)->type());
    else node.outputs.emplace_back();
  }
  RETURN_IF_ERROR(Infer(op, node));
  for (int i = 0; i < info.output_count(); ++i) {
    const std::optional<ValueType>& found = node.found[i];
    const std::optional<Shape> shape = found ? found->ConcreteShape() : std::nullopt;
    if (shape && found->dtype != DType::kUndefined) info.SetOutput(i, found->dtype, *shape);
    else info.SetOutputSizedInCompute(i);
  }
  return {};
}

class PluginInstance : public OpInstance {
 public:
  PluginInstance(const CaesuraOp& op, void* instance)
      : op_(op), instance_(instance, op.destroy == nullptr ? KeepNothing : op.destroy) {}

  Status CreateKernel(KernelInfo& info, const ExecutionProvider& provider) const override {
    RETURN_IF_ERROR(InferKernel(op_, info).WithPrefix(info.node().Label() + " "));
    ASSIGN_OR_RETURN(KernelFacts facts, KernelFacts::Of(info, provider));
    info.SetCompute([this, facts = std::move(facts)](KernelContext& context) {
      return Compute(facts, context);
    });
    return {};
  }

 private:
  Status Compute(const KernelFacts& facts, KernelContext& kernel_context) const {
    CaesuraContext context(kernel_context, facts);
    std::unique_ptr<RunState> run;
    if (op_.create_run != nullptr) {
      ASSIGN_OR_RETURN(run, runs_.Borrow([this] { return MakeRunState(op_, instance_.get()); }));
    }
    RETURN_IF_ERROR(TakeStatus(
        op_.compute(instance_.get(), run == nullptr ? nullptr : run->handle.get(), &context)));
    if (run != nullptr) runs_.Return(std::move(run));
    return context.CheckOutputs();
  }

  const CaesuraOp op_;
  Handle instance_;
  mutable RunStatePool<RunState> runs_;  // after the instance: gone before it
};

Status CheckDescription(const CaesuraOp& op, const std::string& name) {
  if (op.compute == nullptr) return InvalidArgument(name + " has no compute");
  if (op.domain == nullptr || *op.domain == '\0') return InvalidArgument(name + " has no domain");
  for (size_t i = 0; i < op.dtype_count; ++i) {
    if (op.dtypes[i] > 0 && op.dtypes[i] < kDTypeCount) continue;
    return InvalidArgument(name + " takes dtype " + std::to_string(op.dtypes[i]) +
                           ", which there is not");
  }
  return {};
}

// 0 to 0 stands for exactly one.
void SetCounts(int32_t low, int32_t high, int* min, int* max) {
  *min = low == 0 && high == 0 ? 1 : low;
  *max = low == 0 && high == 0 ? 1 : high < 0 ? INT_MAX : high;
}

}  // namespace

std::unique_ptr<CaesuraOpNode> ShowNode(const OpNodeInfo& info) {
  auto out = std::make_unique<CaesuraOpNode>();
  out->name = info.name;
  out->op_type = info.op_type;
  out->version = info.version;
  out->SetAttributes(info.attributes);
  out->SetOptions(info.options.values());
  for (const OpNodeInfo::Argument& input : info.inputs) {
    if (input.present)
      out->AddInput(input.name, input.type, input.constant.defined() ? &input.constant : nullptr);
    else out->inputs.emplace_back();
  }
  for (const OpNodeInfo::Argument& output : info.outputs) {
    if (output.present) out->AddOutput(output.name, output.type);
    else out->outputs.emplace_back();
  }
  return out;
}

Result<CustomOp> MakePluginOp(const CaesuraOp& op) {
  const std::string name =
      std::string("op ") + (op.domain == nullptr ? "" : op.domain) + "::" + op.op_type;
  RETURN_IF_ERROR(CheckDescription(op, name));
  CustomOp out;
  OpDef& schema = out.schema;
  schema.op_type = op.op_type;
  schema.domain = op.domain;
  schema.since_version = op.since_version == 0 ? 1 : op.since_version;
  SetCounts(op.min_inputs, op.max_inputs, &schema.min_inputs, &schema.max_inputs);
  SetCounts(op.min_outputs, op.max_outputs, &schema.min_outputs, &schema.max_outputs);
  schema.is_deterministic = (op.flags & CAESURA_OP_NOT_DETERMINISTIC) == 0;
  schema.infer = [op](Graph&, Node* node) { return InferInGraph(op, node); };
  schema.no_gradient_inputs.assign(op.no_gradient_inputs,
                                   op.no_gradient_inputs + op.no_gradient_input_count);
  if (op.gradient != nullptr) {
    schema.gradient = [op](GradientHook& hook) {
      const CaesuraOpNode node = ShowNode(hook.node());
      CaesuraGradient gradient{hook, node};
      return TakeStatus(op.gradient(&gradient));
    };
  }
  KernelDef def;
  if (op.dtype_count > 0) def.types = {};
  for (size_t i = 0; i < op.dtype_count; ++i)
    def.types = def.types | DTypeSet{static_cast<DType>(op.dtypes[i])};
  def.typed_input = op.typed_input;
  def.host_inputs.assign(op.host_inputs, op.host_inputs + op.host_input_count);
  out.kernels.push_back(std::move(def));
  out.provider = op.provider == nullptr ? "" : op.provider;
  for (size_t i = 0; i < op.options.count; ++i) {
    RETURN_IF_ERROR(
        out.options.Append(op.options.keys[i], op.options.values[i]).WithPrefix(name + ": "));
  }
  out.checks_options = (op.flags & CAESURA_OP_CHECKS_OPTIONS) != 0;
  out.create_instance = [op](const OpNodeInfo& info) -> Result<std::shared_ptr<const OpInstance>> {
    void* instance = nullptr;
    const Status created =
        op.create == nullptr ? Status() : TakeStatus(op.create(ShowNode(info).get(), &instance));
    if (created.code() == StatusCode::kUnsupported) return Declined(created.message());
    RETURN_IF_ERROR(created);
    return std::shared_ptr<const OpInstance>(std::make_shared<PluginInstance>(op, instance));
  };
  return out;
}

}  // namespace caesura
