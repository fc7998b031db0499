// SPDX-License-Identifier: Apache-2.0
// DLPack 1.x, both ways: tensors of other libraries (PyTorch, NumPy, JAX, ...) without a copy, and
// ours for them.
//
//   Result<Tensor> x = ImportDlpack(managed);                     // owns `managed` from here on
//   Result<DLManagedTensorVersioned*> y = ExportDlpack(*x);       // whose deleter the caller calls
//
// Thread safety: any thread; deleters run on the thread that lets the last reference go.
#ifndef CAESURA_CORE_TENSOR_DLPACK_H_
#define CAESURA_CORE_TENSOR_DLPACK_H_

#include <cstdint>

#include "core/tensor/tensor.h"

// As in dlpack/dlpack.h, which this header does not need.
extern "C" {
struct DLManagedTensor;
struct DLManagedTensorVersioned;
}

namespace caesura {

// The facts that an import finds beside the tensor.
struct DlpackImport {
  bool read_only = false;  // the producer's bytes, which nobody may write to
  bool copied =
      false;  // the bytes are a copy: strides or addresses were not those of a dense tensor
};

// A tensor that shares the producer's bytes and calls its deleter once, when the last tensor that
// shares them goes; without a deleter the bytes are borrowed, for as long as the caller sees to it,
// and `managed` itself for the call alone. Host tensors that are not dense, or not aligned to their
// elements, are copied; others of that kind are refused.
//
// `managed` is consumed in any case: on failure its deleter has been called. Fails with
// kUnsupported for another major version, dtypes without a DType, packed elements of less than a
// byte, vector types and unknown devices; with kInvalidArgument where rank, dims, strides, offset
// or pointer cannot be those of a tensor. A tensor of no elements may come without a pointer, and
// has one here.
Result<Tensor> ImportDlpack(DLManagedTensorVersioned* managed, DlpackImport* facts = nullptr);
// Imports a tensor of DLPack before 1.0, which tells of no read-only tensors.
Result<Tensor> ImportDlpack(DLManagedTensor* managed, DlpackImport* facts = nullptr);

// A view that keeps the tensor's buffer alive (where the buffer owns its memory) until its deleter
// is called. `flags` are DLPack's: a tensor may be handed out read-only, or as a copy that nobody
// else holds. Elements of less than a byte go out padded. Fails with kUnsupported for strings and
// undefined tensors, and for devices that DLPack has no code for.
Result<DLManagedTensorVersioned*> ExportDlpack(const Tensor& tensor, uint64_t flags = 0);
// Exports for consumers before DLPack 1.0; fails with kUnsupported also for elements of less than a
// byte.
Result<DLManagedTensor*> ExportLegacyDlpack(const Tensor& tensor);

// DLPack's device type and index, as __dlpack_device__ answers.
struct DlpackDevice {
  int32_t type;
  int32_t index;
};
// Fails with kUnsupported for a device that DLPack has no number for.
Result<DlpackDevice> DlpackDeviceOf(Device device);

}  // namespace caesura

#endif  // CAESURA_CORE_TENSOR_DLPACK_H_
