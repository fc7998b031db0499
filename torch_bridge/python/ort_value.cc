// SPDX-License-Identifier: Apache-2.0
// OrtValue: a value as bound runs take and give it, with the names of onnxruntime's class.
#include <algorithm>

#include "core/plan/device_constants.h"
#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

std::string DTypeText(DType dtype) {
  if (dtype == DType::kFloat32) return "float";
  return dtype == DType::kFloat64 ? "double" : DTypeName(dtype);
}

std::string TypeText(DType dtype) { return "tensor(" + DTypeText(dtype) + ")"; }

std::string TypeText(const RuntimeValue& value) {
  if (value.is_tensor()) return TypeText(value.tensor().dtype());
  if (value.is_map())
    return "map(" + DTypeText(value.map().keys.dtype()) + "," +
           TypeText(value.map().values.dtype()) + ")";
  if (!value.is_sequence()) return "";
  return "seq(" + (value.sequence().empty() ? std::string() : TypeText(value.sequence()[0])) + ")";
}

const Tensor& TensorOf(const OrtValue& value) {
  if (!value.value.is_tensor()) Raise(InvalidArgument("the OrtValue holds no tensor"));
  return value.value.tensor();
}

// A fresh tensor of zeros on the host.
OrtValue FromShape(const std::vector<int64_t>& dims, int element_type) {
  const DType dtype = static_cast<DType>(element_type);
  if (element_type <= 0 || element_type >= kDTypeCount) {
    Raise(InvalidArgument("element type " + std::to_string(element_type) + " is none of ONNX's"));
  }
  return {Tensor::Zeros(dtype, Unwrap(CheckedShape(dims, dtype)))};
}

// Bytes at an address that the caller keeps.
OrtValue FromPointer(const std::string& device, int index, int element_type,
                     const std::vector<int64_t>& dims, uintptr_t address) {
  const DType dtype = static_cast<DType>(element_type);
  if (element_type <= 0 || element_type >= kDTypeCount || dtype == DType::kString) {
    Raise(InvalidArgument("element type " + std::to_string(element_type) +
                          " has no bytes to point at"));
  }
  Shape shape = Unwrap(CheckedShape(dims, dtype));
  const size_t alignment = std::min<size_t>(DTypeSize(dtype), 8);
  if (shape.elements() > 0 && (address == 0 || address % alignment != 0)) {
    Raise(InvalidArgument("buffer_ptr " + std::to_string(address) + " is no address of " +
                          DTypeName(dtype) + " elements"));
  }
  return {Tensor::Borrow(dtype, std::move(shape), reinterpret_cast<void*>(address),
                         DeviceNamed(device, index))};
}

// A copy in the memory of a session's provider.
OrtValue CopiedTo(Device device, const RuntimeValue& value) {
  const ProviderList providers = ProvidersOn(device);
  if (providers.empty() || !value.is_tensor()) {
    Raise(Unsupported("no session has a provider on " + device.ToString() +
                      " that could take the array; tensors that are there come by from_dlpack"));
  }
  Tensor there = Unwrap(CopyToDevice(value.tensor(), *providers.front()));
  const Status done = providers.front()->Synchronise();
  if (!done.ok()) Raise(done);
  return {std::move(there)};
}

nb::object Numpy(const OrtValue& value) { return ObjectOf(OnHost(value.value), /*torch=*/false); }

// Other elements into the same bytes.
void UpdateInPlace(OrtValue& value, nb::handle array) {
  const Tensor& to = TensorOf(value);
  const RuntimeValue from = ValueOf(array);
  if (value.read_only || !to.device().is_host())
    Raise(InvalidArgument("the OrtValue's bytes may not be written here"));
  if (!from.is_tensor() || from.tensor().dtype() != to.dtype() ||
      from.tensor().shape() != to.shape()) {
    Raise(InvalidArgument(std::string("update_inplace takes ") + DTypeName(to.dtype()) +
                          to.shape().ToString()));
  }
  CopyElements(to.dtype(), from.tensor().raw(), to.raw(), to.elements());
}

}  // namespace

Device DeviceNamed(const std::string& type, int index) {
  if (type == "cpu") return {};
  if (type == "cuda") return {DeviceType::kCuda, static_cast<int16_t>(index)};
  if (type == "device") return {DeviceType::kOther, static_cast<int16_t>(index)};
  Raise(InvalidArgument("device '" + type + "' is none of cpu, cuda, device"));
  return {};
}

