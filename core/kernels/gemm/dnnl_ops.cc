// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gemm/dnnl_ops.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/gemm/dnnl_handles.h"
#include "core/kernels/capped_product.h"

namespace caesura {
namespace {

bool Present(const DnnlTensor& tensor) { return tensor.dtype != DType::kUndefined; }

// Puts `status` and the made descriptor into one value.
Result<DnnlPrimitiveDesc> Take(dnnl_status_t status, dnnl_primitive_desc_t desc, const char* what) {
  if (status != dnnl_success) return DnnlStatus(status, what);
  return DnnlPrimitiveDesc(desc);
}

// The memory descriptors and geometry of a convolution. oneDNN chooses the layouts of all but the
// bias; `plain` keeps ours, which wins where a side has few channels: blocked layouts pad them
// to 16.
struct ConvDescs {
  DnnlMemoryDesc src, weights, bias, dst;
  dnnl_dims_t strides, dilations, pads_begin, pads_end;
  bool fit = true;  // all numbers, and the elements of an image

  ConvDescs(const DnnlConvSpec& spec, bool plain) {
    auto make = [&](const DnnlTensor& t) {
      return plain ? MakeDnnlMemoryDesc(t) : MakeDnnlAnyDesc(t);
    };
    src = make(spec.src);
    weights = make(spec.weights);
    dst = make(spec.dst);
    if (Present(spec.bias)) bias = MakeDnnlMemoryDesc(spec.bias);
    for (const auto* numbers : {&spec.strides, &spec.dilations, &spec.pads_begin, &spec.pads_end})
      fit &= FitDnnl(*numbers);
    for (const DnnlTensor* tensor : {&spec.src, &spec.weights, &spec.dst}) {
      fit &= FitDnnl({CappedProduct({tensor->dims.begin() + 1, tensor->dims.end()})});
    }
    const int64_t* kernel =
        spec.weights.dims.data() + spec.weights.dims.size() - spec.strides.size();
    for (size_t i = 0; i < spec.strides.size(); ++i)
      fit &= FitDnnl({CappedProduct({kernel[i], spec.dilations[i]})});
    for (size_t i = 0; fit && i < spec.strides.size(); ++i) {
      strides[i] = spec.strides[i];
      dilations[i] = spec.dilations[i] - 1;
      pads_begin[i] = spec.pads_begin[i];
      pads_end[i] = spec.pads_end[i];
    }
  }
};

bool FewChannels(const DnnlConvSpec& spec) {
  const bool grouped = spec.weights.dims.size() > spec.src.dims.size();
  const int64_t groups = grouped ? spec.weights.dims[0] : 1;
  return groups == 1 && spec.src.dims[1] < 8;
}

Result<DnnlPrimitiveDesc> ConvForward(const ConvDescs& descs, dnnl_primitive_attr_t attributes) {
  if (!descs.fit || !descs.src || !descs.weights || !descs.dst) {
    return Declined("oneDNN does not take a convolution of such sizes");
  }
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_convolution_forward_primitive_desc_create(
      &desc, DnnlCpuEngine(), dnnl_forward_training, dnnl_convolution_direct, descs.src.get(),
      descs.weights.get(), descs.bias.get(), descs.dst.get(), descs.strides, descs.dilations,
      descs.pads_begin, descs.pads_end, attributes);
  return Take(status, desc, "convolution");
}

}  // namespace

DnnlMemoryDesc MakePackedDesc(const DnnlTensor& weights) {
  // One order for all products: asked for with so many rows, on one thread, without batches.
  constexpr int64_t kRows = 64;
  DnnlTeam team(1);
  const size_t rank = weights.dims.size();
  const int64_t k = weights.dims[rank - 2], n = weights.dims[rank - 1];
  const DnnlMemoryDesc src = MakeDnnlMemoryDesc({weights.dtype, {kRows, k}, {}}),
                       any = MakeDnnlAnyDesc({weights.dtype, {k, n}, {}}),
                       dst = MakeDnnlMemoryDesc({weights.dtype, {kRows, n}, {}});
  if (!src || !any || !dst || rank > DNNL_MAX_NDIMS) return nullptr;
  dnnl_primitive_desc_t made = nullptr;
  if (dnnl_matmul_primitive_desc_create(&made, DnnlCpuEngine(), src.get(), any.get(), nullptr,
                                        dst.get(), nullptr) != dnnl_success) {
    return nullptr;
  }
  const DnnlPrimitiveDesc desc(made);
  const_dnnl_memory_desc_t own =
      dnnl_primitive_desc_query_md(made, dnnl_query_exec_arg_md, DNNL_ARG_WEIGHTS);
  dnnl_dims_t dims;
  std::copy(weights.dims.begin(), weights.dims.end(), dims);
  dnnl_memory_desc_t out = nullptr;
  if (own == nullptr ||
      dnnl_memory_desc_reshape(&out, own, static_cast<int>(rank), dims) != dnnl_success)
    return nullptr;
  return DnnlMemoryDesc(out);
}

Result<Tensor> PackDnnlWeights(const Tensor& weights, int64_t k, int64_t n,
                               std::vector<int64_t> strides) {
  const DnnlTensor from{weights.dtype(), {k, n}, std::move(strides)};
  const DnnlMemoryDesc ours = MakeDnnlMemoryDesc(from),
                       plain = MakeDnnlMemoryDesc({weights.dtype(), {k, n}, {}}),
                       packed = MakePackedDesc(from);
  const bool wanted = ours && packed && !dnnl_memory_desc_equal(plain.get(), packed.get()) &&
                      dnnl_memory_desc_get_size(packed.get()) == weights.bytes();
  if (!wanted) return Tensor();
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(weights.dtype(), Shape{k, n}));
  dnnl_primitive_desc_t made = nullptr;
  RETURN_IF_ERROR(
      DnnlStatus(dnnl_reorder_primitive_desc_create(&made, ours.get(), DnnlCpuEngine(),
                                                    packed.get(), DnnlCpuEngine(), nullptr),
                 "packing weights"));
  const DnnlPrimitiveDesc desc(made);
  dnnl_primitive_t primitive = nullptr;
  dnnl_stream_t stream = nullptr;
  dnnl_memory_t src = nullptr, dst = nullptr;
  RETURN_IF_ERROR(DnnlStatus(dnnl_primitive_create(&primitive, made), "packing weights"));
  const DnnlPrimitiveHandle primitive_owner(primitive);
  RETURN_IF_ERROR(DnnlStatus(
      dnnl_stream_create(&stream, DnnlCpuEngine(), dnnl_stream_default_flags), "packing weights"));
  const DnnlStream stream_owner(stream);
  RETURN_IF_ERROR(DnnlStatus(dnnl_memory_create(&src, ours.get(), DnnlCpuEngine(), weights.raw()),
                             "packing weights"));
  const DnnlMemory src_owner(src);
  RETURN_IF_ERROR(DnnlStatus(dnnl_memory_create(&dst, packed.get(), DnnlCpuEngine(), out.raw()),
                             "packing weights"));
  const DnnlMemory dst_owner(dst);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, src}, {DNNL_ARG_TO, dst}};
  RETURN_IF_ERROR(
      DnnlStatus(dnnl_primitive_execute(primitive, stream, 2, arguments), "packing weights"));
  RETURN_IF_ERROR(DnnlStatus(dnnl_stream_wait(stream), "packing weights"));
  return out;
}

