// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/aten_op.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/graph/aten_domain.h"
#include "core/kernels/kernel_context.h"
#include "torch_bridge/aten_call.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

// What is known of an input, or of a planned output.
struct TensorSpec {
  bool present = false;
  c10::ScalarType type = c10::kFloat;
  Shape shape;
};
using TensorSpecs = std::vector<TensorSpec>;

// Runs `call`, which returns a Status, and turns what PyTorch throws into one.
template <typename Call>
Status Guarded(const std::string& label, Call call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return OutOfMemory(label + " memory ran out");
  } catch (const c10::OutOfMemoryError& error) {
    return OutOfMemory(label + " " + error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return InvalidArgument(label + " " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return InvalidArgument(label + " " + error.what());
  }
}

Result<TensorSpecs> SpecsOf(const KernelInfo& info) {
  TensorSpecs specs(info.input_count());
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i)) continue;
    if (!info.input(i).is_tensor) return info.Refuse("takes tensors only; input " + std::to_string(i) + " is none");
    const auto type = ScalarTypeOf(info.InputDType(i));
    if (!type) return info.Refuse(std::string("PyTorch has no type for ") + DTypeName(info.InputDType(i)));
    specs[i] = {true, *type, info.InputShape(i)};
  }
  return specs;
}

Result<AtenCall> MakeCall(const KernelInfo& info, const TensorSpecs& specs, int first_input) {
  std::vector<at::Tensor> known(specs.size() - first_input);
  for (size_t i = 0; i < known.size(); ++i) {
    const TensorSpec& spec = specs[first_input + i];
    const Tensor* value = info.InputValue(first_input + static_cast<int>(i));
    if (value != nullptr) known[i] = BorrowBytes(value->raw(), spec.type, spec.shape);
  }
  return AtenCall::Create(info.node(), first_input, known);
}

// The inputs from `first` on, as tensors on the context's bytes.
std::vector<at::Tensor> Borrowed(const KernelContext& context, const TensorSpecs& specs, size_t first, size_t last) {
  std::vector<at::Tensor> out(last - first);
  for (size_t i = first; i < last; ++i) {
    if (!specs[i].present) continue;
    void* data = const_cast<void*>(context.Input<void>(static_cast<int>(i)));
    out[i - first] = BorrowBytes(data, specs[i].type, specs[i].shape);
  }
  return out;
}

uint64_t SeedOf(const KernelContext& context) {
  const RandomKey key = context.random_key();
  return (key.seed * 0x9E3779B97F4A7C15u ^ key.step) * 0x9E3779B97F4A7C15u ^ key.stream;
}

Status CheckResult(const std::string& label, const std::vector<at::Tensor>& results, int i) {
  const size_t k = static_cast<size_t>(i);
  if (k < results.size() && results[k].defined() && DTypeOf(results[k].scalar_type()) != DType::kUndefined) return {};
  return InvalidArgument(label + " the operator gives no tensor for output " + std::to_string(i));
}

// Types and shapes of the outputs by a call without bytes; false where the operator cannot tell before the run.
Result<bool> PlanOutputs(KernelInfo& info, const AtenCall& call, const TensorSpecs& specs) {
  if (!call.numbers_known()) return false;
  std::vector<at::Tensor> inputs(specs.size()), results;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto options = at::TensorOptions().dtype(specs[i].type).device(c10::kMeta);
    if (specs[i].present) inputs[i] = at::empty(specs[i].shape.dims(), options);
  }
  // Not an error: results whose size follows from values end here, and operators without a meta kernel.
  if (!Guarded("", [&] { return results = call.MetaResults(inputs), Status(); }).ok()) return false;
  for (int i = 0; i < info.output_count(); ++i) {
    if (!info.HasOutput(i)) continue;
    RETURN_IF_ERROR(CheckResult(info.node().Label(), results, i));
    info.SetOutput(i, DTypeOf(results[i].scalar_type()), Shape(results[i].sizes().vec()));
  }
  return true;
}

TensorSpecs PlannedOutputs(const KernelInfo& info) {
  TensorSpecs out(info.output_count());
  for (int i = 0; i < info.output_count(); ++i) {
    const OutputInfo& planned = info.outputs()[i];
    if (info.HasOutput(i)) out[i] = {true, *ScalarTypeOf(planned.dtype), planned.shape};
  }
  return out;
}

Status CopyOut(const std::string& label, KernelContext& context, const TensorSpecs& outputs,
               const std::vector<at::Tensor>& results) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].present) continue;
    RETURN_IF_ERROR(CheckResult(label, results, static_cast<int>(i)));
    if (results[i].scalar_type() != outputs[i].type || results[i].sizes() != c10::IntArrayRef(outputs[i].shape.dims())) {
      return Internal(label + " output " + std::to_string(i) + " is not what the operator's meta kernel promised");
    }
    void* data = context.Output<void>(static_cast<int>(i));
    BorrowBytes(data, outputs[i].type, outputs[i].shape).copy_(results[i]);
  }
  return {};
}

