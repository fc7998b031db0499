// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/tensor_bank.h"

#include <charconv>

#include "core/base/status_macros.h"
#include "core/files/external_data.h"

namespace caesura {
namespace {

constexpr size_t kMaxProblems = 20;

Result<uint64_t> ParseNumber(const std::string& key, const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return value;
  return InvalidModel("its external " + key + " is '" + text + "'");
}

// The place of an external tensor. Other keys (checksum, and whatever else a file may say) are
// ignored.
struct Place {
  std::string location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;
};

Result<Place> PlaceOf(const onnx::TensorProto& proto) {
  Place out;
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") out.location = entry.value();
    if (entry.key() != "offset" && entry.key() != "length") continue;
    ASSIGN_OR_RETURN(const uint64_t number, ParseNumber(entry.key(), entry.value()));
    if (entry.key() == "offset") out.offset = number;
    if (entry.key() == "length") out.length = number;
  }
  return out;
}

// The tensor's elements from its file; nothing is allocated before the file is known to have them.
Result<Tensor> ReadExternal(const onnx::TensorProto& proto, const Shape& shape, DType dtype,
                            ExternalFolder* folder) {
  if (folder == nullptr)
    return InvalidModel("its data are external, and no folder for them was given");
  if (dtype == DType::kString) return InvalidModel("strings cannot be external");
  ASSIGN_OR_RETURN(const Place place, PlaceOf(proto));
  ASSIGN_OR_RETURN(const ExternalFile* file, folder->OpenForReading(place.location));
  const uint64_t bytes = FileBytes(dtype, shape.elements());
  if (place.length && *place.length != bytes) {
    return InvalidModel("its shape " + shape.ToString() + " of " + DTypeName(dtype) + " takes " +
                        std::to_string(bytes) + " bytes, but its external length is " +
                        std::to_string(*place.length));
  }
  RETURN_IF_ERROR(file->CheckRange(place.offset, bytes));
  if (DTypeFileBits(dtype) < 8 || dtype == DType::kBool) {
    std::string packed(static_cast<size_t>(bytes), '\0');
    RETURN_IF_ERROR(file->Read(place.offset, bytes, packed.data()));
    return TensorFromFileBytes(dtype, shape, packed.data(), packed.size());
  }
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(dtype, shape));
  RETURN_IF_ERROR(file->Read(place.offset, bytes, static_cast<char*>(out.raw())));
  return out;
}

}  // namespace

void TensorBank::Fail(Status status) {
  if (problems_.size() < kMaxProblems) problems_.push_back(std::move(status));
}

Result<Tensor> TensorBank::Read(const onnx::TensorProto& proto) {
  const std::string name = "tensor '" + proto.name() + "': ";
  if (proto.has_segment()) return Unsupported(name + "it is stored in segments");
  if (proto.data_location() != onnx::TensorProto::EXTERNAL) return TensorFromProto(proto);
  Result<DType> dtype = DTypeFromProto(proto.data_type());
  if (!dtype.ok()) return dtype.status().WithPrefix(name);
  Result<Shape> shape =
      CheckedShape(std::vector<int64_t>(proto.dims().begin(), proto.dims().end()), *dtype);
  if (!shape.ok()) return InvalidModel(name + shape.status().message());
  if (static_cast<size_t>(shape->elements()) * DTypeSize(*dtype) > limits_.max_bytes - bytes_) {
    return InvalidModel(name + "the model's tensors take more than " +
                        std::to_string(limits_.max_bytes) + " bytes");
  }
  Result<Tensor> out = ReadExternal(proto, *shape, *dtype, folder_);
  return out.ok() ? std::move(out) : Result<Tensor>(out.status().WithPrefix(name));
}

