// SPDX-License-Identifier: Apache-2.0
// Div and Mod of integers. A divisor of zero is reported by the device's error cell.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/broadcast_strides.h"

namespace caesura {
namespace {

// The result for p and q, of which q is neither 0 nor -1; and for q = -1, which may not overflow.
struct Division {
  const char *result, *by_minus_one;
};

Division DivisionOf(const Node& node) {
  if (node.Is("Div")) return {"p / q", "0 - (u64)p"};
  if (node.Attr<int64_t>("fmod", 0) != 0) return {"p % q", "0"};
  return {"p % q != 0 && (p % q < 0) != (q < 0) ? p % q + q : p % q", "0"};
}

Status CreateIntegerDivision(KernelInfo& info, const CudaDevicePtr& device) {
  const DType dtype = info.InputDType(0);
  if (info.InputDType(1) != dtype) return info.Refuse("has operands of two types");
  const Shape &a = info.InputShape(0), &b = info.InputShape(1);
  Result<Shape> output = BroadcastShape(a, b);
  if (!output.ok()) return info.Invalid(output.status().message());
  std::vector<std::vector<int64_t>> strides(2, std::vector<int64_t>(output->rank(), 0));
  BroadcastStrides(a, *output, strides[0].data());
  BroadcastStrides(b, *output, strides[1].data());
  const StridedWalk walk = StridedWalk::Make(output->dims(), strides);
  const int64_t n = walk.elements;
  info.SetOutput(0, dtype, *std::move(output));
  if (n == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  const Division division = DivisionOf(info.node());
  const bool is_signed = kSignedTypes.Contains(dtype);
  const std::string source = CudaMacros({{"T_TYPE", CudaComputeType(dtype)},
                                         {"IS_SIGNED", is_signed ? "true" : "false"},
                                         {"RESULT", division.result},
                                         {"BY_MINUS_ONE", division.by_minus_one},
                                         {"WALK_NUMBERS", std::to_string(walk.Numbers().size())},
                                         {"OFFSETS", walk.Offsets()}}) +
                             CudaInclude("core/ops/elementwise/integer_division.cuh");
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, source, "divide", GridOver(*device, n)));
  info.SetCompute(
      [=, numbers = walk.Numbers(), error = device->error_cell(),
       number = device->AddError(info.node().Label() + " division of integers by zero")](
          KernelContext& context) {
        CudaArguments arguments;
        arguments.AddPointer(context.Input<void>(0));
        arguments.AddPointer(context.Input<void>(1));
        arguments.AddPointer(context.Output<void>(0));
        arguments.Add(&n);
        arguments.AddPointer(error);
        arguments.Add(&number);
        arguments.Add(numbers.data());
        return kernel.LaunchWith(arguments.addresses());
      });
  return {};
}

}  // namespace

void RegisterCudaIntegerDivision(KernelRegistry& registry, const CudaDevicePtr& device) {
  for (const char* op : {"Div", "Mod"}) {
    registry.Add({.op_type = op, .types = kIntegerTypes, .create = [device](KernelInfo& info) {
                    return CreateIntegerDivision(info, device);
                  }});
  }
}

}  // namespace caesura
