// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/op_node.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/base/status_macros.h"
#include "core/graph/graph.h"
#include "core/onnx/model_reader.h"
#include "core/plugin/plugin_library.h"

namespace caesura {
namespace {

int32_t CodeOf(DType dtype) { return static_cast<int32_t>(dtype); }

// The fields that the reader of `out` knows of, by the size that it has set.
template <typename T>
CaesuraStatus* Fill(const T& value, T* out) {
  if (out == nullptr || out->size < sizeof(size_t))
    return GiveStatus(InvalidArgument("the result's size is not set"));
  const size_t size = std::min(out->size, sizeof(T));
  std::memcpy(reinterpret_cast<char*>(out) + sizeof(size_t),
              reinterpret_cast<const char*>(&value) + sizeof(size_t), size - sizeof(size_t));
  return nullptr;
}

CaesuraStatus* FillArgument(const std::vector<CaesuraOpNode::Argument>& list, size_t i,
                            CaesuraArgument* out) {
  if (i >= list.size())
    return GiveStatus(NotFound("the node has no argument " + std::to_string(i)));
  const CaesuraOpNode::Argument& argument = list[i];
  CaesuraArgument shown = {};
  shown.present = argument.present;
  shown.name = argument.name.c_str();
  shown.tensor = {const_cast<void*>(argument.data),
                  argument.dims.data(),
                  argument.has_rank ? static_cast<int32_t>(argument.dims.size()) : -1,
                  argument.dtype,
                  CAESURA_CPU,
                  0};
  return Fill(shown, out);
}

Status CheckType(int32_t dtype, int32_t rank, const int64_t* dims) {
  if (dtype < 0 || dtype >= kDTypeCount)
    return InvalidArgument("there is no dtype " + std::to_string(dtype));
  return rank > 0 && dims == nullptr
             ? InvalidArgument("a shape of rank " + std::to_string(rank) + " without dims")
             : Status();
}

CaesuraStatus* SetOutput(CaesuraOpNode* node, size_t i, int32_t dtype, int32_t rank,
                         const int64_t* dims) {
  if (i >= node->outputs.size() || !node->outputs[i].present) return nullptr;
  if (Status status = CheckType(dtype, rank, dims); !status.ok())
    return GiveStatus(std::move(status));
  const std::vector<int64_t> known =
      rank > 0 ? std::vector<int64_t>(dims, dims + rank) : std::vector<int64_t>();
  node->found[i] = node->TypeOf(dtype, rank < 0 ? nullptr : &known);
  return nullptr;
}

CaesuraStatus* DescribeArgument(CaesuraOpNode* node, std::vector<CaesuraOpNode::Argument>* list,
                                const char* name, int32_t dtype, int32_t rank,
                                const int64_t* dims) {
  if (Status status = CheckType(dtype, rank, dims); !status.ok())
    return GiveStatus(std::move(status));
  CaesuraOpNode::Argument argument = {true,   name == nullptr ? "" : name, dtype, rank >= 0, {},
                                      nullptr};
  if (rank > 0) argument.dims.assign(dims, dims + rank);
  for (const int64_t dim : argument.dims) node->NameDim(dim);
  list->push_back(std::move(argument));
  return nullptr;
}

template <typename T>
Result<Attribute> One(const T* values, size_t count) {
  if (count != 1 || values == nullptr)
    return InvalidArgument("an attribute of one value has " + std::to_string(count));
  return Attribute(values[0]);
}

template <typename T>
Result<Attribute> Many(const T* values, size_t count) {
  if (count > 0 && values == nullptr) return InvalidArgument("an attribute has no values");
  return Attribute(count == 0 ? std::vector<T>() : std::vector<T>(values, values + count));
}

Result<std::vector<std::string>> ReadStrings(const CaesuraAttribute& attribute) {
  if (attribute.count > 0 && attribute.strings == nullptr)
    return InvalidArgument("an attribute has no values");
  std::vector<std::string> out;
  for (size_t i = 0; i < attribute.count; ++i) {
    const char* text = attribute.strings[i];
    out.push_back(attribute.string_lengths == nullptr
                      ? std::string(text)
                      : std::string(text, attribute.string_lengths[i]));
  }
  return out;
}

std::string TextOf(const Graph& body) {
  Model model;
  model.graph = body.Clone();
  model.ir_version = 10;
  return ModelText(model);
}

}  // namespace

CaesuraTensor ShowTensor(const Tensor& tensor) {
  return {tensor.raw(),          tensor.shape().begin(),
          tensor.shape().rank(), CodeOf(tensor.dtype()),
          CAESURA_CPU,           0};
}

Result<Tensor> ReadTensor(const CaesuraTensor& tensor) {
  const bool has_shape = tensor.rank == 0 || (tensor.rank > 0 && tensor.dims != nullptr);
  if (tensor.dtype <= 0 || tensor.dtype >= kDTypeCount || tensor.dtype == CodeOf(DType::kString) ||
      !has_shape) {
    return InvalidArgument("a tensor needs a dtype that is no string, and a shape");
  }
  const DType dtype = static_cast<DType>(tensor.dtype);
  std::vector<int64_t> dims;
  if (tensor.rank > 0) dims.assign(tensor.dims, tensor.dims + tensor.rank);
  ASSIGN_OR_RETURN(Shape shape, CheckedShape(std::move(dims), dtype));
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(dtype, std::move(shape)));
  if (out.bytes() > 0 && tensor.data == nullptr) return InvalidArgument("a tensor has no data");
  if (out.bytes() > 0) std::memcpy(out.raw(), tensor.data, out.bytes());
  return out;
}

