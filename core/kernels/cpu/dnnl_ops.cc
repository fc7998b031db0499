// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cpu/dnnl_ops.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/dnnl_handles.h"

namespace caesura {
namespace {

bool Present(const DnnlTensor& tensor) { return tensor.dtype != DType::kUndefined; }

// Puts `status` and the made descriptor into one value.
Result<DnnlPrimitiveDesc> Take(dnnl_status_t status, dnnl_primitive_desc_t desc, const char* what) {
  if (status != dnnl_success) return DnnlStatus(status, what);
  return DnnlPrimitiveDesc(desc);
}

// The memory descriptors and geometry of a convolution. oneDNN chooses the layouts of all but the bias; `plain`
// keeps ours, which wins where a side has few channels: blocked layouts pad them to 16.
struct ConvDescs {
  DnnlMemoryDesc src, weights, bias, dst;
  dnnl_dims_t strides, dilations, pads_begin, pads_end;

  ConvDescs(const DnnlConvSpec& spec, bool plain) {
    auto make = [&](const DnnlTensor& t) { return plain ? MakeDnnlMemoryDesc(t) : MakeDnnlAnyDesc(t); };
    src = make(spec.src);
    weights = make(spec.weights);
    dst = make(spec.dst);
    if (Present(spec.bias)) bias = MakeDnnlMemoryDesc(spec.bias);
    for (size_t i = 0; i < spec.strides.size(); ++i) {
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
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_convolution_forward_primitive_desc_create(
      &desc, DnnlCpuEngine(), dnnl_forward_training, dnnl_convolution_direct, descs.src.get(), descs.weights.get(),
      descs.bias.get(), descs.dst.get(), descs.strides, descs.dilations, descs.pads_begin, descs.pads_end, attributes);
  return Take(status, desc, "convolution");
}

}  // namespace

Result<DnnlCall> MakeDnnlMatMul(KernelInfo& info, int threads, const DnnlMatMulSpec& spec) {
  DnnlTeam team(threads);
  const DnnlMemoryDesc src = MakeDnnlMemoryDesc(spec.src), weights = MakeDnnlMemoryDesc(spec.weights),
                       dst = MakeDnnlMemoryDesc(spec.dst);
  const DnnlMemoryDesc bias = Present(spec.bias) ? MakeDnnlMemoryDesc(spec.bias) : nullptr;
  if (!src || !weights || !dst) return info.Refuse("oneDNN does not take one of the tensors");
  DnnlAttributes attributes = MakeDnnlAttributes();
  dnnl_post_ops_t ops = nullptr;
  RETURN_IF_ERROR(DnnlStatus(dnnl_post_ops_create(&ops), "post-ops"));
  DnnlPostOps owner(ops);
  if (spec.alpha != 1.0f) dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, spec.alpha, 0.0f);
  if (spec.accumulate) dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
  if (spec.addend) dnnl_post_ops_append_binary(ops, dnnl_binary_add, dst.get());
  dnnl_primitive_attr_set_post_ops(attributes.get(), ops);
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_matmul_primitive_desc_create(&desc, DnnlCpuEngine(), src.get(), weights.get(),
                                                                 bias.get(), dst.get(), attributes.get());
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
      &desc, DnnlCpuEngine(), dnnl_convolution_direct, descs.src.get(), descs.weights.get(), descs.dst.get(),
      descs.strides, descs.dilations, descs.pads_begin, descs.pads_end, forward.get(), attributes.get());
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "convolution gradient by data"));
  return MakeDnnlCall(
      info, threads, std::move(made),
      {{DNNL_ARG_DIFF_DST, spec.dst}, {DNNL_ARG_WEIGHTS, spec.weights}, {DNNL_ARG_DIFF_SRC, spec.src, true}});
}

Result<DnnlCall> MakeDnnlConvBackwardWeights(KernelInfo& info, int threads, const DnnlConvSpec& spec) {
  DnnlTeam team(threads);
  const ConvDescs descs(spec, false);
  DnnlAttributes attributes = MakeDnnlAttributes();
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc forward, ConvForward(descs, attributes.get()));
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_convolution_backward_weights_primitive_desc_create(
      &desc, DnnlCpuEngine(), dnnl_convolution_direct, descs.src.get(), descs.weights.get(), descs.bias.get(),
      descs.dst.get(), descs.strides, descs.dilations, descs.pads_begin, descs.pads_end, forward.get(),
      attributes.get());
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "convolution gradient by weights"));
  std::vector<DnnlArgument> arguments = {
      {DNNL_ARG_SRC, spec.src}, {DNNL_ARG_DIFF_DST, spec.dst}, {DNNL_ARG_DIFF_WEIGHTS, spec.weights, true}};
  if (Present(spec.bias)) arguments.push_back({DNNL_ARG_DIFF_BIAS, spec.bias, true});
  return MakeDnnlCall(info, threads, std::move(made), arguments);
}

Result<DnnlCall> MakeDnnlSoftmax(KernelInfo& info, int threads, const DnnlTensor& tensor, int axis, bool log) {
  DnnlTeam team(threads);
  const DnnlMemoryDesc layout = MakeDnnlMemoryDesc(tensor);
  if (!layout) return info.Refuse("oneDNN does not take the tensor");
  DnnlAttributes attributes = MakeDnnlAttributes();
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status = dnnl_softmax_forward_primitive_desc_create(
      &desc, DnnlCpuEngine(), dnnl_forward_inference, log ? dnnl_softmax_log : dnnl_softmax_accurate, layout.get(),
      layout.get(), axis, attributes.get());
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "softmax"));
  return MakeDnnlCall(info, threads, std::move(made), {{DNNL_ARG_SRC, tensor}, {DNNL_ARG_DST, tensor, true}});
}

Result<DnnlCall> MakeDnnlExp(KernelInfo& info, int threads, const DnnlTensor& tensor) {
  DnnlTeam team(threads);
  const DnnlMemoryDesc layout = MakeDnnlMemoryDesc(tensor);
  if (!layout) return info.Refuse("oneDNN does not take the tensor");
  DnnlAttributes attributes = MakeDnnlAttributes();
  dnnl_primitive_desc_t desc = nullptr;
  const dnnl_status_t status =
      dnnl_eltwise_forward_primitive_desc_create(&desc, DnnlCpuEngine(), dnnl_forward_inference, dnnl_eltwise_exp,
                                                 layout.get(), layout.get(), 0.0f, 0.0f, attributes.get());
  ASSIGN_OR_RETURN(DnnlPrimitiveDesc made, Take(status, desc, "exp"));
  return MakeDnnlCall(info, threads, std::move(made), {{DNNL_ARG_SRC, tensor}, {DNNL_ARG_DST, tensor, true}});
}

}  // namespace caesura
