// SPDX-License-Identifier: Apache-2.0
// Tensors of PyTorch, NumPy, JAX and others in and out by DLPack: through the C function table of
// the object's type where it has one, else through __dlpack__.
//
// Tensors of a GPU cross without a wait of the host. Work of ours on one that came in begins when
// the producer's stream has come there, and the producer gets it back when ours is done; the same
// the other way round for one that goes out.
#include <dlpack/dlpack.h>

#include <algorithm>

#include "core/providers/cuda/cuda_provider.h"
#include "core/providers/tensor_copy.h"
#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// Names that are looked up in every call, made once. Never freed: another thread may be in a call
// when Python ends.
struct Names {
  PyObject* exchange_api = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* dlpack = PyUnicode_InternFromString("__dlpack__");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* is_conj = PyUnicode_InternFromString("is_conj");
};
const Names& names() {
  static const Names* names = new Names;
  return *names;
}

// CUDA's default stream as DLPack and the driver name it.
void* const kLegacyStream = reinterpret_cast<void*>(1);

// The sessions' providers that have a device. The list changes under the interpreter's lock only.
std::vector<std::weak_ptr<const ExecutionProvider>>& DeviceProviders() {
  static auto* providers = new std::vector<std::weak_ptr<const ExecutionProvider>>;
  return *providers;
}

// The tensor for use on the other side of a border: later work there begins when earlier work on
// this side is done; when the tensor is released, the other way round. `theirs` is the stream on
// Python's side; on ours it is that of each provider on the tensor's device.
Tensor InOrder(Tensor tensor, void* theirs, bool comes_in) {
  const ProviderList providers = ProvidersOn(tensor.device());
  if (providers.empty()) return tensor;
  const auto order = [providers, theirs](bool theirs_first) {
    Status failed;
    for (const auto& provider : providers) {
      void* const ours = provider->stream();
      const Status status =
          OrderStreams(*provider, theirs_first ? theirs : ours, theirs_first ? ours : theirs);
      if (!status.ok()) failed = status;
    }
    return failed;
  };
  const Status status = order(comes_in);
  if (!status.ok()) Raise(status);
  const std::shared_ptr<Buffer>& owner = tensor.buffer();
  const size_t offset =
      static_cast<size_t>(static_cast<char*>(tensor.raw()) - static_cast<char*>(owner->data()));
  // A stream that is gone has no work left to wait for.
  auto buffer = std::make_shared<Buffer>(
      owner->data(), owner->size(), owner->device(),
      [order, owner, comes_in](void*) { static_cast<void>(order(!comes_in)); });
  return Tensor(tensor.dtype(), tensor.shape(), std::move(buffer), offset);
}

// The type's table of DLPack 1.x functions; null where it has none.
const DLPackExchangeAPI* ExchangeApiOf(nb::handle type) {
  const nb::object capsule = nb::steal(PyObject_GetAttr(type.ptr(), names().exchange_api));
  if (!capsule.is_valid()) PyErr_Clear();
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* header = static_cast<const DLPackExchangeAPIHeader*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (header != nullptr && header->version.major != DLPACK_MAJOR_VERSION)
    header = header->prev_api;
  return reinterpret_cast<const DLPackExchangeAPI*>(header);
}

// True if the object has the method, and the method returns True.
bool Claims(nb::handle object, PyObject* method) {
  PyObject* const self = object.ptr();
  const nb::object claim = nb::steal(PyObject_VectorcallMethod(method, &self, 1, nullptr));
  if (!claim.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
    PyErr_Clear();
  }
  return claim.ptr() == Py_True;
}

// PyTorch's lazy negatives and conjugates as plain numbers: its function table hands out their
// bytes without a word. Negatives are the imaginary parts of conjugates, so that no integers are
// among them.
nb::object Resolved(nb::handle object, const DLTensor& view) {
  nb::object out = nb::borrow(object);
  if (view.dtype.code == kDLInt || view.dtype.code == kDLUInt || view.dtype.code == kDLBool)
    return out;
  if (view.dtype.code == kDLComplex && Claims(out, names().is_conj))
    out = out.attr("resolve_conj")();
  if (Claims(out, names().is_neg)) out = out.attr("resolve_neg")();
  return out;
}

// A tensor on a device whose elements do not lie one after the other is copied there, by PyTorch;
// others are copied on the host when they come in.
nb::object DenseOnDevice(nb::object tensor, const DLTensor& view) {
  if (view.device.device_type == kDLCPU || !nb::hasattr(tensor, "is_contiguous")) return tensor;
  if (nb::cast<bool>(tensor.attr("is_contiguous")())) return tensor;
  return tensor.attr("contiguous")();
}

DLTensor View(const DLPackExchangeAPI& api, nb::handle object) {
  DLTensor view;
  if (api.dltensor_from_py_object_no_sync(object.ptr(), &view) != 0) throw nb::python_error();
  return view;
}