void TensorBank::Keep(Tensor tensor, onnx::TensorProto* placeholder) {
  bytes_ += tensor.bytes();
  if (bytes_ > limits_.max_bytes) {
    Fail(InvalidModel("the model's tensors take more than " + std::to_string(limits_.max_bytes) +
                      " bytes"));
    return;
  }
  onnx::TensorProto
      empty;  // Clear() would keep the memory of what was stored until the whole model goes
  empty.set_name(placeholder->name());
  placeholder->Swap(&empty);
  placeholder->set_data_type(static_cast<int>(tensor.dtype()));
  placeholder->add_dims(0);
  placeholder->mutable_segment()->set_begin(static_cast<int64_t>(tensors_.size()));
  tensors_.push_back(std::move(tensor));
}

void TensorBank::Take(onnx::TensorProto* proto) {
  if (problems_.size() >= kMaxProblems) return;
  Result<Tensor> tensor = Read(*proto);
  if (!tensor.ok()) return Fail(tensor.status());
  Keep(*std::move(tensor), proto);
}

void TensorBank::TakeSparse(const onnx::SparseTensorProto& sparse, onnx::TensorProto* dense) {
  dense->set_name(sparse.values().name());
  if (sparse.values().has_segment() || sparse.indices().has_segment() ||
      sparse.values().data_location() == onnx::TensorProto::EXTERNAL ||
      sparse.indices().data_location() == onnx::TensorProto::EXTERNAL) {
    return Fail(
        Unsupported("sparse tensor '" + dense->name() + "': it is not stored in the model itself"));
  }
  Result<Tensor> tensor = TensorFromProto(sparse, limits_.max_dense_bytes - dense_bytes_);
  if (!tensor.ok()) return Fail(tensor.status());
  dense_bytes_ += tensor->bytes();
  Keep(*std::move(tensor), dense);
}

void TensorBank::TakeAttribute(onnx::AttributeProto* attribute, int depth) {
  if (attribute->has_t()) Take(attribute->mutable_t());
  for (auto& tensor : *attribute->mutable_tensors()) Take(&tensor);
  if (attribute->type() == onnx::AttributeProto::SPARSE_TENSOR) {
    onnx::TensorProto dense;
    TakeSparse(attribute->sparse_tensor(), &dense);
    attribute->clear_sparse_tensor();
    attribute->mutable_t()->Swap(&dense);
    attribute->set_type(onnx::AttributeProto::TENSOR);
    if (attribute->name() == "sparse_value") attribute->set_name("value");  // of Constant
  }
  if (attribute->sparse_tensors_size() > 0) {
    Fail(Unsupported("attribute '" + attribute->name() + "' is a list of sparse tensors"));
  }
  if (attribute->has_g()) TakeGraph(attribute->mutable_g(), depth + 1);
  for (auto& graph : *attribute->mutable_graphs()) TakeGraph(&graph, depth + 1);
}

void TensorBank::TakeGraph(onnx::GraphProto* graph, int depth) {
  if (depth > limits_.max_depth) return;  // refused by the checks of the model
  for (auto& tensor : *graph->mutable_initializer()) Take(&tensor);
  for (const auto& sparse : graph->sparse_initializer())
    TakeSparse(sparse, graph->add_initializer());
  graph->clear_sparse_initializer();
  for (auto& node : *graph->mutable_node()) {
    for (auto& attribute : *node.mutable_attribute()) TakeAttribute(&attribute, depth);
  }
}

Status TensorBank::TakeFrom(onnx::ModelProto* model) {
  TakeGraph(model->mutable_graph(), 0);
  for (auto& function : *model->mutable_functions()) {
    for (auto& attribute : *function.mutable_attribute_proto()) TakeAttribute(&attribute, 0);
    for (auto& node : *function.mutable_node()) {
      for (auto& attribute : *node.mutable_attribute()) TakeAttribute(&attribute, 0);
    }
  }
  if (problems_.empty()) return {};
  if (problems_.size() == 1) return problems_[0];
  std::string all = std::to_string(problems_.size()) + " tensors are faulty:";
  for (const Status& problem : problems_) all += "\n  " + problem.message();
  return Status(problems_[0].code(), all);
}

}  // namespace caesura
