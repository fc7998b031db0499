// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/aten_call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "torch_bridge/aten_op.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

// Without the optionals around it.
TypePtr Inner(TypePtr type) {
  while (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

// The element type of a list, else null.
TypePtr ElementOf(const TypePtr& type) {
  auto list = Inner(type)->cast<c10::ListType>();
  return list ? list->getElementType() : nullptr;
}

bool IsTensor(const TypePtr& type) { return Inner(type)->kind() == TypeKind::TensorType; }
bool IsTensors(const TypePtr& type) {
  const TypePtr element = ElementOf(type);
  return element && IsTensor(element);
}

IValue ScalarOf(TypeKind kind, const at::Scalar& number, const std::string& argument) {
  switch (kind) {
    case TypeKind::IntType:
    case TypeKind::SymIntType: return number.toLong();
    case TypeKind::FloatType:
    case TypeKind::SymFloatType: return number.toDouble();
    case TypeKind::BoolType:
    case TypeKind::SymBoolType: return number.toBool();
    case TypeKind::NumberType: return number;
    case TypeKind::TensorType:
      return at::native::wrapped_scalar_tensor(number);  // what a Python number becomes there
    default: TORCH_CHECK_VALUE(false, "argument '", argument, "' takes no number");
  }
}

template <typename T, typename Read>
IValue ListOf(const at::Tensor& numbers, Read read) {
  c10::List<T> out;
  for (int64_t i = 0; i < numbers.numel(); ++i) out.push_back(read(numbers[i].item()));
  return out;
}

// A number, or a list of numbers, as an argument of this type.
IValue NumbersAs(const TypePtr& type, const at::Tensor& numbers, const std::string& argument) {
  const TypePtr element = ElementOf(type);
  if (!element) {
    TORCH_CHECK_VALUE(numbers.numel() == 1, "argument '", argument, "' takes one number, got ",
                      numbers.numel());
    return ScalarOf(Inner(type)->kind(), numbers.item(), argument);
  }
  const at::Tensor flat = numbers.reshape({-1});
  switch (element->kind()) {
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return ListOf<int64_t>(flat, [](const at::Scalar& n) { return n.toLong(); });
    case TypeKind::FloatType:
      return ListOf<double>(flat, [](const at::Scalar& n) { return n.toDouble(); });
    case TypeKind::BoolType:
      return ListOf<bool>(flat, [](const at::Scalar& n) { return n.toBool(); });
    case TypeKind::NumberType:
      return ListOf<at::Scalar>(flat, [](const at::Scalar& n) { return n; });
    default: TORCH_CHECK_VALUE(false, "argument '", argument, "' takes no list of numbers");
  }
}

IValue TextAs(const TypePtr& type, std::string text, const std::string& argument) {
  const auto index = [&](std::initializer_list<std::pair<const char*, int64_t>> names) {
    for (const auto& [name, value] : names) {
      if (text == name) return value;
    }
    TORCH_CHECK_VALUE(false, "argument '", argument, "' cannot be '", text, "'");
  };
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  switch (Inner(type)->kind()) {
    case TypeKind::StringType: return text;
    case TypeKind::DeviceObjType: return c10::Device(text);
    case TypeKind::LayoutType: return index({{"strided", number(c10::kStrided)}});
    case TypeKind::MemoryFormatType:
      return index({{"contiguous_format", number(c10::MemoryFormat::Contiguous)},
                    {"preserve_format", number(c10::MemoryFormat::Preserve)},
                    {"channels_last", number(c10::MemoryFormat::ChannelsLast)},
                    {"channels_last_3d", number(c10::MemoryFormat::ChannelsLast3d)}});
    case TypeKind::ScalarTypeType:
      text.erase(std::remove(text.begin(), text.end(), '_'),
                 text.end());  // float8_e5m2, as PyTorch writes it
      for (int i = 0; i < kDTypeCount; ++i) {
        const auto scalar_type = ScalarTypeOf(static_cast<DType>(i));
        if (scalar_type && text == DTypeName(static_cast<DType>(i))) return number(*scalar_type);
      }
      [[fallthrough]];
    default: return index({});
  }
}

// The schema's argument that the call's input `i` belongs to, by the names in the attribute
// `arguments`; none where there is none of that name.
std::optional<int> ArgumentOf(const c10::FunctionSchema& schema,
                              const std::vector<std::string>& names, int i) {
  return i < static_cast<int>(names.size()) ? schema.argumentIndexWithName(names[i]) : i;
}

IValue AttributeAs(const TypePtr& type, const Attribute& attribute, const std::string& argument) {
  if (const auto* text = std::get_if<std::string>(&attribute)) return TextAs(type, *text, argument);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&attribute)) {
    return c10::List<std::string>(c10::ArrayRef<std::string>(*texts));
  }
  if (const auto* tensor = std::get_if<Tensor>(&attribute)) {
    return NumbersAs(type, ToTorch(*tensor).value(), argument);
  }
  if (const auto* i = std::get_if<int64_t>(&attribute)) {
    return NumbersAs(type, at::scalar_tensor(*i, at::kLong), argument);
  }
  if (const auto* f = std::get_if<float>(&attribute)) {
    return NumbersAs(type, at::scalar_tensor(*f, at::kDouble), argument);
  }
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute)) {
    return NumbersAs(type, at::tensor(*ints, at::kLong), argument);
  }
  if (const auto* floats = std::get_if<std::vector<float>>(&attribute)) {
    return NumbersAs(type, at::tensor(*floats, at::kDouble), argument);
  }
  TORCH_CHECK_VALUE(false, "argument '", argument,
                    "' cannot be given as an attribute of this kind");
}