Result<DnnlCall> MakeDnnlMatMul(KernelInfo& info, int threads, const DnnlMatMulSpec& spec) {
  DnnlTeam team(threads);
  const DnnlMemoryDesc src = MakeDnnlMemoryDesc(spec.src),
                       weights = MakeDnnlMemoryDesc(spec.weights),
                       dst = MakeDnnlMemoryDesc(spec.dst);
  const DnnlMemoryDesc bias = Present(spec.bias) ? MakeDnnlMemoryDesc(spec.bias) : nullptr;
  if (!src || !weights || !dst || (Present(spec.bias) && !bias))
    return info.Refuse("oneDNN does not take one of the tensors");
  DnnlAttributes attributes = MakeDnnlAttributes();
  dnnl_post_ops_t ops = nullptr;
  RETURN_IF_ERROR(DnnlStatus(dnnl_post_ops_create(&ops), "post-ops"));
  DnnlPostOps owner(ops);
  if (spec.alpha != 1.0f) dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, spec.alpha, 0.0f);
  if (spec.accumulate) dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
  if (spec.addend) dnnl_post_ops_append_binary(ops, dnnl_binary_add, dst.get());
  dnnl_primitive_attr_set_post_ops(attributes.get(), ops);
  dnnl_primitive_desc_t desc = nullptr;
  auto create = [&](const DnnlMemoryDesc& order) {
    return dnnl_matmul_primitive_desc_create(&desc, DnnlCpuEngine(), src.get(), order.get(),
                                             bias.get(), dst.get(), attributes.get());
  };
  dnnl_status_t status = create(weights);
  // Packed weights that this product does not take as they are come by a copy in each run.
  if (status == dnnl_unimplemented && spec.weights.packed)
    status = create(MakeDnnlAnyDesc(spec.weights));
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "matmul"));
  std::vector<DnnlArgument> arguments = {
      {DNNL_ARG_SRC, spec.src}, {DNNL_ARG_WEIGHTS, spec.weights}, {DNNL_ARG_DST, spec.dst, true}};
  if (Present(spec.bias)) arguments.push_back({DNNL_ARG_BIAS, spec.bias});
  if (spec.addend) {
    const int op = (spec.alpha != 1.0f ? 1 : 0) + (spec.accumulate ? 1 : 0);
    arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(op) | DNNL_ARG_SRC_1, spec.dst});
  }
  return MakeDnnlCall(info, threads, std::move(made), arguments);
}

