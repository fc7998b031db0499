// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/op_context.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "core/base/status_macros.h"
#include "core/kernels/simd/parallel.h"
#include "core/plugin/op_node.h"
#include "core/plugin/plugin_library.h"

namespace caesura {
namespace {

CaesuraTensor Show(const KernelFacts::Argument& argument, const void* data, Device device) {
  return {const_cast<void*>(data),
          argument.dims.data(),
          static_cast<int32_t>(argument.dims.size()),
          argument.dtype,
          static_cast<int32_t>(device.type),
          device.index};
}

CaesuraTensor ShowOn(const Tensor& tensor, Device device) {
  CaesuraTensor out = ShowTensor(tensor);
  out.device_type = static_cast<int32_t>(device.type);
  out.device_index = device.index;
  return out;
}

CaesuraStatus* GetInput(CaesuraContext* context, size_t i, CaesuraTensor* out) {
  if (i >= context->facts.inputs.size())
    return GiveStatus(InvalidArgument("there is no input " + std::to_string(i)));
  const KernelFacts::Argument& argument = context->facts.inputs[i];
  const void* data = argument.present ? context->context.Input<void>(static_cast<int>(i)) : nullptr;
  *out = Show(argument, data, context->facts.device);
  return nullptr;
}

CaesuraStatus* GetOutput(CaesuraContext* context, size_t i, CaesuraTensor* out) {
  if (i >= context->facts.outputs.size())
    return GiveStatus(InvalidArgument("there is no output " + std::to_string(i)));
  const KernelFacts::Argument& argument = context->facts.outputs[i];
  const Tensor& allocated = context->allocated[i];
  if (allocated.defined()) {
    *out = ShowOn(allocated, context->facts.device);
  } else {
    const bool planned = argument.present && argument.dtype != 0;
    *out = Show(argument, planned ? context->context.Output<void>(static_cast<int>(i)) : nullptr,
                context->facts.device);
  }
  return nullptr;
}

Result<CaesuraTensor> Allocate(CaesuraContext* context, size_t i, int32_t dtype,
                               std::vector<int64_t> dims) {
  const std::string output = "output " + std::to_string(i);
  if (i >= context->facts.outputs.size() || !context->facts.outputs[i].present) {
    return InvalidArgument(output + " is absent and cannot be allocated");
  }
  if (context->facts.outputs[i].dtype != 0)
    return InvalidArgument(output + " has its memory already");
  if (dtype <= 0 || dtype >= kDTypeCount || static_cast<DType>(dtype) == DType::kString) {
    return InvalidArgument(output + " cannot have dtype " + std::to_string(dtype));
  }
  ASSIGN_OR_RETURN(Shape shape, CheckedShape(std::move(dims), static_cast<DType>(dtype)));
  ASSIGN_OR_RETURN(context->allocated[i],
                   context->context.AllocateOutput(static_cast<int>(i), static_cast<DType>(dtype),
                                                   std::move(shape)));
  return ShowOn(context->allocated[i], context->facts.device);
}

CaesuraStatus* AllocateOutput(CaesuraContext* context, size_t i, int32_t dtype, int32_t rank,
                              const int64_t* dims, CaesuraTensor* out) {
  if (rank < 0 || (rank > 0 && dims == nullptr))
    return GiveStatus(InvalidArgument("an output needs a shape"));
  auto made =
      Allocate(context, i, dtype,
               rank == 0 ? std::vector<int64_t>() : std::vector<int64_t>(dims, dims + rank));
  if (!made.ok()) return GiveStatus(made.status());
  *out = *made;
  return nullptr;
}

std::string ShapeText(const int64_t* dims, int32_t rank) {
  return rank <= 0 ? "[]" : Shape(std::vector<int64_t>(dims, dims + rank)).ToString();
}

Status CopyOutput(CaesuraContext* context, size_t i, const CaesuraTensor& value) {
  if (!context->facts.device.is_host()) {
    return InvalidArgument("copy_output writes host memory, and the op's is that of " +
                           context->facts.device.ToString() +
                           ": copy on the stream, to the address that output() gives");
  }
  CaesuraTensor out = {};
  RETURN_IF_ERROR(TakeStatus(GetOutput(context, i, &out)));
  if (out.dtype == 0)
    RETURN_IF_ERROR(
        TakeStatus(AllocateOutput(context, i, value.dtype, value.rank, value.dims, &out)));
  if (out.dtype != value.dtype || out.rank != value.rank ||
      !std::equal(out.dims, out.dims + out.rank, value.dims)) {
    return InvalidArgument(
        "output " + std::to_string(i) + ": expected " + DTypeName(static_cast<DType>(out.dtype)) +
        ShapeText(out.dims, out.rank) + ", got dtype " + std::to_string(value.dtype) +
        " of shape " + ShapeText(value.dims, value.rank));
  }
  size_t bytes = DTypeSize(static_cast<DType>(out.dtype));
  for (int32_t axis = 0; axis < out.rank; ++axis) bytes *= static_cast<size_t>(out.dims[axis]);
  if (bytes > 0) std::memcpy(out.data, value.data, bytes);
  return {};
}

CaesuraStatus* Scratch(CaesuraContext* context, size_t bytes, void** out) {
  auto buffer = context->facts.allocator->Allocate(bytes);
  if (!buffer.ok()) return GiveStatus(buffer.status());
  *out = (*buffer)->data();
  context->scratch.push_back(*std::move(buffer));
  return nullptr;
}

bool IsNumbers(DType dtype) { return dtype != DType::kUndefined && dtype != DType::kString; }

}  // namespace

Result<KernelFacts> KernelFacts::Of(const KernelInfo& info, const ExecutionProvider& provider) {
  KernelFacts facts;
  facts.threads = info.threads();
  facts.device = provider.device();
  facts.allocator = &provider.allocator();
  for (int i = 0; i < info.input_count(); ++i) {
    Argument& argument = facts.inputs.emplace_back();
    argument.present = info.HasInput(i);
    if (!argument.present) continue;
    if (!info.input(i).is_tensor || !IsNumbers(info.InputDType(i))) {
      return info.Refuse("takes tensors of numbers, input " + std::to_string(i) + " is none");
    }
    argument.dtype = static_cast<int32_t>(info.InputDType(i));
    argument.dims = info.InputShape(i).dims();
  }
  for (int i = 0; i < info.output_count(); ++i) {
    const OutputInfo& decided = info.outputs()[i];
    Argument& argument = facts.outputs.emplace_back();
    argument.present = info.HasOutput(i);
    assert(!argument.present || decided.kind != OutputInfo::Kind::kUnset);
    if (!argument.present || decided.kind != OutputInfo::Kind::kPlanned) continue;
    argument.dtype = static_cast<int32_t>(decided.dtype);
    argument.dims = decided.shape.dims();
  }
  return facts;
}

void AddContextFunctions(CaesuraOpApi* api) {
  api->input_count = [](const CaesuraContext* context) { return context->facts.inputs.size(); };
  api->output_count = [](const CaesuraContext* context) { return context->facts.outputs.size(); };
  api->input = GetInput;
  api->output = GetOutput;
  api->output_is_present = [](const CaesuraContext* context, size_t i) -> int32_t {
    return i < context->facts.outputs.size() && context->facts.outputs[i].present;
  };
  api->allocate_output = AllocateOutput;
  api->copy_output = [](CaesuraContext* context, size_t i, const CaesuraTensor* value) {
    return GiveStatus(CopyOutput(context, i, *value));
  };
  api->scratch = Scratch;
  api->stream = [](const CaesuraContext* context) { return context->context.device_stream(); };
  api->threads = [](const CaesuraContext* context) {
    return static_cast<int32_t>(context->facts.threads);
  };
  api->parallel_for = [](CaesuraContext* context, int64_t count, int64_t grain,
                         void (*body)(int64_t, int64_t, void*), void* argument) {
    ParallelFor(context->facts.threads, count, grain,
                [body, argument](int64_t first, int64_t last) { body(first, last, argument); });
  };
}

}  // namespace caesura

caesura::Status CaesuraContext::CheckOutputs() const {
  for (size_t i = 0; i < allocated.size(); ++i) {
    if (!facts.outputs[i].present || facts.outputs[i].dtype != 0 || allocated[i].defined())
      continue;
    return caesura::Internal("its compute has not allocated output " + std::to_string(i));
  }
  return {};
}