template <typename T, typename Read>
IValue ListOfItems(const std::vector<IValue>& items, Read read) {
  c10::List<T> out;
  out.reserve(items.size());
  for (const IValue& item : items) out.push_back(read(item));
  return out;
}

}  // namespace

// --- what Python hands over ---

IValue ItemArgument(const TypePtr& type, const IValue& item) {
  const TypeKind kind = Inner(type)->kind();
  const bool converted =
      kind == TypeKind::FloatType || kind == TypeKind::BoolType || kind == TypeKind::TensorType;
  return converted && item.isScalar() ? ScalarOf(kind, item.toScalar(), "") : item;
}

IValue ListArgument(const TypePtr& type, const std::vector<IValue>& items) {
  const TypePtr element = ElementOf(type);
  TORCH_CHECK_VALUE(element, "an argument of type ", type->str(), " takes no list");
  switch (element->kind()) {
    case TypeKind::TensorType:
      return ListOfItems<at::Tensor>(items, [](const IValue& i) { return i.toTensor(); });
    case TypeKind::OptionalType:
      return ListOfItems<std::optional<at::Tensor>>(
          items, [](const IValue& i) { return i.toOptional<at::Tensor>(); });
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return ListOfItems<int64_t>(items, [](const IValue& i) { return i.toInt(); });
    case TypeKind::FloatType:
      return ListOfItems<double>(items, [](const IValue& i) { return i.toScalar().toDouble(); });
    case TypeKind::BoolType:
      return ListOfItems<bool>(items, [](const IValue& i) { return i.toBool(); });
    case TypeKind::NumberType:
      return ListOfItems<at::Scalar>(items, [](const IValue& i) { return i.toScalar(); });
    default: TORCH_CHECK_VALUE(false, "lists of ", element->str(), " are not taken");
  }
}

// --- thread-local state ---

struct DispatchScope::Guards {
  explicit Guards(bool with_gradients)
      : inference(false),
        gradients(with_gradients),
        keys(with_gradients ? c10::default_included_set
                            : c10::default_included_set -
                                  c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView),
             with_gradients
                 ? c10::default_excluded_set
                 : c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {
  }
  c10::InferenceMode inference;
  at::AutoGradMode gradients;
  c10::impl::ForceDispatchKeyGuard keys;
};

DispatchScope::DispatchScope(bool with_gradients)
    : guards_(std::make_unique<Guards>(with_gradients)) {}
DispatchScope::~DispatchScope() = default;

// --- the node's words ---