Result<Attribute> ReadAttribute(const CaesuraAttribute& attribute) {
  switch (attribute.kind) {
    case CAESURA_ATTRIBUTE_INT: return One(attribute.ints, attribute.count);
    case CAESURA_ATTRIBUTE_FLOAT: return One(attribute.floats, attribute.count);
    case CAESURA_ATTRIBUTE_INTS: return Many(attribute.ints, attribute.count);
    case CAESURA_ATTRIBUTE_FLOATS: return Many(attribute.floats, attribute.count);
    case CAESURA_ATTRIBUTE_STRING: {
      ASSIGN_OR_RETURN(std::vector<std::string> strings, ReadStrings(attribute));
      return One(strings.data(), strings.size());
    }
    case CAESURA_ATTRIBUTE_STRINGS: {
      ASSIGN_OR_RETURN(std::vector<std::string> strings, ReadStrings(attribute));
      return Attribute(std::move(strings));
    }
    case CAESURA_ATTRIBUTE_TENSOR:
    case CAESURA_ATTRIBUTE_TENSORS: {
      if (attribute.count > 0 && attribute.tensors == nullptr)
        return InvalidArgument("an attribute has no values");
      std::vector<Tensor> tensors;
      for (size_t i = 0; i < attribute.count; ++i) {
        ASSIGN_OR_RETURN(Tensor tensor, ReadTensor(attribute.tensors[i]));
        tensors.push_back(std::move(tensor));
      }
      if (attribute.kind == CAESURA_ATTRIBUTE_TENSOR) return One(tensors.data(), tensors.size());
      return Attribute(std::move(tensors));
    }
    default:
      return InvalidArgument("attributes of kind " + std::to_string(attribute.kind) +
                             " cannot be given by a plug-in");
  }
}

