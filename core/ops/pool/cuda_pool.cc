// SPDX-License-Identifier: Apache-2.0
// MaxPool, AveragePool, and the gradients of these and of GlobalMaxPool (ai.caesura). A thread has
// elements of the result: an output walks its window, an element of dX the windows that hold it, in
// their order. Sums of halves are kept in float32 until they are whole.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/windows/pool_geometry.h"

namespace caesura {
namespace {

struct PoolSizes {
  int64_t input[3], output[3];
};

PoolSizes SizesOf(const Window3& w) {
  PoolSizes out;
  std::copy(w.input, w.input + 3, out.input);
  std::copy(w.output, w.output + 3, out.output);
  return out;
}

// "#define NAME0 value" and so on.
std::string ByAxis(const std::string& name, const int64_t* values) {
  std::string out;
  for (int a = 0; a < 3; ++a) {
    // Without brackets a negative value would make a decrement of a minus before it.
    out += "#define " + name + std::to_string(a) + " (" + std::to_string(values[a]) + ")\n";
  }
  return out;
}

std::string PoolTypes(DType dtype) {
  return CudaMacros({{"S_TYPE", CudaStorageType(dtype)}, {"C_TYPE", CudaComputeType(dtype)}});
}

std::string PoolMacros(DType dtype, const PoolGeometry& g) {
  const Window3 w(g.seen);
  // Positions of a window may lie beyond the input by as much as the padding.
  int64_t most = std::max<int64_t>(1, g.images) * std::max(w.InputCount(), w.OutputCount());
  for (int a = 0; a < 3; ++a) {
    const int64_t reach = w.kernel[a] * w.dilations[a] + w.output[a] * w.strides[a] + w.input[a];
    most = std::max(most, 2 * (reach + std::abs(w.pads[a])));
  }
  const Window3 all(g.window);
  for (int a = 0; a < 3; ++a)
    most = std::max(most, 2 * (all.kernel[a] * all.dilations[a] + all.pads[a]));
  return PoolTypes(dtype) + CudaMacros({{"INDEX_TYPE", most < int64_t{1} << 31 ? "int" : "i64"}}) +
         ByAxis("KERNEL", w.kernel) + ByAxis("STRIDE", w.strides) +
         ByAxis("DILATION", w.dilations) + ByAxis("PAD", w.pads);
}

Result<CudaKernel> MakePoolKernel(const CudaDevicePtr& device, const std::string& source,
                                  const char* name, int64_t n) {
  return CudaKernel::Make(device, source, name, GridOver(*device, n));
}

// --- MaxPool ---

std::string MaxPoolSource(const KernelInfo& info, DType dtype, const PoolGeometry& g) {
  const char* lowest = dtype == DType::kInt8 ? "-128" : dtype == DType::kUInt8 ? "0" : "-INFINITE";
  const bool column_major = info.Attr<int64_t>("storage_order", 0) != 0;
  return PoolMacros(dtype, g) +
         CudaMacros({{"LOWEST", std::string("(C)(") + lowest + ")"},
                     {"COLUMN_MAJOR", column_major ? "true" : "false"}}) +
         CudaInclude("core/ops/pool/max_pool.cuh");
}

Status CreateMaxPool(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakeMaxPoolGeometry(info));
  const int64_t n = g.output.elements();
  const std::string source = MaxPoolSource(info, info.InputDType(0), g);
  ASSIGN_OR_RETURN(const CudaKernel pool, MakePoolKernel(device, source, "max_pool", n));
  info.SetCompute([=, has_indices = info.HasOutput(1),
                   sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    return pool.Launch(context.Input<void>(0), context.Output<void>(0),
                       has_indices ? context.Output<void>(1) : nullptr, static_cast<void*>(nullptr),
                       n, sizes);
  });
  return {};
}

// The windows' maxima are looked for first; then each element adds what the windows have for it.
Status CreateMaxPoolGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGradGeometry(info));
  if (g.window.InputCount() > std::numeric_limits<int32_t>::max())
    return info.Refuse("an image beyond 2^31 elements");
  const int64_t outputs = g.output.elements(), n = info.InputShape(1).elements();
  const size_t scratch = info.BookScratch(static_cast<size_t>(outputs) * sizeof(int32_t));
  const std::string source = MaxPoolSource(info, info.InputDType(1), g);
  ASSIGN_OR_RETURN(const CudaKernel pool, MakePoolKernel(device, source, "max_pool", outputs));
  ASSIGN_OR_RETURN(const CudaKernel gradient,
                   MakePoolKernel(device, source, "max_pool_gradient", n));
  info.SetCompute([=, sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    void* const places = context.Scratch<void>(scratch);
    void* const none = nullptr;
    if (outputs > 0)
      RETURN_IF_ERROR(pool.Launch(context.Input<void>(1), none, none, places, outputs, sizes));
    return gradient.Launch(context.Input<void>(0), places, context.Output<void>(0), n, sizes);
  });
  return {};
}