Status AllocateOut(const std::string& label, KernelContext& context, const std::vector<bool>& present,
                   const std::vector<at::Tensor>& results) {
  for (int i = 0; i < static_cast<int>(present.size()); ++i) {
    if (!present[i]) continue;
    RETURN_IF_ERROR(CheckResult(label, results, i));
    const DType dtype = DTypeOf(results[i].scalar_type());
    ASSIGN_OR_RETURN(Tensor out, context.AllocateOutput(i, dtype, Shape(results[i].sizes().vec())));
    BorrowBytes(out.raw(), results[i].scalar_type(), out.shape()).copy_(results[i]);
  }
  return {};
}

Status CreateAten(KernelInfo& info) {
  const std::string label = info.node().Label();
  DispatchScope scope(/*with_gradients=*/false);
  return Guarded(label, [&]() -> Status {
    ASSIGN_OR_RETURN(const TensorSpecs specs, SpecsOf(info));
    ASSIGN_OR_RETURN(const AtenCall call, MakeCall(info, specs, 0));
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
          auto arguments = call.Arguments(Borrowed(context, specs, 0, specs.size()), SeedOf(context));
          return AllocateOut(label, context, present, AtenCall::Call(call.op(), std::move(arguments)));
        });
      });
      return {};
    }
    const TensorSpecs outputs = PlannedOutputs(info);
    const bool complete = std::all_of(outputs.begin(), outputs.end(), [](const TensorSpec& o) { return o.present; });
    const auto out_variant = complete ? call.OutVariant(outputs.size()) : std::nullopt;
    info.SetCompute([=](KernelContext& context) {
      DispatchScope scope(/*with_gradients=*/false);
      return Guarded(label, [&]() -> Status {
        auto arguments = call.Arguments(Borrowed(context, specs, 0, specs.size()), SeedOf(context));
        if (!out_variant) return CopyOut(label, context, outputs, AtenCall::Call(call.op(), std::move(arguments)));
        for (size_t i = 0; i < outputs.size(); ++i) {
          void* data = context.Output<void>(static_cast<int>(i));
          arguments.emplace_back(BorrowBytes(data, outputs[i].type, outputs[i].shape));
        }
        out_variant->callBoxed(&arguments);
        return {};
      });
    });
    return {};
  });
}

// Y = f(X) with derivatives recorded, then dX by PyTorch's derivative of f.
Status CreateAtenGrad(KernelInfo& info) {
  const std::string label = info.node().Label();
  DispatchScope scope(/*with_gradients=*/false);
  return Guarded(label, [&]() -> Status {
    ASSIGN_OR_RETURN(const TensorSpecs specs, SpecsOf(info));
    const auto from = info.Attr<std::vector<int64_t>>("gradient_outputs", {});
    const auto to = info.Attr<std::vector<int64_t>>("gradient_inputs", {});
    const size_t first = from.size();
    if (first > specs.size() || to.size() != static_cast<size_t>(info.output_count())) {
      return info.Invalid("has other inputs and outputs than gradient_outputs and gradient_inputs say");
    }
    for (size_t k = 0; k < to.size(); ++k) {
      const size_t input = first + static_cast<size_t>(to[k]);
      if (to[k] < 0 || input >= specs.size() || !specs[input].present) return info.Invalid("has no such gradient_inputs");
      const int i = static_cast<int>(input);
      info.SetOutput(static_cast<int>(k), info.InputDType(i), info.InputShape(i));
    }
    ASSIGN_OR_RETURN(const AtenCall call, MakeCall(info, specs, static_cast<int>(first)));
    if (call.op().hasTag(at::Tag::nondeterministic_seeded)) {
      return info.Refuse("operator '" + call.op().schema().name() +
                         "' draws random numbers: computed once more for its gradient, it would draw others");
    }
    const TensorSpecs outputs = PlannedOutputs(info);
    info.SetCompute([=](KernelContext& context) {
      DispatchScope scope(/*with_gradients=*/true);
      return Guarded(label, [&]() -> Status {
        std::vector<at::Tensor> inputs = Borrowed(context, specs, first, specs.size()), wanted, results, ys;
        for (int64_t i : to) wanted.push_back(inputs[i].set_requires_grad(true));
        results = AtenCall::Call(call.op(), call.Arguments(inputs, /*seed=*/0));
        for (int64_t i : from) {
          RETURN_IF_ERROR(CheckResult(label, results, static_cast<int>(i)));
          ys.push_back(results[i]);
        }
        std::vector<at::Tensor> dxs = ::torch::autograd::grad(ys, wanted, Borrowed(context, specs, 0, first),
                                                              /*retain_graph=*/false, /*create_graph=*/false,
                                                              /*allow_unused=*/true);
        for (size_t k = 0; k < dxs.size(); ++k) {
          if (!dxs[k].defined()) dxs[k] = at::zeros_like(wanted[k]);
        }
        at::AutoGradMode done(false);
        return CopyOut(label, context, outputs, dxs);
      });
    });
    return {};
  });
}

}  // namespace

void RegisterAtenKernels(KernelRegistry& registry) {
  registry.Add({.op_type = kAtenOp, .domain = kAtenDomain, .deterministic = false, .create = CreateAten});
  registry.Add({.op_type = kAtenGradOp, .domain = kAtenDomain, .deterministic = false, .create = CreateAtenGrad});
}

}  // namespace caesura::torch
