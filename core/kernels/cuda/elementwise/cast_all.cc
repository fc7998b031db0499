// SPDX-License-Identifier: Apache-2.0
// CastAll (ai.caesura): one launch for as many tensors as a table of arguments holds.
#include "core/kernels/cuda/elementwise/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/tensor_table.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/cast_all.h"

namespace caesura {
namespace {

constexpr char kCastAll[] = R"(
extern "C" __global__ void __launch_bounds__(THREADS) cast_all(
    const __grid_constant__ Table table) {
  constexpr int kPack = 16 / (sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));
  Chunk chunk = {};
  for (int number = blockIdx.x; number < table.chunks; number += gridDim.x) {
    MoveTo(table, number, chunk);
    const From* x = (const From*)table.at[0][chunk.tensor] + chunk.begin;
    To* y = (To*)table.at[1][chunk.tensor] + chunk.begin;
    const bool whole = chunk.count == CHUNK && OnWord(x) && OnWord(y);
    for (int i = threadIdx.x * kPack; i < chunk.count; i += THREADS * kPack) {
      Pack<From, kPack> from;
      Pack<To, kPack> to;
      if (whole) from.LoadWords(x + i);
      else from.LoadSome(x + i, chunk.count - i);
#pragma unroll
      for (int k = 0; k < kPack; ++k) Store(to.v + k, (As)Load(from.v + k));
      if (whole) to.StoreWords(y + i);
      else to.StoreSome(y + i, chunk.count - i);
    }
  }
}
)";

Status CreateCastAll(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const CastAllSpec spec, CastAllSpec::Make(info));
  const std::string source = CudaTensorTable::Source(2) + "typedef " + CudaStorageType(spec.from) +
                             " From;\ntypedef " + CudaStorageType(spec.to) + " To;\ntypedef " +
                             CudaComputeType(spec.to) + " As;\n" + kCastAll;
  struct Part {
    CudaTensorTable table;
    CudaKernel kernel;
  };
  std::vector<Part> parts;
  for (CudaTensorTable& table : CudaTensorTable::Make(spec.elements, 2)) {
    ASSIGN_OR_RETURN(CudaKernel kernel,
                     CudaKernel::Make(device, source, "cast_all", table.Grid(*device)));
    parts.push_back({std::move(table), std::move(kernel)});
  }
  info.SetCompute([parts = std::move(parts)](KernelContext& context) -> Status {
    for (const Part& part : parts) {
      CudaTensorTable::Words table = part.table.Argument([&](int i, int k) -> const void* {
        return k == 0 ? context.Input<void>(i) : context.Output<void>(i);
      });
      void* arguments[] = {table.data()};
      RETURN_IF_ERROR(part.kernel.LaunchWith(arguments));
    }
    return {};
  });
  return {};
}

}  // namespace

void RegisterCudaCastAll(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "CastAll",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .create = [device](KernelInfo& info) { return CreateCastAll(info, device); }});
}

}  // namespace caesura