Result<AtenCall> AtenCall::Create(const Node& node, int first_input,
                                  const std::vector<at::Tensor>& known, c10::Device device) {
  const auto name = node.Attr<std::string>("operator", ""),
             overload = node.Attr<std::string>("overload_name", "");
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op) {
    return Declined(node.Label() + " PyTorch has no operator '" + name +
                    (overload.empty() ? "" : "." + overload) +
                    "': is the library that registers it loaded?");
  }
  if (op->schema().is_mutable())
    return Declined(node.Label() + " operator '" + name + "' writes to its arguments");
  AtenCall call(*op, device);
  for (const c10::Argument& formal : op->schema().arguments())
    call.arguments_.push_back({formal.real_type(), {}, {}});
  call.AddInputs(node, first_input, known);
  call.AddAttributes(node);
  return call;
}

bool AtenCall::TakesNumber(const Node& node, int first_input, int i) {
  const auto name = node.Attr<std::string>("operator", ""),
             overload = node.Attr<std::string>("overload_name", "");
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op || i < first_input) return false;
  const auto names = node.Attr<std::vector<std::string>>("arguments", {});
  const std::optional<int> at = ArgumentOf(op->schema(), names, i - first_input);
  if (!at || *at >= static_cast<int>(op->schema().arguments().size())) return false;
  const TypePtr type = op->schema().arguments()[*at].real_type();
  return !IsTensor(type) && !IsTensors(type);
}

void AtenCall::AddInputs(const Node& node, int first_input, const std::vector<at::Tensor>& known) {
  const auto names = node.Attr<std::vector<std::string>>("arguments", {});
  for (int i = 0; first_input + i < static_cast<int>(node.inputs().size()); ++i) {
    const std::optional<int> found = ArgumentOf(op_.schema(), names, i);
    TORCH_CHECK_VALUE(found, "there is no argument '", names[i], "'");
    const int at = *found;
    TORCH_CHECK_VALUE(at < static_cast<int>(arguments_.size()),
                      "there are more inputs than arguments");
    Argument& argument = arguments_[at];
    const bool present = node.input(first_input + i) != nullptr;
    if (IsTensors(argument.type)) {
      argument.inputs.push_back(present ? i : -1);
    } else if (present) {
      TORCH_CHECK_VALUE(argument.inputs.empty(), "argument '", op_.schema().arguments()[at].name(),
                        "' is given twice");
      argument.inputs.push_back(i);
    }
    if (present && !IsTensors(argument.type) && !IsTensor(argument.type) && known[i].defined()) {
      argument.value = NumbersAs(argument.type, known[i], op_.schema().arguments()[at].name());
      argument.inputs.clear();
    }
  }
}

void AtenCall::AddAttributes(const Node& node) {
  const auto none = node.Attr<std::vector<std::string>>("none", {});
  std::unordered_set<std::string> expected = {"operator",     "overload_name",    "arguments",
                                              "none",         "gradient_outputs", "gradient_inputs",
                                              "random_stream"};
  for (size_t i = 0; i < arguments_.size(); ++i) {
    Argument& argument = arguments_[i];
    const c10::Argument& formal = op_.schema().arguments()[i];
    expected.insert(formal.name());
    if (!argument.inputs.empty() || !argument.value.isNone()) continue;
    const auto attribute = node.attributes().find(formal.name());
    if (attribute != node.attributes().end()) {
      argument.value = AttributeAs(argument.type, attribute->second, formal.name());
    } else if (std::find(none.begin(), none.end(), formal.name()) != none.end()) {
      TORCH_CHECK_VALUE(argument.type->kind() == TypeKind::OptionalType, "argument '",
                        formal.name(), "' cannot be None");
    } else if (formal.default_value()) {
      argument.value = *formal.default_value();
      const bool of_device =
          Inner(argument.type)->kind() == TypeKind::DeviceObjType && argument.value.isNone();
      if (of_device && !device_.is_cpu()) argument.value = device_;
    } else {
      TORCH_CHECK_VALUE(argument.type->kind() == TypeKind::OptionalType || IsTensors(argument.type),
                        "argument '", formal.name(), "' is missing");
    }
  }
  for (const auto& [name, value] : node.attributes()) {
    TORCH_CHECK_VALUE(expected.count(name), "there is no argument '", name, "'");
  }
}

