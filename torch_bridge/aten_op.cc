// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/aten_op.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/graph/aten_domain.h"
#include "torch_bridge/aten_call.h"
#include "torch_bridge/provider/torch_kernel.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

// The inputs that are on the host.
bool TakesNumber(const Node& node, int i) { return AtenCall::TakesNumber(node, 0, i); }
bool TakesNumberOfGradient(const Node& node, int i) {
  const auto gradients = node.Attr<std::vector<int64_t>>("gradient_outputs", {});
  return AtenCall::TakesNumber(node, static_cast<int>(gradients.size()), i);
}

Result<AtenCall> MakeCall(const KernelInfo& info, const TensorSpecs& specs, int first_input,
                          c10::Device device) {
  std::vector<at::Tensor> known(specs.size() - first_input);
  for (size_t i = 0; i < known.size(); ++i) {
    const TensorSpec& spec = specs[first_input + i];
    const Tensor* value = info.InputValue(first_input + static_cast<int>(i));
    if (value != nullptr) known[i] = BorrowBytes(value->raw(), spec.type, spec.shape);
  }
  return AtenCall::Create(info.node(), first_input, known, device);
}

uint64_t SeedOf(const KernelContext& context) {
  const RandomKey key = context.random_key();
  return (key.seed * 0x9E3779B97F4A7C15u ^ key.step) * 0x9E3779B97F4A7C15u ^ key.subsequence;
}

// Operators whose meta kernel promises other sizes than the CPU's kernel gives for results that
// nobody reads.
bool MetaIsWrong(const std::string& name) {
  return name == "aten::native_batch_norm" || name == "aten::_embedding_bag_forward_only";
}

// Types and shapes of the outputs by a call without bytes; false where the operator cannot tell
// before the run.
Result<bool> PlanOutputs(KernelInfo& info, const AtenCall& call, const TensorSpecs& specs) {
  if (!call.numbers_known() || MetaIsWrong(call.op().schema().name())) return false;
  std::vector<at::Tensor> results;
  // Not an error: results whose size follows from values end here, and operators without a meta
  // kernel.
  if (!Guarded("", [&] { return results = call.MetaResults(MetaInputs(specs)), Status(); }).ok())
    return false;
  RETURN_IF_ERROR(PlanResults(info, results));
  return true;
}

Status AllocateOut(const std::string& label, KernelContext& context, c10::Device device,
                   const std::vector<bool>& present, const std::vector<at::Tensor>& results) {
  for (int i = 0; i < static_cast<int>(present.size()); ++i) {
    if (!present[i]) continue;
    RETURN_IF_ERROR(CheckResult(label, results, i));
    const DType dtype = DTypeOf(results[i].scalar_type());
    ASSIGN_OR_RETURN(Tensor out, context.AllocateOutput(i, dtype, Shape(results[i].sizes().vec())));
    BorrowBytes(out.raw(), results[i].scalar_type(), out.shape(), device).copy_(results[i]);
  }
  return {};
}

Status CreateAten(KernelInfo& info, c10::Device device) {
  const std::string label = info.node().Label();
  DispatchScope scope(/*with_gradients=*/false);
  return Guarded(label, [&]() -> Status {
    const auto on_host = [&](int i) { return TakesNumber(info.node(), i); };
    ASSIGN_OR_RETURN(const TensorSpecs specs, InputSpecs(info, device, on_host));
    ASSIGN_OR_RETURN(const AtenCall call, MakeCall(info, specs, 0, device));
    ASSIGN_OR_RETURN(const bool planned, PlanOutputs(info, call, specs));
    if (!planned) {
      std::vector<bool> present;
      for (int i = 0; i < info.output_count(); ++i) {
        info.SetOutputSizedInCompute(i);
        present.push_back(info.HasOutput(i));
      }
      info.SetCompute([=](KernelContext& context) {
        DispatchScope scope(/*with_gradients=*/false);
        return Guarded(label, [&] {
          auto arguments =
              call.Arguments(BorrowInputs(context, specs, 0, specs.size()), SeedOf(context));
          return AllocateOut(label, context, device, present,
                             AtenCall::Call(call.op(), std::move(arguments)));
        });
      });
      return {};
    }
    const TensorSpecs outputs = PlannedOutputs(info, device);
    const bool complete =
        std::all_of(outputs.begin(), outputs.end(), [](const TensorSpec& o) { return o.present; });
    const auto out_variant = complete ? call.OutVariant(outputs.size()) : std::nullopt;
    info.SetCompute([=](KernelContext& context) {
      DispatchScope scope(/*with_gradients=*/false);
      return Guarded(label, [&]() -> Status {
        auto arguments =
            call.Arguments(BorrowInputs(context, specs, 0, specs.size()), SeedOf(context));
        for (size_t i = 0; out_variant && i < outputs.size(); ++i) {
          void* data = context.Output<void>(static_cast<int>(i));
          arguments.emplace_back(BorrowBytes(data, outputs[i].type, outputs[i].shape, device));
        }
        const c10::OperatorHandle& op = out_variant ? *out_variant : call.op();
        return CopyResults(label, context, outputs, AtenCall::Call(op, std::move(arguments)));
      });
    });
    return {};
  });
}