void AddNodeFunctions(CaesuraOpApi* api) {
  api->node_name = [](const CaesuraOpNode* node) { return node->name.c_str(); };
  api->node_op_type = [](const CaesuraOpNode* node) { return node->op_type.c_str(); };
  api->node_version = [](const CaesuraOpNode* node) { return static_cast<int32_t>(node->version); };
  api->node_input_count = [](const CaesuraOpNode* node) { return node->inputs.size(); };
  api->node_output_count = [](const CaesuraOpNode* node) { return node->outputs.size(); };
  api->node_input = [](const CaesuraOpNode* node, size_t i, CaesuraArgument* out) {
    return FillArgument(node->inputs, i, out);
  };
  api->node_output = [](const CaesuraOpNode* node, size_t i, CaesuraArgument* out) {
    return FillArgument(node->outputs, i, out);
  };
  api->node_attribute_count = [](const CaesuraOpNode* node) { return node->attributes().size(); };
  api->node_attribute_at = [](const CaesuraOpNode* node, size_t i, CaesuraAttribute* out) {
    if (i >= node->attributes().size())
      return GiveStatus(NotFound("the node has no attribute " + std::to_string(i)));
    return Fill(node->attributes()[i], out);
  };
  api->node_attribute = [](const CaesuraOpNode* node, const char* name, CaesuraAttribute* out) {
    for (const CaesuraAttribute& attribute : node->attributes()) {
      if (std::strcmp(attribute.name, name) == 0) return Fill(attribute, out);
    }
    return GiveStatus(NotFound("node '" + node->name + "' has no attribute '" + name + "'"));
  };
  api->node_options = [](const CaesuraOpNode* node) { return &node->options; };
  api->node_option = [](const CaesuraOpNode* node, const char* name) -> const char* {
    for (size_t i = 0; i < node->options.count; ++i) {
      if (std::strcmp(node->options.keys[i], name) == 0) return node->options.values[i];
    }
    return nullptr;
  };
  api->set_output = SetOutput;
  api->describe_input = [](CaesuraOpNode* node, const char* name, int32_t dtype, int32_t rank,
                           const int64_t* dims) {
    return DescribeArgument(node, &node->inputs, name, dtype, rank, dims);
  };
  api->describe_output = [](CaesuraOpNode* node, const char* name, int32_t dtype, int32_t rank,
                            const int64_t* dims) {
    return DescribeArgument(node, &node->outputs, name, dtype, rank, dims);
  };
}

}  // namespace caesura

using caesura::Attribute;
using caesura::Tensor;

CaesuraOpNode::Argument CaesuraOpNode::Describe(const std::string& name,
                                                const caesura::ValueType& type) {
  Argument out;
  out.present = true;
  out.name = name;
  if (!type.is_tensor()) return out;
  out.dtype = caesura::CodeOf(type.dtype);
  out.has_rank = type.shape.has_value();
  for (size_t i = 0; out.has_rank && i < type.shape->size(); ++i) {
    const caesura::Dim& dim = (*type.shape)[i];
    int64_t shown = dim.value;
    if (!dim.known() && !dim.symbol.empty()) {
      auto it = std::find(symbols_.begin(), symbols_.end(), dim.symbol);
      if (it == symbols_.end()) it = symbols_.insert(it, dim.symbol);
      shown = -2 - (it - symbols_.begin());
    }
    out.dims.push_back(shown);
  }
  return out;
}

void CaesuraOpNode::AddInput(const std::string& name, const caesura::ValueType& type,
                             const Tensor* value) {
  inputs.push_back(Describe(name, type));
  const bool has_bytes =
      value != nullptr && value->device().is_host() && value->dtype() != caesura::DType::kString;
  if (has_bytes) inputs.back().data = value->raw();
}

void CaesuraOpNode::AddOutput(const std::string& name, const caesura::ValueType& type) {
  outputs.push_back(Describe(name, type));
}

caesura::ValueType CaesuraOpNode::TypeOf(int32_t dtype, const std::vector<int64_t>* dims) const {
  caesura::ValueType type = caesura::ValueType::Tensor(static_cast<caesura::DType>(dtype));
  if (dims == nullptr) return type;
  type.shape.emplace();
  for (const int64_t dim : *dims) {
    const size_t symbol = dim < -1 ? static_cast<size_t>(-2 - dim) : symbols_.size();
    type.shape->push_back({dim < 0 ? -1 : dim, symbol < symbols_.size() ? symbols_[symbol] : ""});
  }
  return type;
}

void CaesuraOpNode::NameDim(int64_t dim) {
  constexpr int64_t kMaxSymbols = 1000;
  if (dim < -2 - kMaxSymbols) return;
  while (dim < -1 - static_cast<int64_t>(symbols_.size()))
    symbols_.push_back("d" + std::to_string(symbols_.size()));
}

