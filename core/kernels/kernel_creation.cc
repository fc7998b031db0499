// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/kernel_creation.h"

#include "core/base/env.h"
#include "core/base/status_macros.h"
#include "core/graph/attribute_limits.h"
#include "core/graph/op_def.h"
#include "core/graph/op_schema.h"

namespace caesura {
namespace {

Status TooMuchMemory(const KernelInfo& info, const std::string& what, uint64_t bytes) {
  return OutOfMemory(info.node().Label() + " " + what + " takes " + std::to_string(bytes) +
                     " bytes, more than the " + std::to_string(env::MemoryBytes()) +
                     " of memory here");
}

Status CheckSizes(const KernelInfo& info) {
  for (size_t i = 0; i < info.outputs().size(); ++i) {
    const OutputInfo& output = info.outputs()[i];
    if (output.kind != OutputInfo::Kind::kPlanned) continue;
    const Result<Shape> checked = CheckedShape(output.shape.dims(), output.dtype);
    if (!checked.ok())
      return info.Invalid("output " + std::to_string(i) + ": " + checked.status().message());
    const uint64_t bytes = static_cast<uint64_t>(output.shape.elements()) * DTypeSize(output.dtype);
    if (bytes <= env::MemoryBytes()) continue;
    return TooMuchMemory(info,
                         "output " + std::to_string(i) + ", " + DTypeName(output.dtype) +
                             output.shape.ToString() + ",",
                         bytes);
  }
  if (info.scratch_bytes() <= env::MemoryBytes()) return {};
  return TooMuchMemory(info, "needs scratch memory that", info.scratch_bytes());
}

// Factories read the values of host inputs as numbers or texts. Values of the first input's type
// may be passed on as they are.
Status CheckHostInputs(const KernelDef& def, const KernelInfo& info) {
  constexpr DTypeSet kReadable = kNumericTypes | DTypeSet{DType::kBool, DType::kString};
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.IsTensor(i) || !def.IsHostInput(info.node(), i)) continue;
    const DType dtype = info.InputDType(i);
    const bool is_data = i > 0 && info.IsTensor(0) && dtype == info.InputDType(0);
    if (!kReadable.Contains(dtype) && dtype != DType::kUndefined && !is_data)
      return info.Invalid("input " + std::to_string(i) + ": expected numbers, got " +
                          DTypeName(dtype));
  }
  return {};
}

// onnx has checked the types of its own ops' inputs. The ops that this library adds take tensors.
Status CheckTensors(const KernelInfo& info) {
  if (FindOwnOp(info.node().op_type(), info.node().domain()) == nullptr) return {};
  for (int i = 0; i < info.input_count(); ++i) {
    if (info.HasInput(i) && !info.IsTensor(i))
      return info.Invalid("input " + std::to_string(i) + ": expected a tensor");
  }
  return {};
}

// Neither an input whose values the function reads nor an output has an element.
bool IsEmpty(const KernelDef& def, const KernelInfo& info) {
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i) || def.IsHostInput(info.node(), i)) continue;
    if (!info.input(i).is_tensor || info.InputShape(i).elements() > 0) return false;
  }
  bool any = false;
  for (int i = 0; i < info.output_count(); ++i) {
    if (!info.HasOutput(i)) continue;
    const OutputInfo& output = info.outputs()[i];
    if (output.kind != OutputInfo::Kind::kPlanned || output.shape.elements() > 0) return false;
    any = true;
  }
  return any;
}

}  // namespace

Status CreateKernel(const KernelDef& def, KernelInfo& info) {
  const std::string fault = AttributeFault(info.node());
  if (!fault.empty()) return info.Invalid(fault);
  RETURN_IF_ERROR(CheckTensors(info));
  RETURN_IF_ERROR(CheckHostInputs(def, info));
  RETURN_IF_ERROR(def.create(info));
  RETURN_IF_ERROR(CheckSizes(info));
  if (IsEmpty(def, info)) info.SetCompute([](KernelContext&) {});
  return {};
}

}  // namespace caesura
