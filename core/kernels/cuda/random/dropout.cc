// SPDX-License-Identifier: Apache-2.0
// Dropout; its gradient is elementwise (element_source.h). The random words are those of the CPU's
// kernel (Philox, core/kernels/cpu/random/philox.h), so that both drop the same elements. Seed and
// step are read on the device, where a run puts them.
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/elementwise/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/random_seed.h"

namespace caesura {
namespace {

constexpr char kDropout[] = R"(
__device__ inline void PhiloxBlock(u64 index, unsigned step, unsigned stream, unsigned key0,
                                   unsigned key1, unsigned* c) {
  c[0] = (unsigned)index; c[1] = (unsigned)(index >> 32); c[2] = step; c[3] = stream;
  for (int round = 0; round < 10; ++round) {
    const u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];
    const unsigned c1 = c[1], c3 = c[3];
    c[0] = (unsigned)(b >> 32) ^ c1 ^ key0;
    c[1] = (unsigned)b;
    c[2] = (unsigned)(a >> 32) ^ c3 ^ key1;
    c[3] = (unsigned)a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

extern "C" __global__ void dropout(const S* x, const R* ratio_at, const bool* mode, S* y, bool* mask,
    i64 n, const u64* key, bool has_seed, u64 seed, u64 stream, unsigned* error, unsigned number) {
  const u64 step = key[1];
  if (!has_seed) seed = key[0];
  const unsigned key0 = (unsigned)seed ^ (unsigned)(step >> 32);
  const unsigned key1 = (unsigned)(seed >> 32) ^ (unsigned)(stream >> 32);
  const bool training = mode && Load(mode);
  double ratio = training ? (ratio_at ? (double)Load(ratio_at) : 0.5) : 0.0;
  if (!(ratio >= 0 && ratio <= 1)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicCAS(error, 0u, number);
    ratio = 0;
  }
  double edge = rint(ratio * 4294967296.0);
  const unsigned threshold = edge > 4294967295.0 ? 4294967295u : (unsigned)edge;
  const C scale = ratio < 1 ? (C)(1 / (1 - ratio)) : (C)0;
  const i64 blocks = (n + 3) / 4;
  for (i64 b = blockIdx.x * (i64)blockDim.x + threadIdx.x; b < blocks;
       b += (i64)gridDim.x * blockDim.x) {
    unsigned words[4];
    if (ratio > 0) PhiloxBlock(b, (unsigned)step, (unsigned)stream, key0, key1, words);
    for (int k = 0; k < 4; ++k) {
      const i64 i = b * 4 + k;
      if (i >= n) break;
      const bool keeps = ratio == 0 || words[k] >= threshold;
      const C v = Load(x + i);
      Store(y + i, ratio == 0 ? v : keeps ? v * scale : (C)0);
      if (mask) mask[i] = ratio == 0 || (ratio < 1 && keeps);
    }
  }
}
)";

Status CreateDropout(KernelInfo& info, const CudaDevicePtr& device) {
  const DType dtype = info.InputDType(0);
  DType ratio = DType::kFloat32;
  if (info.HasInput(1)) {
    if (info.InputShape(1).elements() != 1) return info.Invalid("ratio: expected a scalar");
    ratio = info.InputDType(1);
    if (!kFloatTypes.Contains(ratio)) return info.Refuse("has a ratio of an unexpected type");
  }
  if (info.HasInput(2) &&
      (info.InputDType(2) != DType::kBool || info.InputShape(2).elements() != 1))
    return info.Invalid("training_mode: expected a bool");
  const int64_t n = info.InputShape(0).elements();
  const bool has_ratio = info.HasInput(1), has_mode = info.HasInput(2),
             has_mask = info.HasOutput(1);
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetOutput(1, DType::kBool, info.InputShape(0));
  const std::string source = std::string("typedef ") + CudaStorageType(dtype) + " S;\ntypedef " +
                             CudaComputeType(dtype) + " C;\ntypedef " + CudaStorageType(ratio) +
                             " R;\n" + kDropout;
  ASSIGN_OR_RETURN(const CudaKernel kernel,
                   CudaKernel::Make(device, source, "dropout", GridOver(*device, (n + 3) / 4)));
  const unsigned number =
      device->AddError(info.node().Label() + " ratio: expected a value in [0, 1]");
  info.SetCompute(
      [=, seed = SeedOverride(info), error = device->error_cell()](KernelContext& context) {
        return kernel.Launch(context.Input<void>(0), has_ratio ? context.Input<void>(1) : nullptr,
                             has_mode ? context.Input<void>(2) : nullptr, context.Output<void>(0),
                             has_mask ? context.Output<void>(1) : nullptr, n,
                             context.device_random_key(), seed.given, seed.seed,
                             context.random_key().stream, error, number);
      });
  return {};
}

}  // namespace

void RegisterCudaDropout(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "Dropout",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .deterministic = false,
                .create = [device](KernelInfo& info) { return CreateDropout(info, device); }});
}

}  // namespace caesura