// Y = f(X) with derivatives recorded, then dX by PyTorch's derivative of f.
Status CreateAtenGrad(KernelInfo& info, c10::Device device) {
  const std::string label = info.node().Label();
  DispatchScope scope(/*with_gradients=*/false);
  return Guarded(label, [&]() -> Status {
    const auto on_host = [&](int i) { return TakesNumberOfGradient(info.node(), i); };
    ASSIGN_OR_RETURN(const TensorSpecs specs, InputSpecs(info, device, on_host));
    const auto from = info.Attr<std::vector<int64_t>>("gradient_outputs", {});
    const auto to = info.Attr<std::vector<int64_t>>("gradient_inputs", {});
    const size_t first = from.size();
    if (first > specs.size() || to.size() != static_cast<size_t>(info.output_count())) {
      return info.Invalid(
          "has other inputs and outputs than gradient_outputs and gradient_inputs say");
    }
    for (size_t k = 0; k < to.size(); ++k) {
      const size_t input = first + static_cast<size_t>(to[k]);
      if (to[k] < 0 || input >= specs.size() || !specs[input].present)
        return info.Invalid("has no such gradient_inputs");
      const int i = static_cast<int>(input);
      info.SetOutput(static_cast<int>(k), info.InputDType(i), info.InputShape(i));
    }
    ASSIGN_OR_RETURN(const AtenCall call, MakeCall(info, specs, static_cast<int>(first), device));
    if (call.op().hasTag(at::Tag::nondeterministic_seeded)) {
      return info.Refuse(
          "operator '" + call.op().schema().name() +
          "' draws random numbers: computed once more for its gradient, it would draw others");
    }
    const TensorSpecs outputs = PlannedOutputs(info, device);
    info.SetCompute([=](KernelContext& context) {
      DispatchScope scope(/*with_gradients=*/true);
      return Guarded(label, [&]() -> Status {
        std::vector<at::Tensor> inputs = BorrowInputs(context, specs, first, specs.size()), wanted,
                                results, ys, dys;
        for (int64_t i : to) wanted.push_back(inputs[i].set_requires_grad(true));
        results = AtenCall::Call(call.op(), call.Arguments(inputs, /*seed=*/0));
        const std::vector<at::Tensor> given = BorrowInputs(context, specs, 0, first);
        for (size_t k = 0; k < from.size(); ++k) {
          RETURN_IF_ERROR(CheckResult(label, results, static_cast<int>(from[k])));
          if (!results[from[k]].requires_grad())
            continue;  // a result that the operator marks as not differentiable
          ys.push_back(results[from[k]]);
          dys.push_back(given[k]);
        }
        if (ys.empty()) return Unsupported(label + " the operator has no derivative");
        std::vector<at::Tensor> dxs =
            ::torch::autograd::grad(ys, wanted, dys, /*retain_graph=*/false,
                                    /*create_graph=*/false, /*allow_unused=*/true);
        for (size_t k = 0; k < dxs.size(); ++k) {
          if (!dxs[k].defined()) dxs[k] = at::zeros_like(wanted[k]);
        }
        at::AutoGradMode done(false);
        return CopyResults(label, context, outputs, dxs);
      });
    });
    return {};
  });
}

}  // namespace

void RegisterAtenKernels(KernelRegistry& registry, c10::Device device) {
  registry.Add({.op_type = kAtenOp,
                .domain = kAtenDomain,
                .host_input_of = TakesNumber,
                .deterministic = false,
                .create = [device](KernelInfo& info) { return CreateAten(info, device); }});
  registry.Add({.op_type = kAtenGradOp,
                .domain = kAtenDomain,
                .host_input_of = TakesNumberOfGradient,
                .deterministic = false,
                .create = [device](KernelInfo& info) { return CreateAtenGrad(info, device); }});
}

}  // namespace caesura::torch
