// SPDX-License-Identifier: Apache-2.0
// RuntimeValue for Python. Bytes cross as flat uint8 arrays; the package gives them dtype and
// shape, so that dtypes that NumPy does not know itself (bfloat16, float8, int4) need no code here.
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>

#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Shape MakeShape(const std::vector<int64_t>& dims, DType dtype) {
  return Unwrap(CheckedShape(dims, dtype));
}

RuntimeValue TensorFromBytes(int dtype_number, const std::vector<int64_t>& dims, Bytes bytes) {
  const DType dtype = static_cast<DType>(dtype_number);
  Shape shape = MakeShape(dims, dtype);
  if (bytes.size() != static_cast<size_t>(shape.elements()) * DTypeSize(dtype)) {
    Raise(InvalidArgument("array of " + std::to_string(bytes.size()) + " bytes for shape " +
                          shape.ToString()));
  }
  // The array object is kept until the last tensor goes; its reference is dropped under the GIL.
  auto* owner = new Bytes(bytes);
  auto buffer = std::make_shared<Buffer>(const_cast<uint8_t*>(bytes.data()), bytes.size(), Device{},
                                         [owner](void*) {
                                           if (!Py_IsInitialized()) return;
                                           nb::gil_scoped_acquire gil;
                                           delete owner;
                                         });
  return Tensor(dtype, std::move(shape), std::move(buffer));
}

// ONNX's dtype of a buffer's format; undefined where there is none, or the package must say
// more.
DType DTypeOfFormat(const char* format, Py_ssize_t size) {
  if (format == nullptr || format[0] == '\0' || format[1] != '\0') return DType::kUndefined;
  switch (format[0]) {
    case 'f': return DType::kFloat32;
    case 'd': return DType::kFloat64;
    case 'e': return DType::kFloat16;
    case '?': return DType::kBool;
    case 'B': return DType::kUInt8;
    case 'b': return DType::kInt8;
    case 'i': return DType::kInt32;
    case 'l':
    case 'q': return size == 8 ? DType::kInt64 : DType::kUndefined;
    default: return DType::kUndefined;
  }
}

// A NumPy array of a common dtype whose elements lie in order, without a trip through the package.
std::optional<RuntimeValue> FromArray(nb::handle item, bool* read_only) {
  if (!IsArray(item)) return std::nullopt;
  auto release = [](Py_buffer* view) {
    if (!Py_IsInitialized()) return;
    nb::gil_scoped_acquire gil;
    PyBuffer_Release(view);
    delete view;
  };
  std::unique_ptr<Py_buffer, decltype(release)> view(new Py_buffer{}, release);
  if (PyObject_GetBuffer(item.ptr(), view.get(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const DType dtype = DTypeOfFormat(view->format, view->itemsize);
  if (dtype == DType::kUndefined) return std::nullopt;
  Shape shape(std::vector<int64_t>(view->shape, view->shape + view->ndim));
  if (read_only != nullptr) *read_only = view->readonly != 0;
  Py_buffer* held = view.release();
  return Tensor(dtype, std::move(shape),
                std::make_shared<Buffer>(held->buf, static_cast<size_t>(held->len), Device{},
                                         [held, release](void*) { release(held); }));
}

// The dtypes that NumPy has itself.
std::optional<nb::dlpack::dtype> NumpyType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return nb::dtype<float>();
    case DType::kFloat64: return nb::dtype<double>();
    case DType::kInt64: return nb::dtype<int64_t>();
    case DType::kInt32: return nb::dtype<int32_t>();
    case DType::kInt16: return nb::dtype<int16_t>();
    case DType::kInt8: return nb::dtype<int8_t>();
    case DType::kUInt64: return nb::dtype<uint64_t>();
    case DType::kUInt32: return nb::dtype<uint32_t>();
    case DType::kUInt16: return nb::dtype<uint16_t>();
    case DType::kUInt8: return nb::dtype<uint8_t>();
    case DType::kBool: return nb::dtype<bool>();
    default: return std::nullopt;
  }
}

RuntimeValue TensorFromStrings(const std::vector<int64_t>& dims,
                               const std::vector<std::string>& strings) {
  Shape shape = MakeShape(dims, DType::kString);
  if (static_cast<size_t>(shape.elements()) != strings.size())
    Raise(InvalidArgument("string count and shape differ"));
  return Tensor::Of<std::string>(std::move(shape), strings);
}

nb::object BytesOfTensor(const RuntimeValue& value) {
  const Tensor& tensor = value.tensor();
  auto* keep = new std::shared_ptr<Buffer>(tensor.buffer());
  nb::capsule owner(keep,
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<Buffer>*>(p); });
  const size_t shape[1] = {tensor.bytes()};
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(tensor.raw(), 1, shape, owner));
}

}  // namespace

bool IsArray(nb::handle item) {
  static PyObject* const type =
      nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  return item.type().is(type);
}

