// SPDX-License-Identifier: Apache-2.0
#include "core/custom_ops/model_types.h"

#include <cctype>
#include <map>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

Result<Dim> ParseDim(const std::string& text, const std::string& type) {
  if (text == "?") return Dim{};
  bool is_number = !text.empty() && text.size() <= 18, is_word = !text.empty();
  for (const char c : text) {
    is_number &= std::isdigit(static_cast<unsigned char>(c)) != 0;
    is_word &= std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ||
               c == '+' || c == '*' || c == '-';
  }
  if (is_number) return Dim{std::stoll(text), ""};
  if (is_word && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_'))
    return Dim{-1, text};
  return InvalidArgument("type '" + type + "': '" + text + "' is no size, name or '?'");
}

std::string Position(const char* what, size_t i, const std::vector<std::string>& names) {
  return std::string(what) + " " + std::to_string(i) + " ('" + names[i] + "')";
}

Result<std::vector<ValueType>> ParseTypes(const std::vector<std::string>& texts) {
  std::vector<ValueType> out;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(ValueType type, ParseTensorType(text));
    out.push_back(std::move(type));
  }
  return out;
}

}  // namespace

Result<ValueType> ParseTensorType(const std::string& text) {
  const size_t open = text.find('[');
  const std::string name = Trimmed(text.substr(0, open));
  ValueType type;
  for (int i = 1; i < kDTypeCount; ++i) {
    if (name == DTypeName(static_cast<DType>(i))) type = ValueType::Tensor(static_cast<DType>(i));
  }
  if (!type.is_tensor() || open == std::string::npos || text.back() != ']') {
    return InvalidArgument("type '" + text +
                           "': expected an element type and sizes, such as float32[N, 64]");
  }
  const std::string dims = Trimmed(text.substr(open + 1, text.size() - open - 2));
  if (dims == "...") return type;
  type.shape.emplace();
  for (size_t at = 0; at < dims.size() && !dims.empty();) {
    const size_t comma = std::min(dims.find(',', at), dims.size());
    ASSIGN_OR_RETURN(Dim dim, ParseDim(Trimmed(dims.substr(at, comma - at)), text));
    type.shape->push_back(std::move(dim));
    at = comma + 1;
  }
  return type;
}

Result<ModelTypes> ModelTypes::Of(const AttributeMap& attributes) {
  auto strings = [&](const char* name) -> Result<std::vector<std::string>> {
    auto it = attributes.find(name);
    const auto* found =
        it == attributes.end() ? nullptr : std::get_if<std::vector<std::string>>(&it->second);
    if (found == nullptr) return InvalidModel(std::string("has no strings '") + name + "'");
    return *found;
  };
  ModelTypes out;
  ASSIGN_OR_RETURN(out.input_names, strings("input_names"));
  ASSIGN_OR_RETURN(out.output_names, strings("output_names"));
  ASSIGN_OR_RETURN(const std::vector<std::string> inputs, strings("input_types"));
  ASSIGN_OR_RETURN(const std::vector<std::string> outputs, strings("output_types"));
  ASSIGN_OR_RETURN(out.inputs, ParseTypes(inputs));
  ASSIGN_OR_RETURN(out.outputs, ParseTypes(outputs));
  if (out.inputs.size() == out.input_names.size() && out.outputs.size() == out.output_names.size())
    return out;
  return InvalidModel("has other numbers of names and of types");
}

void ModelTypes::AddTo(AttributeMap* attributes) const {
  auto texts = [](const std::vector<ValueType>& types) {
    std::vector<std::string> out;
    for (const ValueType& type : types) out.push_back(type.ToString());
    return out;
  };
  (*attributes)["input_names"] = input_names;
  (*attributes)["output_names"] = output_names;
  (*attributes)["input_types"] = texts(inputs);
  (*attributes)["output_types"] = texts(outputs);
}

Result<std::vector<ValueType>> ModelTypes::OutputsFor(const std::vector<ValueType>& given) const {
  if (given.size() != inputs.size()) {
    return InvalidArgument("has " + std::to_string(given.size()) + " inputs, its model takes " +
                           std::to_string(inputs.size()));
  }
  std::map<std::string, Dim> sizes;  // by the model's symbols
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Status misfit =
        InvalidArgument("its " + Position("input", i, input_names) + " is " + inputs[i].ToString() +
                        " in the model, got " + given[i].ToString());
    if (!given[i].is_tensor()) continue;
    if (!AreCompatible(inputs[i], given[i])) return misfit;
    if (!inputs[i].shape || !given[i].shape) continue;
    for (size_t axis = 0; axis < inputs[i].shape->size(); ++axis) {
      const Dim& dim = (*given[i].shape)[axis];
      const std::string& symbol = (*inputs[i].shape)[axis].symbol;
      if (symbol.empty()) continue;
      Dim& size = sizes.try_emplace(symbol, dim).first->second;
      if (size.known() && dim.known() && size.value != dim.value) return misfit;
      if (!size.known()) size = dim;
    }
  }
  std::vector<ValueType> out = outputs;
  for (ValueType& type : out) {
    for (size_t axis = 0; type.shape && axis < type.shape->size(); ++axis) {
      Dim& dim = (*type.shape)[axis];
      if (dim.known()) continue;
      auto found = sizes.find(dim.symbol);
      dim = found == sizes.end() ? Dim{} : found->second;
    }
  }
  return out;
}

bool AreCompatible(const ValueType& a, const ValueType& b) {
  if (!a.is_tensor() || !b.is_tensor()) return true;
  if (a.dtype != b.dtype && a.dtype != DType::kUndefined && b.dtype != DType::kUndefined)
    return false;
  if (!a.shape || !b.shape) return true;
  if (a.shape->size() != b.shape->size()) return false;
  for (size_t i = 0; i < a.shape->size(); ++i) {
    const Dim &x = (*a.shape)[i], &y = (*b.shape)[i];
    if (x.known() && y.known() && x.value != y.value) return false;
  }
  return true;
}

}  // namespace caesura
