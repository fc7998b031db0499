// SPDX-License-Identifier: Apache-2.0
// Parts that the binding files share: the module's parts, and Status turned into exceptions (the
// only place that throws).
#ifndef CAESURA_TORCH_BRIDGE_PYTHON_BINDINGS_H_
#define CAESURA_TORCH_BRIDGE_PYTHON_BINDINGS_H_

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "core/base/status.h"
#include "core/cuda/cuda_options.h"
#include "core/distributed/communicator.h"
#include "core/graph/graph.h"
#include "core/plugin/plugin_provider.h"
#include "core/providers/counting_provider.h"
#include "core/providers/execution_provider.h"
#include "core/session/session.h"
#include "core/tensor/dlpack.h"
#include "core/tensor/tensor.h"

namespace caesura::python {

// Raises the Python exception of the status's code: ValueError for bad arguments and models,
// KeyError, MemoryError, OSError, NotImplementedError, otherwise RuntimeError. of_file: what was
// not found is a file, FileNotFoundError.
void Raise(const Status& status, bool of_file = false);

inline void Check(const Status& status, bool of_file = false) {
  if (!status.ok()) Raise(status, of_file);
}

template <typename T>
T Unwrap(Result<T> result, bool of_file = false) {
  if (!result.ok()) Raise(result.status(), of_file);
  return *std::move(result);
}

// Returns what `run` does. Other Python threads run meanwhile.
template <typename Run>
auto WithoutGil(const Run& run) {
  nanobind::gil_scoped_release release;
  return run();
}

// The CPU provider with training's kernels and those of the library that load_torch_library has
// opened.
std::shared_ptr<const ExecutionProvider> CpuProvider();
// "cpu": the above; "torch": PyTorch's operators before our own kernels, in memory of PyTorch's;
// "torch-only": without ours, and on `device` where one is named. Raises ValueError for other
// names, NotImplementedError where no library of PyTorch's was opened or it has no such device.
std::shared_ptr<const ExecutionProvider> NamedProvider(const std::string& name,
                                                       const std::string& device = "");

// Names and options in order of preference, as caesura.sessions.providers.native_providers gives
// them: "cpu", "torch", "torch-only" (device), "counting" (memory_bytes), or what ProviderByName
// takes.
using NamedProviders = std::vector<std::pair<std::string, ProviderOptions>>;
// The providers of these names, with training's kernels. Sets `counting` to the device of that
// name. From here on tensors of their devices go in and out of Python in the order of their streams
// (tensor_exchange.cc).
ProviderList ProvidersOf(const NamedProviders& named,
                         std::optional<CountingDevice>* counting = nullptr);
// The process group of PyTorch's that has this name. Raises NotImplementedError where
// libcaesura_torch was not loaded.
std::unique_ptr<Communicator> OpenCommunicator(const std::string& group_name);
// PyTorch's current stream of a device, and memory of PyTorch's there. Both fail where
// libcaesura_torch was not loaded.
Result<void*> TorchStream(Device device);
Result<std::shared_ptr<void>> TorchMemory(Device device, size_t bytes);
// A GPU that has tensors of PyTorch's: the provider of captured graphs and compiled steps there.
// Its memory is PyTorch's.
struct Gpu {
  explicit Gpu(const ProviderOptions& given);
  // Work of the provider's from here on waits for what PyTorch has begun, and the other way round.
  Status WaitForTorch() const;
  Status TorchWaits() const;

  CudaOptions options;
  std::shared_ptr<const ExecutionProvider> provider;
};
// The providers of the process's sessions that serve the device.
ProviderList ProvidersOn(Device device);
void AddDeviceProvider(const std::shared_ptr<const ExecutionProvider>& provider);
// The value itself, or a copy on the host of a tensor that is on a device.
RuntimeValue OnHost(const RuntimeValue& value);

// An array, an OrtValue, or what else caesura.sessions.values.to_value takes. Dense arrays are kept
// alive, not copied; sets `copied` where the bytes are others than the array's.
RuntimeValue ValueOf(nanobind::handle item, bool* copied = nullptr);
// True if it is a NumPy array.
bool IsArray(nanobind::handle item);
// The values of a dict, by name (ValueOf).
NamedValues FeedsOf(nanobind::dict feeds);
// As caesura.sessions.values.from_value: a NumPy array that shares the bytes (`torch`: a
// torch.Tensor), a list, or None.
nanobind::object ObjectOf(const RuntimeValue& value, bool torch);

// The contents of caesura.onnxruntime.OrtValue.
struct OrtValue {
  RuntimeValue value;
  bool read_only = false;  // bytes of somebody else's that may not be written to
};
// A tensor on the object's own bytes: NumPy arrays, and what has DLPack. Raises ValueError where it
// is not dense.
OrtValue Borrowed(nanobind::handle object);
// "cpu", "cuda" or "device" (one that DLPack has no code for). Raises ValueError for others.
Device DeviceNamed(const std::string& type, int index);
// onnxruntime's spelling: "tensor(float)", "seq(tensor(int64))".
std::string TypeText(const ValueType& type);

// The model in bytes, or at a path.
Model ReadSource(nanobind::object source);
// The bytes of the model, or None where it is written to `path`.
nanobind::object Written(const Model& model, const std::string& path);

// A tensor of PyTorch, NumPy, JAX or any other library with DLPack, sharing its bytes where it is
// dense; PyTorch's lazy conjugates and negatives are resolved first. Whether gradients should have
// flowed is the caller's business. Raises what the producer raises (BufferError for sparse
// tensors), and as Raise() where the tensor cannot be taken.
Tensor FromPython(nanobind::handle object, DlpackImport* facts = nullptr);
// True if the object's type has DLPack's C functions: FromPython is then the fastest way in.
bool HasDlpackFunctions(nanobind::handle object);
// A tensor that shares the bytes of a torch.Tensor that the caller holds for as long as the result
// is used.
Tensor LentByTorch(nanobind::handle tensor);
// From the first to past the last byte that a torch.Tensor's elements lie in.
std::pair<const char*, const char*> BytesOfTorch(nanobind::handle tensor);
// A torch.Tensor as DLPack sees it; borrowed for the moment.
DLTensor TorchView(nanobind::handle tensor);
// A torch.Tensor on the same bytes, which it keeps alive. Raises ImportError where there is no
// PyTorch.
nanobind::object ToTorch(const Tensor& tensor);

void BindExchange(nanobind::class_<RuntimeValue>& value);  // tensor_exchange.cc: the DLPack methods
void BindValues(nanobind::module_& m);     // values.cc: RuntimeValue to and from NumPy
void BindOrtValue(nanobind::module_& m);   // ort_value.cc
void BindCustomOps(nanobind::module_& m);  // custom_ops.cc
void BindSession(nanobind::module_& m);    // inference_session.cc
void BindGradient(nanobind::module_& m);   // gradient.cc
void BindLora(nanobind::module_& m);       // lora.cc
void BindTraining(nanobind::module_& m);   // training_session.cc
void BindStepCall(nanobind::module_& m);   // step_call.cc
void BindClip(nanobind::module_& m);       // clip.cc
void BindSplit(nanobind::module_& m);      // split_module.cc
void BindProgram(nanobind::module_& m);    // program.cc
void BindRecording(nanobind::module_& m);  // recording.cc
void BindWatch(nanobind::module_& m);      // watch.cc

}  // namespace caesura::python

#endif  // CAESURA_TORCH_BRIDGE_PYTHON_BINDINGS_H_
