// SPDX-License-Identifier: Apache-2.0
// The operators of a stand-in device for PyTorch: they copy to the host and run there.
//
// A file that includes this defines STANDIN_KEY, the dispatch key of its device, and before it, in
// an anonymous namespace: kType, its device type; `allocator`; and CopyFrom(from, to,
// non_blocking).
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace {

const at::Tensor& Resize(const at::Tensor& tensor, c10::IntArrayRef sizes,
                         std::optional<c10::MemoryFormat>) {
  const size_t bytes = tensor.storage_offset() * tensor.itemsize() +
                       c10::multiply_integers(sizes) * tensor.itemsize();
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    at::Tensor larger = at::empty({static_cast<int64_t>(bytes)}, tensor.options().dtype(at::kByte));
    if (tensor.numel() > 0) {
      at::Tensor old = at::empty({0}, tensor.options().dtype(at::kByte));
      old.unsafeGetTensorImpl()->set_storage_keep_dtype(tensor.storage());
      old.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage->nbytes())});
      CopyFrom(old, larger.slice(0, 0, old.numel()), false);
    }
    storage->set_data_ptr(std::move(larger.storage().unsafeGetStorageImpl()->mutable_data_ptr()));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) Resize(to, from.sizes(), std::nullopt);
  return CopyFrom(from, to, false);
}

at::Tensor Empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::STANDIN_KEY),
                                   c10::dtype_or_default(type), format);
}

at::Tensor EmptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                        std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                        std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::STANDIN_KEY),
                                           c10::dtype_or_default(type));
}

at::Tensor& SetStorage(at::Tensor& tensor, at::Storage storage, int64_t offset,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  if (strides.empty()) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  else tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  return tensor;
}

at::Tensor View(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  return at::native::view(tensor, sizes);
}

at::Scalar LocalScalar(const at::Tensor& tensor) { return tensor.cpu().item(); }

at::Tensor HostOrNone(const std::optional<at::Tensor>& t) {
  return t && t->defined() ? t->cpu() : at::Tensor();
}

// Writes to the running statistics, which its schema does not say.
std::tuple<at::Tensor, at::Tensor, at::Tensor> BatchNorm(
    const at::Tensor& x, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mean,
    const std::optional<at::Tensor>& variance, bool training, double momentum, double eps) {
  const at::Tensor host_mean = HostOrNone(mean), host_variance = HostOrNone(variance);
  auto [y, batch_mean, inverse] =
      at::native_batch_norm(x.cpu(), HostOrNone(weight), HostOrNone(bias), host_mean, host_variance,
                            training, momentum, eps);
  if (training && host_mean.defined()) mean->copy_(host_mean), variance->copy_(host_variance);
  return {y.to(x.device()), batch_mean.to(x.device()), inverse.to(x.device())};
}

// Refuses tensors of the host beside the device's, but for scalars and indices, and operators that
// are the CPU's only, as PyTorch's own devices do.
void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = op.schema().name();
  TORCH_CHECK(name.find("_for_cpu") == std::string::npos, name, " has no kernel on this device");
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    const bool of_host =
        argument.isTensor() && argument.toTensor().defined() && argument.toTensor().is_cpu();
    TORCH_CHECK(
        !of_host || argument.toTensor().dim() == 0 || name.find("index") != std::string::npos, name,
        ": a tensor of the host beside the device's");
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, STANDIN_KEY, library) {
  library.impl("empty.memory_format", Empty);
  library.impl("empty_strided", EmptyStrided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", View);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("set_.source_Storage_storage_offset", SetStorage);
  library.impl("resize_", Resize);
  library.impl("_copy_from", CopyFrom);
  library.impl("_copy_from_and_resize", CopyFromAndResize);
  library.impl("_local_scalar_dense", LocalScalar);
  library.impl("native_batch_norm", BatchNorm);
}
TORCH_LIBRARY_IMPL(_, STANDIN_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>());
}

}  // namespace