// --- calls ---

bool AtenCall::numbers_known() const {
  return std::all_of(arguments_.begin(), arguments_.end(), [](const Argument& argument) {
    return argument.inputs.empty() || IsTensor(argument.type) || IsTensors(argument.type);
  });
}

at::Generator AtenCall::Generator(uint64_t seed) const {
  if (device_.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(device_.type())
                                .getNewGenerator(device_.index());
  generator.set_current_seed(seed);
  return generator;
}

std::vector<IValue> AtenCall::Arguments(const std::vector<at::Tensor>& inputs,
                                        uint64_t seed) const {
  std::vector<IValue> stack;
  stack.reserve(arguments_.size() + 4);
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& argument = arguments_[i];
    if (IsTensors(argument.type) && argument.value.isNone()) {
      if (ElementOf(argument.type)->kind() == TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> list;
        for (int k : argument.inputs)
          list.push_back(k < 0 ? std::nullopt : std::optional<at::Tensor>(inputs[k]));
        stack.emplace_back(std::move(list));
      } else {
        c10::List<at::Tensor> list;
        for (int k : argument.inputs) list.push_back(inputs.at(k));
        stack.emplace_back(std::move(list));
      }
    } else if (argument.inputs.empty()) {
      const bool generator =
          Inner(argument.type)->kind() == TypeKind::GeneratorType && argument.value.isNone();
      stack.push_back(generator ? IValue(Generator(seed)) : argument.value);
    } else if (IsTensor(argument.type)) {
      stack.emplace_back(inputs[argument.inputs[0]]);
    } else {
      stack.push_back(
          NumbersAs(argument.type, inputs[argument.inputs[0]], op_.schema().arguments()[i].name()));
    }
  }
  return stack;
}

std::vector<at::Tensor> AtenCall::MetaResults(const std::vector<at::Tensor>& meta_inputs) const {
  std::vector<IValue> stack = Arguments(meta_inputs, /*seed=*/0);
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const TypeKind kind = Inner(arguments_[i].type)->kind();
    if (kind == TypeKind::DeviceObjType) stack[i] = c10::Device(c10::kMeta);
    if (kind == TypeKind::GeneratorType) stack[i] = IValue();
  }
  return Call(op_, std::move(stack));
}

std::optional<c10::OperatorHandle> AtenCall::OutVariant(size_t count) const {
  const c10::FunctionSchema& schema = op_.schema();
  // Structured operators alone: out overloads written by hand may expect other sizes
  // (binary_cross_entropy's does).
  if (!op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
    return std::nullopt;
  if (schema.returns().size() != count) return std::nullopt;
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->kind() != TypeKind::TensorType) return std::nullopt;
  }
  const auto fits = [&](const c10::FunctionSchema& other) {
    if (other.arguments().size() != schema.arguments().size() + count) return false;
    for (size_t i = 0; i < other.arguments().size(); ++i) {
      const c10::Argument& argument = other.arguments()[i];
      if (i >= schema.arguments().size()) {
        if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite()) return false;
      } else if (argument.alias_info() != nullptr ||
                 argument.name() != schema.arguments()[i].name() ||
                 *argument.real_type() != *schema.arguments()[i].real_type()) {
        return false;
      }
    }
    return true;
  };
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != schema.name() || name.overload_name.find("out") == std::string::npos) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && fits(op->schema())) return op;
  }
  return std::nullopt;
}

std::vector<at::Tensor> AtenCall::Call(const c10::OperatorHandle& op, std::vector<IValue> stack) {
  op.callBoxed(&stack);
  std::vector<at::Tensor> out;
  for (IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& element : value.toTensorVector()) out.push_back(element);
    } else if (value.isTensor() || value.isNone()) {
      out.push_back(value.isNone() ? at::Tensor() : std::move(value).toTensor());
    } else if (value.isSymInt()) {
      out.push_back(at::scalar_tensor(value.toSymInt().expect_int(), at::kLong));
    } else {
      const at::Scalar number = value.toScalar();
      out.push_back(at::scalar_tensor(number, number.type()));
    }
  }
  return out;
}

}  // namespace caesura::torch
