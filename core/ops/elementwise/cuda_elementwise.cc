// SPDX-License-Identifier: Apache-2.0
// Every op of CudaElementOps as a kernel of its own: one element after the other, with
// broadcasting.
#include <algorithm>

#include "core/graph/op_def.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/broadcast_strides.h"

namespace caesura {
namespace {

constexpr size_t kMaxParameterBytes = 3072;  // of 4096; the rest is for pointers

DType ResultType(const KernelInfo& info) {
  if (info.node().Is("Cast")) return info.GraphOutputDType(0);
  if (info.node().Is("Where")) return info.InputDType(1);
  const DType fixed = OpDefOf(info.node()).result;
  return fixed == DType::kUndefined ? info.InputDType(0) : fixed;
}

// Vectors of `vector` elements where the kernel's argument `vectors` counts some, and the elements
// that are left.
std::string Source(const StridedWalk& walk, const std::vector<DType>& dtypes, DType output,
                   const std::string& expression, int64_t vector) {
  const std::string width = std::to_string(vector);
  std::string parameters, loads, vector_loads, parts;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i] == DType::kUndefined) continue;
    const std::string number = std::to_string(i), name = "x" + number,
                      storage = CudaStorageType(dtypes[i]);
    parameters += "const " + storage + "* " + name + ", ";
    const std::string at = name + " + offset" + number;
    const std::string value = std::string("const ") + CudaComputeType(dtypes[i]) + " v" + number;
    const std::string load = value + " = Load(" + at + ");\n";
    loads += load;
    if (walk.Repeats(i)) {
      vector_loads += load;
    } else {
      vector_loads +=
          "const auto at" + number + " = LoadVector<" + width + ", true>(" + at + ");\n";
      parts += value + " = Load(at" + number + ".at + j);\n";
    }
  }
  const std::string thread = "blockIdx.x * (i64)blockDim.x + threadIdx.x";
  const std::string step = "i += (i64)gridDim.x * blockDim.x) {\n";
  std::string out = walk.Struct() + "extern \"C\" __global__ void elementwise(" + parameters +
                    CudaStorageType(output) + "* y, i64 n, i64 vectors, Walk walk) {\n";
  if (vector > 1) {
    out += "for (i64 i = " + thread + "; i < vectors; " + step + walk.Offsets("i * " + width) +
           vector_loads + "Vector<" + CudaStorageType(output) + ", " + width +
           "> out;\n#pragma unroll\nfor (int j = 0; j < " + width + "; ++j) {\n" + parts +
           "Store(out.at + j, " + expression + ");\n}\nStoreVector<true>(y + i * " + width +
           ", out);\n}\n";
  }
  return out + "for (i64 i = vectors * " + width + " + " + thread + "; i < n; " + step +
         walk.Offsets() + loads + "Store(y + i, " + expression + ");\n}\n}\n";
}

// The inputs' dtypes (kUndefined: absent) and the shape that they broadcast to.
struct ElementOperands {
  Shape output;
  std::vector<DType> dtypes;
  std::vector<std::string> values;  // their names in the source
};

Result<ElementOperands> OperandsOf(KernelInfo& info) {
  ElementOperands out;
  bool first = true;
  for (int i = 0; i < info.input_count(); ++i) {
    const bool present = info.HasInput(i);
    if (present && !info.IsTensor(i)) return info.Refuse("takes tensors only");
    out.dtypes.push_back(present ? info.InputDType(i) : DType::kUndefined);
    out.values.push_back(present ? "v" + std::to_string(i) : "");
    if (!present) continue;
    Result<Shape> both =
        first ? info.InputShape(i) : BroadcastShape(out.output, info.InputShape(i));
    if (!both.ok()) return info.Invalid(both.status().message());
    out.output = *std::move(both);
    first = false;
  }
  const bool widens = out.output != info.InputShape(0);
  if (widens && (info.node().Is("Clip") || info.node().Is("PRelu")))
    return info.Refuse("does not broadcast its first input");
  return out;
}

StridedWalk WalkOf(const KernelInfo& info, const Shape& output) {
  std::vector<std::vector<int64_t>> strides;
  for (int i = 0; i < info.input_count(); ++i) {
    strides.emplace_back(output.rank(), 0);
    if (info.HasInput(i)) BroadcastStrides(info.InputShape(i), output, strides.back().data());
  }
  return StridedWalk::Make(output.dims(), strides);
}

// Elements to an access. Halves and bytes go by eight: an access is to move 16 bytes, or nearly so
// many.
int64_t VectorOf(const StridedWalk& walk, const std::vector<DType>& dtypes, DType output) {
  size_t bytes = DTypeSize(output);
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i] != DType::kUndefined && !walk.Repeats(i))
      bytes = std::max(bytes, DTypeSize(dtypes[i]));
  }
  int64_t vector = bytes <= 2 ? 8 : 4;
  while (vector > 1 && !walk.HasVectors(vector)) vector /= 2;
  return vector;
}

Status CreateElementwise(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const ElementOperands operands, OperandsOf(info));
  const std::vector<DType>& dtypes = operands.dtypes;
  const DType dtype = ResultType(info);
  const auto expression = CudaElementExpression(info.node(), dtypes, dtype, operands.values);
  if (!expression) return info.Refuse("has no CUDA source for these types");
  const StridedWalk walk = WalkOf(info, operands.output);
  std::vector<int64_t> numbers = walk.Numbers();
  if (numbers.size() * sizeof(int64_t) > kMaxParameterBytes)
    return info.Refuse("has more inputs than a kernel takes");
  info.SetOutput(0, dtype, operands.output);
  if (walk.elements == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  const int64_t vector = VectorOf(walk, dtypes, dtype);
  ASSIGN_OR_RETURN(
      const CudaKernel kernel,
      CudaKernel::Make(device, Source(walk, dtypes, dtype, *expression, vector), "elementwise",
                       GridOver(*device, (walk.elements + vector - 1) / vector)));
  std::vector<size_t> alignments;  // of the inputs; 0: there is none
  for (size_t i = 0; i < dtypes.size(); ++i) {
    alignments.push_back(dtypes[i] == DType::kUndefined ? 0
                         : walk.Repeats(i)              ? 1
                                                        : CudaVectorAlignment(dtypes[i], vector));
  }
  info.SetCompute(
      [=, n = walk.elements, to = CudaVectorAlignment(dtype, vector)](KernelContext& context) {
        CudaArguments arguments;
        int64_t vectors = vector > 1 ? n / vector : 0;
        const auto add = [&](const void* pointer, size_t alignment) {
          if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) vectors = 0;
          arguments.AddPointer(pointer);
        };
        for (size_t i = 0; i < alignments.size(); ++i) {
          if (alignments[i] != 0) add(context.Input<void>(static_cast<int>(i)), alignments[i]);
        }
        add(context.Output<void>(0), to);
        arguments.Add(&n);
        arguments.Add(&vectors);
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
