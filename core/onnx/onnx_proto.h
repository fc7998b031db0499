// SPDX-License-Identifier: Apache-2.0
// Private to core/onnx: the only header that names onnx's protobuf types.
// Conversions between them and the IR, value by value; whole graphs are in graph_import.h and
// graph_export.h.
#ifndef CAESURA_CORE_ONNX_ONNX_PROTO_H_
#define CAESURA_CORE_ONNX_ONNX_PROTO_H_

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "onnx/onnx_pb.h"
#pragma GCC diagnostic pop

#include <google/protobuf/arena.h>

#include <string>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// A message, and an arena that all its parts are on. A message on the heap is not safe to destroy
// when memory ran out while it was filled; an arena drops the parts without looking at them.
template <typename Message>
class ArenaMessage {
 public:
  Message* get() const { return message_; }
  Message& operator*() const { return *message_; }
  Message* operator->() const { return message_; }

 private:
  google::protobuf::Arena arena_;
  Message* message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
};

// A kind that the IR does not have (map, sparse tensor, opaque) becomes kUnknown.
ValueType TypeFromProto(const onnx::TypeProto& proto);
// Leaves `proto` unset for kUnknown.
void TypeToProto(const ValueType& type, onnx::TypeProto* proto);
void DimToProto(const Dim& dim, onnx::TensorShapeProto::Dimension* proto);
Dim DimFromProto(const onnx::TensorShapeProto::Dimension& proto);

// The tensor that `proto` holds in one of its data fields. Fails unless the stored elements are
// exactly the declared ones. REQUIRES: the data are not external.
Result<Tensor> TensorFromProto(const onnx::TensorProto& proto);
// A dense tensor; fails when its bytes exceed `max_bytes`, or indices leave the shape.
Result<Tensor> TensorFromProto(const onnx::SparseTensorProto& proto, size_t max_bytes);
// A tensor of `dtype` and `shape` from the bytes that a file holds for it (packed below a byte,
// little endian). Fails unless the size is right.
Result<Tensor> TensorFromFileBytes(DType dtype, const Shape& shape, const char* data, size_t size);
// Bytes that a tensor takes in a file. REQUIRES: no strings.
size_t FileBytes(DType dtype, int64_t elements);
// The inverse of TensorFromFileBytes. REQUIRES: host memory, no strings.
std::string TensorToFileBytes(const Tensor& tensor);
// Without a name. REQUIRES: host memory.
void TensorToProto(const Tensor& tensor, onnx::TensorProto* proto);
// The dtype and dims alone.
void TensorHeaderToProto(const Tensor& tensor, onnx::TensorProto* proto);
// Fails on types that the IR does not have.
Result<DType> DTypeFromProto(int data_type);

// Attributes other than graphs.
Result<Attribute> AttributeFromProto(const onnx::AttributeProto& proto);
// False when the attribute holds graphs (`proto` then has only its name).
bool AttributeToProto(const std::string& name, const Attribute& attribute,
                      onnx::AttributeProto* proto);

// "" for ONNX's default domain under either of its names.
inline std::string FoldDomain(const std::string& domain) {
  return domain == "ai.onnx" ? std::string() : domain;
}

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_ONNX_PROTO_H_