void CaesuraOpNode::SetOptions(const std::map<std::string, std::string>& values) {
  for (const auto& [key, value] : values) {
    keys_.push_back(key.c_str());
    values_.push_back(value.c_str());
  }
  options = {keys_.data(), values_.data(), keys_.size()};
}

void CaesuraOpNode::Arrays::Show(const std::vector<std::string>& values, int32_t kind,
                                 CaesuraAttribute* out) {
  for (const std::string& value : values) {
    strings.push_back(value.c_str());
    lengths.push_back(value.size());
  }
  out->kind = kind;
  out->count = values.size();
  out->strings = strings.data();
  out->string_lengths = lengths.data();
}

void CaesuraOpNode::Arrays::Show(const Tensor* values, size_t count, int32_t kind,
                                 CaesuraAttribute* out) {
  for (size_t i = 0; i < count; ++i) tensors.push_back(caesura::ShowTensor(values[i]));
  out->kind = kind;
  out->count = count;
  out->tensors = tensors.data();
}

void CaesuraOpNode::Arrays::Show(const Attribute& attribute, CaesuraAttribute* out) {
  auto numbers = [out](int32_t kind, size_t count, const int64_t* ints, const float* floats) {
    out->kind = kind;
    out->count = count;
    out->ints = ints;
    out->floats = floats;
  };
  if (const auto* one = std::get_if<int64_t>(&attribute)) {
    numbers(CAESURA_ATTRIBUTE_INT, 1, one, nullptr);
  } else if (const auto* one = std::get_if<float>(&attribute)) {
    numbers(CAESURA_ATTRIBUTE_FLOAT, 1, nullptr, one);
  } else if (const auto* many = std::get_if<std::vector<int64_t>>(&attribute)) {
    numbers(CAESURA_ATTRIBUTE_INTS, many->size(), many->data(), nullptr);
  } else if (const auto* many = std::get_if<std::vector<float>>(&attribute)) {
    numbers(CAESURA_ATTRIBUTE_FLOATS, many->size(), nullptr, many->data());
  } else if (const auto* one = std::get_if<std::string>(&attribute)) {
    owned = {*one};
    Show(owned, CAESURA_ATTRIBUTE_STRING, out);
  } else if (const auto* many = std::get_if<std::vector<std::string>>(&attribute)) {
    Show(*many, CAESURA_ATTRIBUTE_STRINGS, out);
  } else if (const auto* one = std::get_if<Tensor>(&attribute)) {
    Show(one, 1, CAESURA_ATTRIBUTE_TENSOR, out);
  } else if (const auto* many = std::get_if<std::vector<Tensor>>(&attribute)) {
    Show(many->data(), many->size(), CAESURA_ATTRIBUTE_TENSORS, out);
  } else if (const auto* one = std::get_if<std::shared_ptr<caesura::Graph>>(&attribute)) {
    owned = {caesura::TextOf(**one)};
    Show(owned, CAESURA_ATTRIBUTE_GRAPH, out);
  } else if (const auto* many =
                 std::get_if<std::vector<std::shared_ptr<caesura::Graph>>>(&attribute)) {
    for (const auto& body : *many) owned.push_back(caesura::TextOf(*body));
    Show(owned, CAESURA_ATTRIBUTE_GRAPHS, out);
  } else if (const auto* type = std::get_if<caesura::ValueType>(&attribute)) {
    owned = {type->ToString()};
    Show(owned, CAESURA_ATTRIBUTE_TYPE, out);
  }
}

void CaesuraOpNode::SetAttributes(const caesura::AttributeMap& attributes) {
  for (const auto& [name, attribute] : attributes) {
    CaesuraAttribute shown = {};
    shown.size = sizeof(shown);
    shown.name = name.c_str();
    arrays_.push_back(std::make_unique<Arrays>());
    arrays_.back()->Show(attribute, &shown);
    attributes_.push_back(shown);
  }
}
