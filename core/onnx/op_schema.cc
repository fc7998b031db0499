// SPDX-License-Identifier: Apache-2.0
#include "core/graph/op_schema.h"

#include <algorithm>
#include <climits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <tuple>

#include "core/graph/op_def.h"
#include "core/onnx/onnx_proto.h"
#include "onnx/defs/schema.h"

namespace caesura {
namespace {

using onnx::OpSchemaRegistry;

DTypeSet TensorDTypes(const onnx::DataTypeSet& types) {
  DTypeSet out;
  for (const std::string* type : types) {
    const onnx::TypeProto& proto = onnx::Utils::DataTypeUtils::ToTypeProto(type);
    if (proto.value_case() != onnx::TypeProto::kTensorType) continue;
    Result<DType> dtype = DTypeFromProto(proto.tensor_type().elem_type());
    if (dtype.ok()) out = out | DTypeSet{*dtype};
  }
  return out;
}

OpSchema::Formal ToFormal(const onnx::OpSchema::FormalParameter& formal) {
  OpSchema::Formal out;
  out.name = formal.GetName();
  out.type = formal.GetTypeStr();
  out.dtypes = TensorDTypes(formal.GetTypes());
  for (const std::string* type : formal.GetTypes()) out.types.push_back(*type);
  std::sort(out.types.begin(), out.types.end());
  out.is_optional = formal.GetOption() == onnx::OpSchema::Optional;
  out.is_variadic = formal.GetOption() == onnx::OpSchema::Variadic;
  out.is_homogeneous = formal.GetIsHomogeneous();
  out.min_arity = formal.GetMinArity();
  out.differentiability =
      static_cast<OpSchema::Differentiability>(formal.GetDifferentiationCategory());
  return out;
}

OpSchema::AttributeFact ToFact(const onnx::OpSchema::Attribute& attribute) {
  OpSchema::AttributeFact out{attribute.name, attribute.required, std::nullopt};
  if (attribute.default_value.type() == onnx::AttributeProto::UNDEFINED) return out;
  Result<Attribute> value = AttributeFromProto(attribute.default_value);
  if (value.ok()) out.default_value = *std::move(value);
  return out;
}

std::unique_ptr<const OpSchema> ToOpSchema(const onnx::OpSchema& schema) {
  auto out = std::make_unique<OpSchema>();
  out->op_type = schema.Name();
  out->domain = schema.domain();
  out->since_version = schema.SinceVersion();
  out->is_deprecated = schema.Deprecated();
  out->has_function = schema.HasFunction() || schema.HasContextDependentFunction();
  out->determinism = static_cast<OpSchema::Determinism>(schema.GetNodeDeterminism());
  out->min_inputs = schema.min_input();
  out->max_inputs = schema.max_input();
  out->min_outputs = schema.min_output();
  out->max_outputs = schema.max_output();
  for (const auto& formal : schema.inputs()) out->inputs.push_back(ToFormal(formal));
  for (const auto& formal : schema.outputs()) out->outputs.push_back(ToFormal(formal));
  for (const auto& [name, attribute] : schema.attributes())
    out->attributes.push_back(ToFact(attribute));
  std::sort(out->attributes.begin(), out->attributes.end(),
            [](auto& a, auto& b) { return a.name < b.name; });
  return out;
}

// The formals of an op of caesura's are all of one open type.
std::unique_ptr<const OpSchema> ToOpSchema(const OpDef& op) {
  auto out = std::make_unique<OpSchema>();
  out->op_type = op.op_type;
  out->domain = op.domain;
  out->since_version = 1;
  out->determinism = op.is_deterministic ? OpSchema::Determinism::kDeterministic
                                         : OpSchema::Determinism::kNonDeterministic;
  out->min_inputs = op.min_inputs;
  out->max_inputs = op.max_inputs;
  out->min_outputs = op.min_outputs;
  out->max_outputs = op.max_outputs;
  return out;
}

bool IsOnnxDomain(const std::string& domain) {
  return OpSchemaRegistry::DomainToVersionRange::Instance().Map().count(domain) > 0;
}

// ONNX's schemas as they are asked for.
const OpSchema* OfOnnx(const onnx::OpSchema& schema) {
  using Key = std::tuple<std::string, std::string, int>;  // domain, op type, since_version
  static auto* const mutex = new std::shared_mutex;
  static auto* const schemas = new std::map<Key, std::unique_ptr<const OpSchema>>;
  const Key key{schema.domain(), schema.Name(), schema.SinceVersion()};
  {
    std::shared_lock lock(*mutex);
    auto it = schemas->find(key);
    if (it != schemas->end()) return it->second.get();
  }
  std::unique_ptr<const OpSchema> made = ToOpSchema(schema);
  std::unique_lock lock(*mutex);
  return schemas->try_emplace(key, std::move(made)).first->second.get();
}

// The schemas of caesura's ops, by domain and op type.
using OwnSchemas = std::map<std::pair<std::string, std::string>, std::unique_ptr<const OpSchema>>;
const OwnSchemas& OwnOpSchemas() {
  static const auto* schemas = [] {
    auto* out = new OwnSchemas;
    for (const OpDef& op : AllOpDefs()) {
      if (!IsOnnxDomain(op.domain)) (*out)[{op.domain, op.op_type}] = ToOpSchema(op);
    }
    return out;
  }();
  return *schemas;
}

const OpSchema* FindOwnSchema(const std::string& op_type, const std::string& domain) {
  const auto found = OwnOpSchemas().find({domain, op_type});
  return found == OwnOpSchemas().end() ? nullptr : found->second.get();
}

}  // namespace

const OpSchema::Formal* OpSchema::FormalAt(const std::vector<Formal>& formals, int i) {
  if (i >= 0 && i < static_cast<int>(formals.size())) return &formals[i];
  return !formals.empty() && formals.back().is_variadic ? &formals.back() : nullptr;
}

const OpSchema::AttributeFact* OpSchema::attribute(const std::string& name) const {
  for (const AttributeFact& fact : attributes) {
    if (fact.name == name) return &fact;
  }
  return nullptr;
}

const OpSchema* FindOpSchema(const std::string& op_type, const std::string& domain, int version) {
  if (!IsOnnxDomain(domain)) return FindOwnSchema(op_type, domain);
  const onnx::OpSchema* schema =
      OpSchemaRegistry::Schema(op_type, version > 0 ? version : INT_MAX, domain);
  return schema == nullptr ? nullptr : OfOnnx(*schema);
}

const OpSchema* FindOpSchema(const Node& node) {
  return FindOpSchema(node.op_type(), node.domain(), node.since_version());
}

int SinceVersion(const std::string& op_type, const std::string& domain, int opset) {
  if (!IsOnnxDomain(domain)) return FindOwnSchema(op_type, domain) != nullptr ? 1 : 0;
  const onnx::OpSchema* schema =
      OpSchemaRegistry::Schema(op_type, opset > 0 ? opset : INT_MAX, domain);
  return schema == nullptr ? 0 : schema->SinceVersion();
}

int LatestOpset(const std::string& domain) {
  const auto& ranges = OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  auto it = ranges.find(domain);
  if (it != ranges.end()) return it->second.second;
  const auto first = OwnOpSchemas().lower_bound({domain, ""});
  return first != OwnOpSchemas().end() && first->first.first == domain ? 1 : 0;
}

bool IsClosedDomain(const std::string& domain) { return IsOnnxDomain(domain); }

std::vector<const OpSchema*> AllOpSchemas() {
  std::set<std::pair<std::string, std::string>> names;
  for (const onnx::OpSchema& schema : OpSchemaRegistry::get_all_schemas())
    names.emplace(schema.domain(), schema.Name());
  std::vector<const OpSchema*> out;
  for (const auto& [domain, name] : names) {
    const OpSchema* schema = FindOpSchema(name, domain);
    if (schema != nullptr && !schema->is_deprecated) out.push_back(schema);
  }
  for (const auto& [name, schema] : OwnOpSchemas()) out.push_back(schema.get());
  return out;
}

}  // namespace caesura