// --- AveragePool ---

std::string AveragePoolSource(const KernelInfo& info, const PoolGeometry& g) {
  const bool include_pad = info.Attr<int64_t>("count_include_pad", 0) != 0;
  const Window3 window(g.window);
  int64_t end_pads[3] = {0, 0, 0};
  bool whole = true;
  for (int a = 0, from = 3 - g.window.rank(); a < g.window.rank(); ++a) {
    const int64_t begin = g.window.pads_begin[a], end = g.window.pads_end[a];
    const int64_t last = (g.window.output[a] - 1) * g.window.strides[a] + g.window.Extent(a);
    whole &= include_pad ? last <= begin + g.window.input[a] + end
                         : begin == 0 && last <= g.window.input[a];
    end_pads[from + a] = end;
  }
  return PoolMacros(info.InputDType(0), g) + ByAxis("WINDOW", window.kernel) +
         ByAxis("WINDOW_PAD", window.pads) + ByAxis("END_PAD", end_pads) +
         CudaMacros({{"INCLUDE_PAD", include_pad ? "true" : "false"},
                     {"ALL_WHOLE", whole ? "true" : "false"}}) +
         CudaInclude("core/ops/pool/average_pool.cuh");
}

Status CreateAveragePool(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGeometry(info, info.InputShape(0)));
  info.SetOutput(0, info.InputDType(0), g.output);
  const int64_t n = g.output.elements();
  ASSIGN_OR_RETURN(const CudaKernel pool,
                   MakePoolKernel(device, AveragePoolSource(info, g), "average_pool", n));
  info.SetCompute([=, sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    return pool.Launch(context.Input<void>(0), context.Output<void>(0), n, sizes);
  });
  return {};
}

Status CreateAveragePoolGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGradGeometry(info));
  const int64_t n = info.InputShape(1).elements();
  ASSIGN_OR_RETURN(const CudaKernel gradient,
                   MakePoolKernel(device, AveragePoolSource(info, g), "average_pool_gradient", n));
  info.SetCompute([=, sizes = SizesOf(Window3(g.seen))](KernelContext& context) -> Status {
    if (n == 0) return {};
    return gradient.Launch(context.Input<void>(0), context.Output<void>(0), n, sizes);
  });
  return {};
}

Status CreateGlobalMaxPoolGrad(KernelInfo& info, const CudaDevicePtr& device) {
  ASSIGN_OR_RETURN(const GlobalPoolShape shape, MakeGlobalPoolGradShape(info));
  unsigned threads = 32;
  while (threads < 256 && threads * int64_t{4} < shape.count) threads *= 2;
  const int64_t blocks =
      std::clamp<int64_t>(shape.images, 1, int64_t{32} * device->multiprocessors());
  const std::string source =
      PoolTypes(info.InputDType(1)) + CudaInclude("core/ops/pool/global_max_pool_gradient.cuh");
  ASSIGN_OR_RETURN(const CudaKernel gradient,
                   CudaKernel::Make(device, source, "global_max_pool_gradient",
                                    {static_cast<unsigned>(blocks), threads}));
  info.SetCompute([=](KernelContext& context) -> Status {
    if (shape.images * shape.count == 0) return {};
    return gradient.Launch(context.Input<void>(0), context.Input<void>(1), context.Output<void>(0),
                           shape.images, shape.count);
  });
  return {};
}

}  // namespace

void RegisterCudaPool(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, const char* domain, DTypeSet types, auto create,
                 KernelDef def = {}) {
    def.op_type = op;
    def.domain = domain;
    def.types = types;
    def.create = [=](KernelInfo& info) { return create(info, device); };
    registry.Add(std::move(def));
  };
  add("MaxPool", "", kFloatTypes | DTypeSet{DType::kInt8, DType::kUInt8}, CreateMaxPool);
  add("AveragePool", "", kFloatTypes, CreateAveragePool);
  add("MaxPoolGrad", kCaesuraDomain, kFloatTypes, CreateMaxPoolGrad);
  add("AveragePoolGrad", kCaesuraDomain, kFloatTypes, CreateAveragePoolGrad);
  add("GlobalMaxPoolGrad", kCaesuraDomain, kFloatTypes, CreateGlobalMaxPoolGrad,
      {.aliases = {MayReuse(1, 0)}});
}

}  // namespace caesura