// PyTorch's function table; null until it is needed. Set under the GIL; torch is never unloaded.
const DLPackExchangeAPI* torch_api = nullptr;

// The stream that the library works on now; null on the host.
void* StreamOf(const DLPackExchangeAPI& api, Device device) {
  void* stream = nullptr;
  if (device.type == DeviceType::kCuda && &api == torch_api) {
    if (const Result<void*> of_torch = TorchStream(device); of_torch.ok()) return *of_torch;
  }
  if (device.type == DeviceType::kCuda &&
      api.current_work_stream(kDLCUDA, device.index, &stream) != 0)
    throw nb::python_error();
  return stream;
}

// The pointer in a capsule, which is then marked as used; null where the capsule has another name.
template <typename Managed>
Managed* TakeFrom(nb::handle capsule, const char* name, const char* used_name) {
  if (!PyCapsule_IsValid(capsule.ptr(), name)) return nullptr;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  PyCapsule_SetName(capsule.ptr(), used_name);
  return managed;
}

Tensor FromCapsule(nb::handle capsule, DlpackImport* facts) {
  if (auto* managed = TakeFrom<DLManagedTensorVersioned>(capsule, "dltensor_versioned",
                                                         "used_dltensor_versioned")) {
    return Unwrap(ImportDlpack(managed, facts));
  }
  if (auto* managed = TakeFrom<DLManagedTensor>(capsule, "dltensor", "used_dltensor")) {
    return Unwrap(ImportDlpack(managed, facts));
  }
  Raise(InvalidArgument("__dlpack__ gave something else than a fresh DLPack capsule"));
  return {};
}

bool IsOnGpu(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) return false;
  return nb::cast<int>(object.attr("__dlpack_device__")()[0]) == kDLCUDA;
}