std::string TypeText(const ValueType& type) {
  switch (type.kind) {
    case ValueType::Kind::kTensor: return TypeText(type.dtype);
    case ValueType::Kind::kSequence: return "seq(" + TypeText(*type.element) + ")";
    case ValueType::Kind::kOptional: return "optional(" + TypeText(*type.element) + ")";
    case ValueType::Kind::kMap:
      return "map(" + DTypeText(type.key) + "," + TypeText(*type.element) + ")";
    case ValueType::Kind::kUnknown: break;
  }
  return "unknown";
}

void BindOrtValue(nb::module_& m) {
  nb::class_<OrtValue> value(m, "OrtValue",
                             R"(A tensor, a sequence, a map, or nothing; on the host or on a device.

A value that was made on a NumPy array or a DLPack tensor shares its bytes: the next run sees what was written to them
since. A value that a run returned owns its bytes; numpy(), and torch or JAX by from_dlpack, share them, and may outlive
the value. The methods are those of onnxruntime.OrtValue.

Raises:
    ValueError: from methods that need a tensor, if it is none.

Example::

    value = caesura.onnxruntime.OrtValue.ortvalue_from_numpy(images)
    binding.bind_ortvalue_input("images", value))");
  value
      .def_static(
          "ortvalue_from_numpy",
          [](nb::handle array, const std::string& device, int index) {
            const Device place = DeviceNamed(device, index);
            return place.is_host() ? Borrowed(array) : CopiedTo(place, ValueOf(array));
          },
          nb::arg("numpy_obj"), nb::arg("device_type") = "cpu", nb::arg("device_id") = 0,
          "Makes a value on an array, which it shares; strings are copied. On a device: a copy, in "
          "memory of a session that has a provider there.")
      .def_static("_from_shape", &FromShape)
      .def_static("_from_pointer", &FromPointer)
      .def_static("from_dlpack", &Borrowed, nb::arg("tensor"),
                  "Makes a value on a DLPack tensor, which it shares.")
      .def("numpy", &Numpy,
           "Returns the tensor as a NumPy array: shared if it is on the host, a copy otherwise.")
      .def(
          "__array__",
          [](const OrtValue& v, nb::object dtype, nb::object copy) {
            const nb::object array = Numpy(v);
            const bool same = dtype.is_none() && !copy.is(nb::bool_(true));
            return same ? array
                        : array.attr("astype")(dtype.is_none() ? array.attr("dtype")
                                                               : nb::object(dtype));
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def(
          "shape", [](const OrtValue& v) { return TensorOf(v).shape().dims(); },
          "Returns the tensor's dims.")
      .def(
          "data_type", [](const OrtValue& v) { return TypeText(v.value); },
          "Returns the type, such as \"tensor(float)\".")
      .def(
          "element_type", [](const OrtValue& v) { return static_cast<int>(TensorOf(v).dtype()); },
          "Returns ONNX's number of the element type.")
      .def(
          "device_name",
          [](const OrtValue& v) {
            const std::string name = TensorOf(v).device().ToString();
            return name.substr(0, name.find(':'));
          },
          "Returns the kind of the tensor's device, such as \"cpu\".")
      .def(
          "data_ptr",
          [](const OrtValue& v) { return reinterpret_cast<uintptr_t>(TensorOf(v).raw()); },
          "Returns the address of the first element.")
      .def(
          "tensor_size_in_bytes", [](const OrtValue& v) { return TensorOf(v).bytes(); },
          "Returns the size of the elements.")
      .def(
          "has_value", [](const OrtValue& v) { return v.value.has_value(); },
          "False for an empty optional.")
      .def(
          "is_tensor", [](const OrtValue& v) { return v.value.is_tensor(); }, "True for a tensor.")
      .def(
          "is_tensor_sequence",
          [](const OrtValue& v) {
            return v.value.is_sequence() &&
                   (v.value.sequence().empty() || !v.value.sequence()[0].is_map());
          },
          "True for a sequence that is not one of maps.")
      .def(
          "is_sparse_tensor", [](const OrtValue&) { return false; },
          "False: there are no sparse tensors here.")
      .def("update_inplace", &UpdateInPlace, nb::arg("np_arr"),
           "Copies an array of the same dtype and shape into the tensor.")
      .def(
          "to_torch", [](const OrtValue& v) { return ToTorch(TensorOf(v)); },
          "Returns a torch.Tensor on the same bytes.")
      .def(
          "to_dlpack", [](const OrtValue& v) { return nb::cast(v.value).attr("__dlpack__")(); },
          "Returns a DLPack capsule on the same bytes.")
      .def("__dlpack_device__",
           [](const OrtValue& v) { return nb::cast(v.value).attr("__dlpack_device__")(); })
      .def("__dlpack__", [](const OrtValue& v, nb::kwargs arguments) {
        return nb::cast(v.value).attr("__dlpack__")(**arguments);
      });
}

}  // namespace caesura::python
