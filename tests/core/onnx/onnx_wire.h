// SPDX-License-Identifier: Apache-2.0
// ONNX files byte by byte, so that tests can write what no library would: messages of the protobuf
// wire format, with the field numbers of onnx.proto.
#ifndef CAESURA_TESTS_CORE_ONNX_ONNX_WIRE_H_
#define CAESURA_TESTS_CORE_ONNX_ONNX_WIRE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace caesura::testing {

// A message under construction.
class Wire {
 public:
  Wire& Int(int field, int64_t value) {
    Varint(static_cast<uint64_t>(field) << 3);
    Varint(static_cast<uint64_t>(value));
    return *this;
  }
  Wire& Float(int field, float value) {
    Varint((static_cast<uint64_t>(field) << 3) | 5);
    char raw[4];
    std::memcpy(raw, &value, 4);
    bytes_.append(raw, 4);
    return *this;
  }
  Wire& Bytes(int field, std::string_view value) {
    Varint((static_cast<uint64_t>(field) << 3) | 2);
    Varint(value.size());
    bytes_.append(value);
    return *this;
  }
  Wire& Message(int field, const Wire& value) { return Bytes(field, value.bytes_); }
  Wire& Append(const Wire& fields) {
    bytes_ += fields.bytes_;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

inline constexpr int kFloat = 1, kInt64 = 7, kString = 8;

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// TensorProto without data.
inline Wire TensorHead(const std::string& name, int data_type, const std::vector<int64_t>& dims) {
  Wire out;
  for (int64_t dim : dims) out.Int(1, dim);
  return out.Int(2, data_type).Bytes(8, name);
}
inline Wire RawTensor(const std::string& name, int data_type, const std::vector<int64_t>& dims,
                      std::string_view raw) {
  return TensorHead(name, data_type, dims).Bytes(9, raw);
}
inline Wire Entry(const std::string& key, const std::string& value) {
  return Wire().Bytes(1, key).Bytes(2, value);
}
inline Wire ExternalTensor(const std::string& name, const std::vector<int64_t>& dims,
                           const std::string& location, const std::string& offset,
                           const std::string& length) {
  Wire out = TensorHead(name, kFloat, dims);
  out.Int(14, 1).Message(13, Entry("location", location));
  if (!offset.empty()) out.Message(13, Entry("offset", offset));
  if (!length.empty()) out.Message(13, Entry("length", length));
  return out;
}

inline Wire NodeWire(const std::string& op_type, const std::vector<std::string>& inputs,
                     const std::vector<std::string>& outputs, const std::string& name = "") {
  Wire out;
  for (const std::string& input : inputs) out.Bytes(1, input);
  for (const std::string& output : outputs) out.Bytes(2, output);
  return out.Bytes(3, name).Bytes(4, op_type);
}
// ValueInfoProto of a tensor.
inline Wire Info(const std::string& name, int data_type, const std::vector<int64_t>& dims) {
  Wire shape;
  for (int64_t dim : dims) shape.Message(1, Wire().Int(1, dim));
  return Wire().Bytes(1, name).Message(
      2, Wire().Message(1, Wire().Int(1, data_type).Message(2, shape)));
}
inline Wire Opset(int64_t version, const std::string& domain = "") {
  return Wire().Bytes(1, domain).Int(2, version);
}

// A graph "g" with input x and output y, both float[2], and what `parts` adds.
inline Wire GraphWire(const Wire& parts) {
  Wire out;
  out.Bytes(2, "g").Message(11, Info("x", kFloat, {2})).Message(12, Info("y", kFloat, {2}));
  return out.Append(parts);
}

inline Wire ModelWire(const Wire& graph, int64_t opset = 21, int64_t ir_version = 10) {
  return Wire().Int(1, ir_version).Message(8, Opset(opset)).Message(7, graph);
}

// The bytes of a model y = x + w, with `w` as given.
inline std::string WithInitializer(const Wire& w) {
  Wire parts;
  parts.Message(1, NodeWire("Add", {"x", "w"}, {"y"}, "add")).Message(5, w);
  return ModelWire(GraphWire(parts)).bytes();
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_ONNX_ONNX_WIRE_H_
