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

#include "core/graph/contrib_schemas.h"
#include "core/graph/graph.h"
#include "core/load/onnx_proto.h"
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

// A spec's formals are all of one open type.
std::unique_ptr<const OpSchema> ToOpSchema(const OpSchemaSpec& spec) {
  auto out = std::make_unique<OpSchema>();
  out->op_type = spec.op_type;
  out->domain = spec.domain;
  out->since_version = 1;
  out->determinism = spec.is_deterministic ? OpSchema::Determinism::kDeterministic
                                           : OpSchema::Determinism::kNonDeterministic;
  out->min_inputs = spec.min_inputs;
  out->max_inputs = spec.max_inputs;
  out->min_outputs = spec.min_outputs;
  out->max_outputs = spec.max_outputs;
  return out;
}

// Schemas as they are asked for, and the specs of other domains.
class SchemaTable {
 public:
  explicit SchemaTable(const std::vector<OpSchemaSpec>& specs) {
    for (const OpSchemaSpec& spec : specs)
      static_cast<void>(Register(spec));  // distinct: none is refused
  }
  static SchemaTable& Instance() {
    static auto* table = new SchemaTable(ContribOpSchemas());
    return *table;
  }

  const OpSchema* Find(const onnx::OpSchema& schema) {
    const Key key{schema.domain(), schema.Name(), schema.SinceVersion()};
    {
      std::shared_lock lock(mutex_);
      auto it = schemas_.find(key);
      if (it != schemas_.end()) return it->second.get();
    }
    std::unique_ptr<const OpSchema> made = ToOpSchema(schema);
    std::unique_lock lock(mutex_);
    return schemas_.try_emplace(key, std::move(made)).first->second.get();
  }

  const OpSchema* FindRegistered(const std::string& op_type, const std::string& domain) {
    std::shared_lock lock(mutex_);
    auto it = specs_.find({domain, op_type});
    return it == specs_.end() ? nullptr : schemas_.at({domain, op_type, 1}).get();
  }

  const OpSchemaSpec* FindSpec(const std::string& op_type, const std::string& domain) {
    std::shared_lock lock(mutex_);
    auto it = specs_.find({domain, op_type});
    return it == specs_.end() ? nullptr : &it->second;
  }

  Status Register(const OpSchemaSpec& spec) {
    std::unique_lock lock(mutex_);
    auto [it, fresh] = specs_.try_emplace({spec.domain, spec.op_type}, spec);
    if (fresh) {
      schemas_[{spec.domain, spec.op_type, 1}] = ToOpSchema(spec);
      return {};
    }
    const OpSchemaSpec& old = it->second;
    const bool same = old.min_inputs == spec.min_inputs && old.max_inputs == spec.max_inputs &&
                      old.min_outputs == spec.min_outputs && old.max_outputs == spec.max_outputs;
    if (same) return {};
    return InvalidArgument("op " + spec.domain + "::" + spec.op_type +
                           " is registered with other counts");
  }

  bool HasDomain(const std::string& domain) {
    std::shared_lock lock(mutex_);
    auto it = specs_.lower_bound({domain, ""});
    return it != specs_.end() && it->first.first == domain;
  }

  void ListRegistered(std::vector<const OpSchema*>* out) {
    std::shared_lock lock(mutex_);
    for (const auto& [key, spec] : specs_)
      out->push_back(schemas_.at({key.first, key.second, 1}).get());
  }

 private:
  using Key = std::tuple<std::string, std::string, int>;  // domain, op type, since_version
  std::shared_mutex mutex_;
  std::map<Key, std::unique_ptr<const OpSchema>> schemas_;
  std::map<std::pair<std::string, std::string>, OpSchemaSpec> specs_;
};

bool IsOnnxDomain(const std::string& domain) {
  return OpSchemaRegistry::DomainToVersionRange::Instance().Map().count(domain) > 0;
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
  if (!IsOnnxDomain(domain)) return SchemaTable::Instance().FindRegistered(op_type, domain);
  const onnx::OpSchema* schema =
      OpSchemaRegistry::Schema(op_type, version > 0 ? version : INT_MAX, domain);
  return schema == nullptr ? nullptr : SchemaTable::Instance().Find(*schema);
}

const OpSchema* FindOpSchema(const Node& node) {
  return FindOpSchema(node.op_type(), node.domain(), node.since_version());
}

int SinceVersion(const std::string& op_type, const std::string& domain, int opset) {
  if (!IsOnnxDomain(domain))
    return SchemaTable::Instance().FindRegistered(op_type, domain) != nullptr ? 1 : 0;
  const onnx::OpSchema* schema =
      OpSchemaRegistry::Schema(op_type, opset > 0 ? opset : INT_MAX, domain);
  return schema == nullptr ? 0 : schema->SinceVersion();
}

int LatestOpset(const std::string& domain) {
  const auto& ranges = OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  auto it = ranges.find(domain);
  if (it != ranges.end()) return it->second.second;
  return SchemaTable::Instance().HasDomain(domain) ? 1 : 0;
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
  SchemaTable::Instance().ListRegistered(&out);
  return out;
}

Status RegisterOpSchemas(const std::vector<OpSchemaSpec>& specs) {
  for (const OpSchemaSpec& spec : specs) {
    if (IsOnnxDomain(spec.domain)) {
      return InvalidArgument("op " + spec.op_type + " cannot be registered in ONNX's domain '" +
                             spec.domain + "'");
    }
    if (Status status = SchemaTable::Instance().Register(spec); !status.ok()) return status;
  }
  return {};
}

const OpSchemaSpec* FindOpSchemaSpec(const std::string& op_type, const std::string& domain) {
  return SchemaTable::Instance().FindSpec(op_type, domain);
}

const OpSchemaSpec* FindOpSchemaSpec(const Node& node) {
  const OpSchemaSet* own = node.graph() == nullptr ? nullptr : node.graph()->op_schemas().get();
  const OpSchemaSpec* found =
      own == nullptr ? nullptr : own->Find(node.op_type(), node.domain(), node.since_version());
  return found != nullptr ? found : FindOpSchemaSpec(node.op_type(), node.domain());
}

Status OpSchemaSet::Add(OpSchemaSpec spec) {
  const std::string name = "op " + spec.domain + "::" + spec.op_type;
  if (IsOnnxDomain(spec.domain))
    return InvalidArgument(name + " cannot be added to ONNX's domain '" + spec.domain + "'");
  if (FindOpSchemaSpec(spec.op_type, spec.domain) != nullptr)
    return InvalidArgument(name + " is one of caesura's own");
  const int version = spec.since_version;
  if (version < 1)
    return InvalidArgument(name + ": versions count from 1, got " + std::to_string(version));
  const bool fresh = specs_[{spec.domain, spec.op_type}].emplace(version, std::move(spec)).second;
  return fresh
             ? Status()
             : InvalidArgument(name + " of version " + std::to_string(version) + " is added twice");
}

const OpSchemaSpec* OpSchemaSet::Find(const std::string& op_type, const std::string& domain,
                                      int version) const {
  auto op = specs_.find({domain, op_type});
  if (op == specs_.end()) return nullptr;
  auto behind = version == 0 ? op->second.end() : op->second.upper_bound(version);
  return behind == op->second.begin() ? nullptr : &std::prev(behind)->second;
}

bool OpSchemaSet::HasDomain(const std::string& domain) const {
  auto it = specs_.lower_bound({domain, ""});
  return it != specs_.end() && it->first.first == domain;
}

}  // namespace caesura