Result<DnnlCall> MakeDnnlConv(KernelInfo& info, int threads, const DnnlConvSpec& spec) {
  DnnlTeam team(threads);
  const ConvDescs descs(spec, false);
  DnnlAttributes attributes = MakeDnnlAttributes();
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc desc, ConvForward(descs, attributes.get()));
  std::vector<DnnlArgument> arguments = {
      {DNNL_ARG_SRC, spec.src}, {DNNL_ARG_WEIGHTS, spec.weights}, {DNNL_ARG_DST, spec.dst, true}};
  if (Present(spec.bias)) arguments.push_back({DNNL_ARG_BIAS, spec.bias});
  return MakeDnnlCall(info, threads, std::move(desc), arguments);
}

Result<DnnlCall> MakeDnnlConvBackwardData(KernelInfo& info, int threads, const DnnlConvSpec& spec) {
  DnnlTeam team(threads);
  const ConvDescs descs(spec, FewChannels(spec));
  DnnlAttributes attributes = MakeDnnlAttributes();
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc forward, ConvForward(descs, attributes.get()));
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_convolution_backward_data_primitive_desc_create(
      &desc, DnnlCpuEngine(), dnnl_convolution_direct, descs.src.get(), descs.weights.get(),
      descs.dst.get(), descs.strides, descs.dilations, descs.pads_begin, descs.pads_end,
      forward.get(), attributes.get());
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "convolution gradient by data"));
  return MakeDnnlCall(info, threads, std::move(made),
                      {{DNNL_ARG_DIFF_DST, spec.dst},
                       {DNNL_ARG_WEIGHTS, spec.weights},
                       {DNNL_ARG_DIFF_SRC, spec.src, true}});
}

Result<DnnlCall> MakeDnnlConvBackwardWeights(KernelInfo& info, int threads,
                                             const DnnlConvSpec& spec) {
  DnnlTeam team(threads);
  const ConvDescs descs(spec, false);
  DnnlAttributes attributes = MakeDnnlAttributes();
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc forward, ConvForward(descs, attributes.get()));
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_convolution_backward_weights_primitive_desc_create(
      &desc, DnnlCpuEngine(), dnnl_convolution_direct, descs.src.get(), descs.weights.get(),
      descs.bias.get(), descs.dst.get(), descs.strides, descs.dilations, descs.pads_begin,
      descs.pads_end, forward.get(), attributes.get());
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "convolution gradient by weights"));
  std::vector<DnnlArgument> arguments = {{DNNL_ARG_SRC, spec.src},
                                         {DNNL_ARG_DIFF_DST, spec.dst},
                                         {DNNL_ARG_DIFF_WEIGHTS, spec.weights, true}};
  if (Present(spec.bias)) arguments.push_back({DNNL_ARG_DIFF_BIAS, spec.bias, true});
  return MakeDnnlCall(info, threads, std::move(made), arguments);
}

Result<DnnlCall> MakeDnnlSoftmax(KernelInfo& info, int threads, const DnnlTensor& tensor, int axis,
                                 bool log) {
  DnnlTeam team(threads);
  const DnnlMemoryDesc layout = MakeDnnlMemoryDesc(tensor);
  if (!layout) return info.Refuse("oneDNN does not take the tensor");
  DnnlAttributes attributes = MakeDnnlAttributes();
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_softmax_forward_primitive_desc_create(
      &desc, DnnlCpuEngine(), dnnl_forward_inference,
      log ? dnnl_softmax_log : dnnl_softmax_accurate, layout.get(), layout.get(), axis,
      attributes.get());
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "softmax"));
  return MakeDnnlCall(info, threads, std::move(made),
                      {{DNNL_ARG_SRC, tensor}, {DNNL_ARG_DST, tensor, true}});
}

}  // namespace caesura