RuntimeValue ValueOf(nb::handle item, bool* copied) {
  if (std::optional<RuntimeValue> array = FromArray(item, nullptr)) return *std::move(array);
  if (nb::isinstance<OrtValue>(item)) return nb::cast<OrtValue&>(item).value;
  if (HasDlpackFunctions(item)) {
    DlpackImport facts;
    Tensor tensor = FromPython(item, &facts);
    if (copied != nullptr) *copied |= facts.copied;
    return tensor;
  }
  auto value = nb::cast<RuntimeValue>(
      nb::module_::import_("caesura.sessions.values").attr("to_value")(item));
  if (copied == nullptr || !value.is_tensor()) return value;
  *copied |= !IsArray(item) || nb::cast<uintptr_t>(item.attr("ctypes").attr("data")) !=
                                   reinterpret_cast<uintptr_t>(value.tensor().raw());
  return value;
}

OrtValue Borrowed(nb::handle object) {
  OrtValue out;
  bool copied = false;
  if (std::optional<RuntimeValue> array = FromArray(object, &out.read_only)) {
    out.value = *std::move(array);
  } else if (IsArray(object)) {
    out.value = ValueOf(object, &copied);
    copied &= out.value.is_tensor() &&
              out.value.tensor().dtype() != DType::kString;  // NumPy's strings have other bytes
    out.read_only = !nb::cast<bool>(object.attr("flags").attr("writeable"));
  } else {
    DlpackImport facts;
    out.value = FromPython(object, &facts);
    copied = facts.copied;
    out.read_only = facts.read_only;
  }
  if (copied)
    Raise(
        InvalidArgument("the tensor is not dense (or not aligned, or not in this machine's byte "
                        "order), so its own bytes cannot be bound; make it contiguous and native"));
  return out;
}

NamedValues FeedsOf(nb::dict feeds) {
  NamedValues out;
  for (auto [name, item] : feeds) out.emplace(nb::cast<std::string>(name), ValueOf(item));
  return out;
}

nb::object ObjectOf(const RuntimeValue& value, bool torch) {
  if (!value.has_value()) return nb::none();
  if (value.is_tensor() && torch && value.tensor().dtype() != DType::kString)
    return ToTorch(value.tensor());
  const auto type = value.is_tensor() ? NumpyType(value.tensor().dtype()) : std::nullopt;
  if (!type)
    return nb::module_::import_("caesura.sessions.values").attr("from_value")(value, torch);
  const Tensor& tensor = value.tensor();
  auto* keep = new std::shared_ptr<Buffer>(tensor.buffer());
  nb::capsule owner(keep,
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<Buffer>*>(p); });
  const std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  return nb::cast(
      nb::ndarray<nb::numpy>(tensor.raw(), shape.size(), shape.data(), owner, nullptr, *type));
}

nb::object TextOf(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// The elements of a vector as Python's own strings and numbers.
nb::list ListOf(const Tensor& tensor) {
  nb::list out;
  const int64_t count = tensor.elements();
  const auto fill = [&](auto make) {
    for (int64_t i = 0; i < count; ++i) out.append(make(i));
  };
  switch (tensor.dtype()) {
    case DType::kString:
      fill([&](int64_t i) { return TextOf(tensor.data<std::string>()[i]); });
      break;
    case DType::kInt64: fill([&](int64_t i) { return nb::int_(tensor.data<int64_t>()[i]); }); break;
    case DType::kFloat32:
      fill([&](int64_t i) { return nb::float_(tensor.data<float>()[i]); });
      break;
    case DType::kFloat64:
      fill([&](int64_t i) { return nb::float_(tensor.data<double>()[i]); });
      break;
    default: return nb::list(ObjectOf(tensor, false).attr("tolist")());
  }
  return out;
}

nb::dict DictOf(const RuntimeValue& map) {
  const nb::list keys = ListOf(map.map().keys), values = ListOf(map.map().values);
  nb::dict out;
  for (size_t i = 0; i < keys.size(); ++i) out[keys[i]] = values[i];
  return out;
}

void BindValues(nb::module_& m) {
  nb::class_<RuntimeValue> value(m, "Value");
  value.def(nb::init<>())
      .def_prop_ro("has_value", &RuntimeValue::has_value)
      .def_prop_ro("is_tensor", &RuntimeValue::is_tensor)
      .def_prop_ro("is_sequence", &RuntimeValue::is_sequence)
      .def_prop_ro("dtype",
                   [](const RuntimeValue& v) { return static_cast<int>(v.tensor().dtype()); })
      .def_prop_ro("shape", [](const RuntimeValue& v) { return v.tensor().shape().dims(); })
      .def_prop_ro("is_map", &RuntimeValue::is_map)
      .def("elements", [](const RuntimeValue& v) { return v.sequence(); })
      .def("dict", &DictOf)
      .def("to_ort_value", [](const RuntimeValue& v) { return OrtValue{v}; })
      .def("bytes", &BytesOfTensor)
      .def("strings", [](const RuntimeValue& v) {
        nb::list out;
        for (int64_t i = 0; i < v.tensor().elements(); ++i) {
          out.append(TextOf(v.tensor().data<std::string>()[i]));
        }
        return out;
      });
  BindExchange(value);
  m.def("tensor", &TensorFromBytes);
  m.def("strings", &TensorFromStrings);
  m.def("map", [](const RuntimeValue& keys, const RuntimeValue& values) {
    return RuntimeValue::Map(keys.tensor(), values.tensor());
  });
  m.def("sequence", [](std::vector<RuntimeValue> elements) {
    return RuntimeValue::Sequence(std::move(elements));
  });
}

}  // namespace caesura::python
