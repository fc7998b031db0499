// SPDX-License-Identifier: Apache-2.0
// If and Loop (ONNX). Bodies run through SubgraphRunner; sizes show only at run time.
#include <cstdint>
#include <limits>

#include "core/base/status_macros.h"
#include "core/graph/graph.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/control_flow/scan_output.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

using Values = std::vector<RuntimeValue>;

Status CheckSingle(const KernelInfo& info, int input, DType dtype, const char* what) {
  if (!info.input(input).is_tensor || info.InputDType(input) != dtype ||
      info.InputShape(input).elements() != 1) {
    return info.Invalid(std::string(what) + " must be one element of " + DTypeName(dtype));
  }
  return {};
}

// --- If ---

Status CreateIf(KernelInfo& info) {
  auto then_body = info.Subgraph("then_branch");
  auto else_body = info.Subgraph("else_branch");
  if (then_body == nullptr || else_body == nullptr)
    return info.Refuse("needs an executor that runs its branches");
  if (!info.HasInput(0)) return info.Invalid("needs its condition");
  RETURN_IF_ERROR(CheckSingle(info, 0, DType::kBool, "the condition"));
  const int outputs = info.output_count();
  for (const auto& body : {then_body, else_body}) {
    if (static_cast<int>(body->graph().outputs().size()) < outputs ||
        !body->graph().inputs().empty()) {
      return info.Invalid("a branch must have no inputs and " + std::to_string(outputs) +
                          " outputs");
    }
  }
  for (int i = 0; i < outputs; ++i) info.SetOutputSizedInCompute(i);
  info.SetCompute([then_body, else_body, outputs,
                   label = info.node().Label()](KernelContext& context) -> Status {
    SubgraphRunner& body = *context.Input<bool>(0) ? *then_body : *else_body;
    Result<Values> results = body.Run({}, context);
    if (!results.ok()) return results.status().WithPrefix(label + " in its branch: ");
    for (int i = 0; i < outputs; ++i) context.SetOutputValue(i, std::move((*results)[i]));
    return {};
  });
  return {};
}

// --- Loop ---

struct LoopSpec {
  std::shared_ptr<SubgraphRunner> body;
  std::string label;
  bool has_trip_count = false;
  bool has_condition = false;
  int carried = 0;  // N of the specification
  int outputs = 0;
  std::vector<ValueType> scan_types;
};

// One iteration: `state` and `condition` become what the body returns. What it has from `initial`
// stays borrowed.
Status Iterate(const LoopSpec& loop, int64_t iteration, RuntimeValue* condition, Values* state,
               std::vector<ScanOutput>* scans, KernelContext& context) {
  Values inputs;
  inputs.reserve(2 + loop.carried);
  inputs.push_back(Tensor::Scalar<int64_t>(iteration));
  inputs.push_back(*condition);
  for (RuntimeValue& value : *state) inputs.push_back(std::move(value));
  Result<Values> run = loop.body->Run(std::move(inputs), context, static_cast<uint64_t>(iteration));
  if (!run.ok()) {
    return run.status().WithPrefix(loop.label + " in iteration " + std::to_string(iteration) +
                                   ": ");
  }
  Values results = *std::move(run);
  *condition = std::move(results[0]);
  const bool is_bool = condition->is_tensor() && condition->tensor().dtype() == DType::kBool;
  if (!is_bool || condition->tensor().elements() != 1) {
    return InvalidArgument(loop.label + " the body's condition must be one bool");
  }
  for (int i = 0; i < loop.carried; ++i) (*state)[i] = std::move(results[1 + i]);
  for (size_t k = 0; k < scans->size(); ++k) {
    RETURN_IF_ERROR((*scans)[k].Append(std::move(results[1 + loop.carried + k])));
  }
  return {};
}

Status RunLoop(const LoopSpec& loop, KernelContext& context) {
  const int64_t trips =
      loop.has_trip_count ? *context.Input<int64_t>(0) : std::numeric_limits<int64_t>::max();
  RuntimeValue condition = Tensor::Scalar<bool>(!loop.has_condition || *context.Input<bool>(1));
  Values initial;
  for (int i = 0; i < loop.carried; ++i) initial.push_back(context.InputValue(2 + i));
  Values state = initial;
  std::vector<ScanOutput> scans;
  for (const ValueType& type : loop.scan_types) scans.emplace_back(loop.label, type);
  for (int64_t i = 0; i < trips && *condition.tensor().data<bool>(); ++i) {
    RETURN_IF_ERROR(Iterate(loop, i, &condition, &state, &scans, context));
  }
  for (int i = 0; i < loop.outputs && i < loop.carried; ++i) {
    ASSIGN_OR_RETURN(RuntimeValue value, Owned(std::move(state[i]), initial, context));
    context.SetOutputValue(i, std::move(value));
  }
  for (size_t k = 0; k < scans.size(); ++k) {
    const int output = loop.carried + static_cast<int>(k);
    if (output < loop.outputs) RETURN_IF_ERROR(scans[k].Write(context, output, 0, false));
  }
  return {};
}

Status CreateLoop(KernelInfo& info) {
  LoopSpec loop;
  loop.body = info.Subgraph("body");
  if (loop.body == nullptr) return info.Refuse("needs an executor that runs its body");
  loop.label = info.node().Label();
  loop.has_trip_count = info.HasInput(0);
  loop.has_condition = info.HasInput(1);
  if (loop.has_trip_count) RETURN_IF_ERROR(CheckSingle(info, 0, DType::kInt64, "the trip count"));
  if (loop.has_condition) RETURN_IF_ERROR(CheckSingle(info, 1, DType::kBool, "the condition"));
  // Not input_count(): values that the body reads from outside may follow the node's own inputs.
  loop.carried = std::max(0, static_cast<int>(info.node().inputs().size()) - 2);
  loop.outputs = info.output_count();
  const Graph& graph = loop.body->graph();
  const int results = static_cast<int>(graph.outputs().size());
  if (static_cast<int>(graph.inputs().size()) != 2 + loop.carried || results < 1 + loop.carried ||
      loop.outputs > results - 1) {
    return info.Invalid("with " + std::to_string(loop.carried) + " carried values and " +
                        std::to_string(loop.outputs) + " outputs has a body of " +
                        std::to_string(graph.inputs().size()) + " inputs and " +
                        std::to_string(results) + " outputs");
  }
  for (int i = 1 + loop.carried; i < results; ++i)
    loop.scan_types.push_back(graph.outputs()[i]->type());
  for (int i = 0; i < loop.outputs; ++i) info.SetOutputSizedInCompute(i);
  info.SetCompute(
      [loop = std::move(loop)](KernelContext& context) { return RunLoop(loop, context); });
  return {};
}

}  // namespace

void RegisterIfLoop(KernelRegistry& registry) {
  registry.Add({.op_type = "If", .create = CreateIf});
  registry.Add({.op_type = "Loop", .create = CreateLoop});
}

}  // namespace caesura
