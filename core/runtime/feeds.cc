// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/feeds.h"

#include "core/base/status_macros.h"

namespace caesura {
namespace {

bool FitsMap(const ValueType& type, const RuntimeValue& value) {
  if (!value.is_map()) return false;
  const RuntimeValue::MapEntries& entries = value.map();
  const bool one_value_each =
      entries.keys.shape().rank() == 1 && entries.values.shape() == entries.keys.shape();
  // The element of an empty map has no type.
  return one_value_each &&
         (entries.keys.elements() == 0 || (entries.keys.dtype() == type.key && type.element &&
                                           entries.values.dtype() == type.element->dtype));
}

Status WrongType(const Value& input, const RuntimeValue& value) {
  return InvalidArgument("input '" + input.name() + "' is " + input.type().ToString() + ", got " +
                         value.Describe());
}

Status CheckDType(const Value& input, const RuntimeValue& value) {
  const bool tensors = value.is_tensor() && input.type().is_tensor();
  return tensors && input.dtype() != value.tensor().dtype() ? WrongType(input, value) : Status();
}

void Append(std::string& names, const std::string& name) {
  names += (names.empty() ? "'" : ", '") + name + "'";
}

}  // namespace

bool Fits(const ValueType& type, const Tensor& tensor) {
  const auto& shape = type.shape;
  const Shape& given = tensor.shape();
  bool fits = (type.dtype == DType::kUndefined || tensor.dtype() == type.dtype) &&
              (!shape || static_cast<int>(shape->size()) == given.rank());
  for (int i = 0; fits && shape && i < given.rank(); ++i)
    fits = !(*shape)[i].known() || (*shape)[i].value == given[i];
  return fits;
}

Status CheckFeed(const Value& input, const RuntimeValue& value) {
  if (!value.has_value()) return {};
  const ValueType& type = input.type();
  bool fits = true;
  switch (type.kind) {
    case ValueType::Kind::kTensor: fits = value.is_tensor() && Fits(type, value.tensor()); break;
    case ValueType::Kind::kSequence: fits = value.is_sequence(); break;
    case ValueType::Kind::kMap: fits = FitsMap(type, value); break;
    case ValueType::Kind::kOptional:
    case ValueType::Kind::kUnknown: break;  // the kernel that reads it decides
  }
  return fits ? Status() : WrongType(input, value);
}

Status CheckComplete(const Graph& graph, const std::vector<RuntimeValue>& feeds) {
  std::string missing;
  for (size_t i = 0; i < feeds.size(); ++i) {
    const Value* input = graph.inputs()[i];
    if (feeds[i].has_value() || input->type().kind == ValueType::Kind::kOptional) continue;
    if (graph.Initializer(input) == nullptr) Append(missing, input->name());
  }
  return missing.empty() ? Status() : InvalidArgument("no value given for input(s) " + missing);
}

Result<std::vector<RuntimeValue>> BindFeeds(const Graph& graph, const NamedValues& feeds,
                                            FeedCheck check, const NamedValues& own) {
  std::vector<RuntimeValue> bound;
  bound.reserve(graph.inputs().size());
  size_t used = 0;
  for (const Value* input : graph.inputs()) {
    if (auto mine = own.find(input->name()); mine != own.end()) {
      bound.push_back(mine->second);
      continue;
    }
    auto given = feeds.find(input->name());
    used += given != feeds.end();
    bound.push_back(given == feeds.end() ? RuntimeValue() : given->second);
    RETURN_IF_ERROR(check == FeedCheck::kType ? CheckFeed(*input, bound.back())
                                              : CheckDType(*input, bound.back()));
  }
  RETURN_IF_ERROR(CheckComplete(graph, bound));
  if (used == feeds.size()) return bound;
  std::string unknown;
  for (const auto& [name, value] : feeds) {
    const Value* input = graph.FindValue(name);
    if (input == nullptr || !graph.IsGraphInput(input) || own.count(name) > 0)
      Append(unknown, name);
  }
  return InvalidArgument("the model has no input(s) " + unknown);
}

}  // namespace caesura