// The capsule of the tensor, which is safe to use on the legacy stream if it is a GPU's.
nb::object CallDlpack(nb::handle object) {
  nb::object method = object.attr(names().dlpack);
  nb::dict arguments;
  if (IsOnGpu(object)) arguments["stream"] = reinterpret_cast<uintptr_t>(kLegacyStream);
  const nb::object without_version = arguments.attr("copy")();
  arguments["max_version"] = nb::make_tuple(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
  try {
    return method(**arguments);
  } catch (nb::python_error& error) {  // a producer that is older than versions
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method(**without_version);
}

// Frees a capsule that nobody has taken.
template <typename Managed>
void DropCapsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

[[noreturn]] void RaiseBufferError(const char* text) {
  PyErr_SetString(PyExc_BufferError, text);
  throw nb::python_error();
}

// Value.__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None), as the array API
// standard has it.
nb::object ToCapsule(const RuntimeValue& value, nb::object stream, nb::object max_version,
                     nb::object dl_device, nb::object copy) {
  if (!value.is_tensor()) RaiseBufferError("only tensors go out by DLPack");
  Tensor tensor = value.tensor();
  const DlpackDevice device = Unwrap(DlpackDeviceOf(tensor.device()));
  if (tensor.device().is_host() && !stream.is_none())
    RaiseBufferError("a tensor on the CPU has no stream");
  void* theirs = kLegacyStream;
  bool ordered = !tensor.device().is_host();
  if (!stream.is_none()) {
    const auto number = nb::cast<int64_t>(stream);
    if (number == 0) RaiseBufferError("stream 0 is ambiguous: 1 is the legacy default stream");
    ordered = number != -1;
    theirs = reinterpret_cast<void*>(number);
  }
  if (!dl_device.is_none() && !dl_device.equal(nb::make_tuple(device.type, device.index))) {
    RaiseBufferError("the tensor is on another device than dl_device, and is not moved");
  }
  const bool copied = copy.is(nb::bool_(true));
  if (copied && !tensor.device().is_host())
    RaiseBufferError("a tensor on a device is shared, and not copied");
  if (ordered) tensor = InOrder(tensor, theirs, /*comes_in=*/false);
  if (copied) tensor = Unwrap(tensor.Clone());
  PyObject* capsule;
  if (max_version.is_none() || nb::cast<int>(max_version[0]) < 1) {
    auto* managed = Unwrap(ExportLegacyDlpack(tensor));
    capsule = PyCapsule_New(managed, "dltensor",
                            [](PyObject* c) { DropCapsule<DLManagedTensor>(c, "dltensor"); });
    if (capsule == nullptr) managed->deleter(managed);
  } else {
    auto* managed = Unwrap(ExportDlpack(tensor, copied ? DLPACK_FLAG_BITMASK_IS_COPIED : 0));
    capsule = PyCapsule_New(managed, "dltensor_versioned", [](PyObject* c) {
      DropCapsule<DLManagedTensorVersioned>(c, "dltensor_versioned");
    });
    if (capsule == nullptr) managed->deleter(managed);
  }
  if (capsule == nullptr) throw nb::python_error();
  return nb::steal(capsule);
}

// PyTorch's function table; raises ImportError where there is no PyTorch, NotImplementedError for
// one before 2.10.
const DLPackExchangeAPI& TorchApi() {
  if (torch_api == nullptr) {
    nb::object type = nb::module_::import_("torch").attr("Tensor");
    torch_api = ExchangeApiOf(type);
    if (torch_api == nullptr)
      Raise(Unsupported(
          "this PyTorch has no DLPack function table; version 2.10 or newer is needed"));
  }
  return *torch_api;
}

}  // namespace

void AddDeviceProvider(const std::shared_ptr<const ExecutionProvider>& provider) {
  if (provider->device().is_host()) return;
  auto& all = DeviceProviders();
  std::erase_if(all, [](const auto& held) { return held.expired(); });
  all.push_back(provider);
}

ProviderList ProvidersOn(Device device) {
  ProviderList out;
  if (device.is_host()) return out;
  for (const auto& held : DeviceProviders()) {
    auto provider = held.lock();
    if (provider != nullptr && provider->device() == device) out.push_back(std::move(provider));
  }
  return out;
}

RuntimeValue OnHost(const RuntimeValue& value) {
  if (!value.is_tensor()) return value;
  const ProviderList providers = ProvidersOn(value.tensor().device());
  // The first one copies; any of them may have made the tensor.
  for (const auto& provider : providers) {
    const Status ordered = OrderStreams(*providers[0], provider->stream(), providers[0]->stream());
    if (!ordered.ok()) Raise(ordered);
  }
  return Unwrap(ToHost(value.tensor(), providers));
}

Tensor FromPython(nb::handle object, DlpackImport* facts) {
  const DLPackExchangeAPI* api = ExchangeApiOf(object.type());
  if (api == nullptr)
    return InOrder(FromCapsule(CallDlpack(object), facts), kLegacyStream, /*comes_in=*/true);
  const DLTensor view = View(*api, object);
  const nb::object source = DenseOnDevice(Resolved(object, view), view);
  DLManagedTensorVersioned* managed = nullptr;
  if (api->managed_tensor_from_py_object_no_sync(source.ptr(), &managed) != 0)
    throw nb::python_error();
  Tensor tensor = Unwrap(ImportDlpack(managed, facts));
  void* const theirs = StreamOf(*api, tensor.device());
  return InOrder(std::move(tensor), theirs, /*comes_in=*/true);
}

bool HasDlpackFunctions(nb::handle object) { return ExchangeApiOf(object.type()) != nullptr; }

DLTensor TorchView(nb::handle tensor) { return View(TorchApi(), tensor); }

Tensor LentByTorch(nb::handle tensor) {
  const DLTensor view = TorchView(tensor);
  const nb::object source = DenseOnDevice(Resolved(tensor, view), view);
  if (!source.is(tensor)) return FromPython(source);
  DLManagedTensorVersioned managed = {
      {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}, nullptr, nullptr, 0, view};
  return Unwrap(ImportDlpack(&managed));
}

std::pair<const char*, const char*> BytesOfTorch(nb::handle tensor) {
  const DLTensor view = TorchView(tensor);
  const char* first = static_cast<const char*>(view.data) + view.byte_offset;
  int64_t last = 0;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 0) return {nullptr, nullptr};
    last += (view.shape[i] - 1) * view.strides[i];
  }
  return {first, first + (last + 1) * ((view.dtype.bits * view.dtype.lanes + 7) / 8)};
}

nb::object ToTorch(const Tensor& tensor) {
  const DLPackExchangeAPI& api = TorchApi();
  if (tensor.defined() && DTypeFileBits(tensor.dtype()) < 8) {  // PyTorch knows no padded ones
    Raise(Unsupported(std::string("PyTorch has no type for ") + DTypeName(tensor.dtype())));
  }
  const Tensor ordered = InOrder(tensor, StreamOf(api, tensor.device()), /*comes_in=*/false);
  DLManagedTensorVersioned* managed = Unwrap(ExportDlpack(ordered));
  void* out = nullptr;
  if (api.managed_tensor_to_py_object_no_sync(managed, &out) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(out));
}

void BindExchange(nb::class_<RuntimeValue>& value) {
  value.def("__dlpack__", &ToCapsule, nb::kw_only(), nb::arg("stream") = nb::none(),
            nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
            nb::arg("copy") = nb::none());
  value.def("__dlpack_device__", [](const RuntimeValue& v) {
    const DlpackDevice device = Unwrap(DlpackDeviceOf(v.tensor().device()));
    return nb::make_tuple(device.type, device.index);
  });
  value.def("to_torch", [](const RuntimeValue& v) { return ToTorch(v.tensor()); });
  value.def_static("from_dlpack",
                   [](nb::handle object) { return RuntimeValue(FromPython(object)); });
}

}  // namespace caesura::python
