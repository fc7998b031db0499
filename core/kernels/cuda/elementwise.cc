// SPDX-License-Identifier: Apache-2.0
// Every op of CudaElementOps as a kernel of its own: one element after the other, with
// broadcasting.
#include "core/graph/op_traits.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/broadcast_strides.h"

namespace caesura {
namespace {

constexpr size_t kMaxParameterBytes = 3072;  // of 4096; the rest is for pointers

DType ResultType(const KernelInfo& info) {
  if (info.node().Is("Cast")) return info.GraphOutputDType(0);
  if (info.node().Is("Where")) return info.InputDType(1);
  const DType fixed = TraitsOf(info.node()).result;
  return fixed == DType::kUndefined ? info.InputDType(0) : fixed;
}

std::string Source(const StridedWalk& walk, const std::vector<DType>& dtypes, DType output,
                   const std::string& expression) {
  std::string parameters, loads;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i] == DType::kUndefined) continue;
    const std::string name = "x" + std::to_string(i);
    parameters += std::string("const ") + CudaStorageType(dtypes[i]) + "* " + name + ", ";
    loads += std::string("const ") + CudaComputeType(dtypes[i]) + " v" + std::to_string(i) +
             " = Load(" + name + " + offset" + std::to_string(i) + ");\n";
  }
  return walk.Struct() + "extern \"C\" __global__ void elementwise(" + parameters +
         CudaStorageType(output) +
         "* y, i64 n, Walk walk) {\n"
         "for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;"
         " i += (i64)gridDim.x * blockDim.x) {\n" +
         walk.Offsets() + loads + "Store(y + i, " + expression + ");\n}\n}\n";
}

Status CreateElementwise(KernelInfo& info, const CudaDevicePtr& device) {
  Shape output;
  std::vector<DType> dtypes;
  std::vector<std::string> values;
  bool first = true;
  for (int i = 0; i < info.input_count(); ++i) {
    const bool present = info.HasInput(i);
    if (present && !info.IsTensor(i)) return info.Refuse("takes tensors only");
    dtypes.push_back(present ? info.InputDType(i) : DType::kUndefined);
    values.push_back(present ? "v" + std::to_string(i) : "");
    if (!present) continue;
    Result<Shape> both = first ? info.InputShape(i) : BroadcastShape(output, info.InputShape(i));
    if (!both.ok()) return info.Invalid(both.status().message());
    output = *std::move(both);
    first = false;
  }
  const DType dtype = ResultType(info);
  const auto expression = CudaElementExpression(info.node(), dtypes, dtype, values);
  if (!expression) return info.Refuse("has no CUDA source for these types");
  std::vector<std::vector<int64_t>> strides;
  for (int i = 0; i < info.input_count(); ++i) {
    strides.emplace_back(output.rank(), 0);
    if (info.HasInput(i)) BroadcastStrides(info.InputShape(i), output, strides.back().data());
  }
  const StridedWalk walk = StridedWalk::Make(output.dims(), strides);
  std::vector<int64_t> numbers = walk.Numbers();
  if (numbers.size() * sizeof(int64_t) > kMaxParameterBytes)
    return info.Refuse("has more inputs than a kernel takes");
  info.SetOutput(0, dtype, output);
  if (walk.elements == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, Source(walk, dtypes, dtype, *expression), "elementwise",
                                    GridOver(*device, walk.elements)));
  info.SetCompute(
      [kernel, dtypes, numbers = std::move(numbers), n = walk.elements](KernelContext& context) {
        CudaArguments arguments;
        for (size_t i = 0; i < dtypes.size(); ++i) {
          if (dtypes[i] != DType::kUndefined)
            arguments.AddPointer(context.Input<void>(static_cast<int>(i)));
        }
        arguments.AddPointer(context.Output<void>(0));
        arguments.Add(&n);
        arguments.Add(numbers.data());
        return kernel.LaunchWith(arguments.addresses());
      });
  return {};
}

}  // namespace

void RegisterCudaElementwise(KernelRegistry& registry, const CudaDevicePtr& device) {
  for (const CudaElementOp& op : CudaElementOps()) {
    registry.Add(
        {.op_type = op.op_type,
         .domain = op.domain,
         .types = op.types,
         .create = [device](KernelInfo& info) { return CreateElementwise(info, device); }});
  }
}

}  // namespace caesura
