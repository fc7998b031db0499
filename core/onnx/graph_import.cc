// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/graph_import.h"

#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/graph/attribute_limits.h"
#include "core/graph/op_schema.h"
#include "core/onnx/tensor_bank.h"

namespace caesura {

// Names that are visible at some place, and what the nodes there are read by.
struct GraphImporter::Scope {
  const Scope* parent = nullptr;  // null in functions: they see nothing outside
  const OpsetMap* opsets = nullptr;
  // In a function: what its attribute references stand for, and the scope that each was written in.
  const std::map<std::string, std::pair<const onnx::AttributeProto*, Scope*>>* attributes = nullptr;
  std::string prefix, source,
      provider;  // the latter two of the call that nodes of a function stand for
  int depth = 0;
  std::unordered_map<std::string, Value*> values;  // null: an absent optional input
  const Graph* graph = nullptr;                    // where names are looked up that no scope has
  std::unordered_map<std::string, const onnx::TypeProto*> types;

  // Null and *found false when the name is not visible.
  Value* Find(const std::string& name, bool* found) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
      auto it = scope->values.find(name);
      if (it == scope->values.end()) continue;
      *found = true;
      return it->second;
    }
    const Scope* top = this;
    while (top->parent != nullptr) top = top->parent;
    Value* value = top->graph == nullptr ? nullptr : top->graph->Resolve(name);
    *found = value != nullptr;
    return value;
  }

  ValueType DeclaredType(const std::string& name) const {
    auto it = types.find(name);
    return it == types.end() ? ValueType{} : TypeFromProto(*it->second);
  }
};

namespace {

std::string NodeName(const onnx::NodeProto& node) {
  return "[" + node.op_type() + " '" + node.name() + "']";
}

Phase PhaseFromName(const std::string& name) {
  if (name == "backward") return Phase::kBackward;
  return name == "optimizer" ? Phase::kOptimizer : Phase::kForward;
}

// The provider that the node is pinned to; empty: none.
std::string ProviderOf(const onnx::NodeProto& proto) {
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == kProviderKey) return entry.value();
  }
  return "";
}

void ReadMetadata(const onnx::NodeProto& proto, const std::string& inherited_source,
                  const std::string& inherited_provider, Node* node) {
  const std::string source = NodeSource(proto), provider = ProviderOf(proto);
  node->set_source(source.empty() ? inherited_source : source);
  node->set_provider(provider.empty() ? inherited_provider : provider);
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == kPhaseKey) node->set_phase(PhaseFromName(entry.value()));
  }
}

}  // namespace

OpsetMap OpsetsFromProto(
    const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  OpsetMap out;
  for (const auto& import : imports)
    out[FoldDomain(import.domain())] = static_cast<int>(import.version());
  return out;
}

void GraphImporter::AddFunction(const onnx::FunctionProto& function) {
  functions_[{FoldDomain(function.domain()), function.name(), function.overload()}] = &function;
}

const onnx::FunctionProto* GraphImporter::FindFunction(const onnx::NodeProto& node) const {
  if (functions_.empty()) return nullptr;
  auto it = functions_.find({FoldDomain(node.domain()), node.op_type(), node.overload()});
  return it == functions_.end() ? nullptr : it->second;
}

Result<std::shared_ptr<Graph>> GraphImporter::Import(const onnx::GraphProto& proto,
                                                     const OpsetMap& opsets,
                                                     bool initializers_are_inputs) {
  auto graph = std::make_shared<Graph>(proto.name().empty() ? "graph" : proto.name());
  Scope scope;
  scope.opsets = &opsets;
  RETURN_IF_ERROR(FillGraph(proto, graph.get(), scope, initializers_are_inputs));
  return graph;
}

Status GraphImporter::FillGraph(const onnx::GraphProto& proto, Graph* graph, Scope& scope,
                                bool initializers_are_inputs) {
  for (const auto& info : proto.value_info()) scope.types[info.name()] = &info.type();
  for (const auto& info : proto.output()) {
    if (info.has_type()) scope.types[info.name()] = &info.type();
  }
  RETURN_IF_ERROR(DeclareEnds(proto, graph, scope, initializers_are_inputs));
  DeclareOutputs(proto.node(), graph, scope);
  RETURN_IF_ERROR(ImportNodes(proto.node(), graph, scope));
  for (const auto& info : proto.output()) {
    bool found = false;
    Value* value = scope.Find(info.name(), &found);
    if (value == nullptr)
      return InvalidModel("graph output '" + info.name() + "' is made by nothing");
    graph->AddOutput(value);
  }
  return {};
}

Status GraphImporter::DeclareEnds(const onnx::GraphProto& proto, Graph* graph, Scope& scope,
                                  bool initializers_are_inputs) {
  std::unordered_set<std::string> dropped;
  if (initializers_are_inputs) {
    for (const auto& tensor : proto.initializer()) dropped.insert(tensor.name());
  }
  for (const auto& info : proto.input()) {
    if (dropped.count(info.name())) continue;
    Value* value = graph->AddInput(scope.prefix + info.name(), TypeFromProto(info.type()));
    scope.values[info.name()] = value;
  }
  for (const auto& tensor : proto.initializer()) {
    ASSIGN_OR_RETURN(Tensor loaded, ImportTensor(tensor));
    auto it = scope.values.find(tensor.name());
    if (it != scope.values.end()) {
      if (it->second->type().dtype != DType::kUndefined && it->second->dtype() != loaded.dtype()) {
        return InvalidModel("input '" + tensor.name() + "' is " + it->second->type().ToString() +
                            ", but its initializer is " + DTypeName(loaded.dtype()) +
                            loaded.shape().ToString());
      }
      graph->SetInitializer(it->second, std::move(loaded));
    } else {
      scope.values[tensor.name()] =
          graph->AddInitializer(scope.prefix + tensor.name(), std::move(loaded));
    }
  }
  return {};
}

void GraphImporter::DeclareOutputs(const Nodes& nodes, Graph* graph, Scope& scope) {
  for (const auto& node : nodes) {
    for (const std::string& name : node.output()) {
      if (name.empty() || scope.values.count(name)) continue;  // bound already: a function's output
      scope.values[name] = graph->AddValue(scope.prefix + name, scope.DeclaredType(name));
    }
  }
}

Status GraphImporter::ImportNodes(const Nodes& nodes, Graph* graph, Scope& scope) {
  for (const auto& node : nodes) {
    if (++node_count_ > limits_.max_nodes) {
      return InvalidModel("the model has more than " + std::to_string(limits_.max_nodes) +
                          " nodes when its functions are expanded");
    }
    const onnx::FunctionProto* function = FindFunction(node);
    RETURN_IF_ERROR(function != nullptr ? InlineCall(node, *function, graph, scope)
                                        : ImportNode(node, graph, scope));
  }
  return {};
}

Status GraphImporter::ImportNode(const onnx::NodeProto& proto, Graph* graph, Scope& scope) {
  std::vector<Value*> inputs, outputs;
  for (const std::string& name : proto.input()) {
    bool found = true;
    inputs.push_back(name.empty() ? nullptr : scope.Find(name, &found));
    if (!found) return InvalidModel(NodeName(proto) + " reads '" + name + "', which nothing makes");
  }
  while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
  for (const std::string& name : proto.output())
    outputs.push_back(name.empty() ? nullptr : scope.values.at(name));
  for (const Value* output : outputs) {
    if (output != nullptr && (output->producer() != nullptr || output->graph() != graph)) {
      return InvalidModel(NodeName(proto) + " writes '" + output->name() +
                          "', which is made elsewhere too");
    }
  }
  ASSIGN_OR_RETURN(AttributeMap attributes, ImportAttributes(proto, graph, scope));
  const std::string domain = FoldDomain(proto.domain());
  const std::string fault = AttributeFault(domain, attributes);
  if (!fault.empty()) return InvalidModel(NodeName(proto) + " " + fault);
  const std::string own_name =
      proto.name().empty() && !scope.prefix.empty() ? proto.op_type() : proto.name();
  const std::string name = own_name.empty() ? own_name : scope.prefix + own_name;
  Node* node =
      graph->AddNode(proto.op_type(), inputs, outputs, std::move(attributes), domain, name);
  auto opset = scope.opsets->find(domain);
  node->set_since_version(
      SinceVersion(proto.op_type(), domain, opset == scope.opsets->end() ? 0 : opset->second));
  ReadMetadata(proto, scope.source, scope.provider, node);
  return {};
}

Result<AttributeMap> GraphImporter::ImportAttributes(const onnx::NodeProto& proto, Graph* graph,
                                                     Scope& scope) {
  AttributeMap out;
  for (const auto& attribute : proto.attribute()) {
    const onnx::AttributeProto* actual = &attribute;
    Scope* written_in = &scope;
    if (!attribute.ref_attr_name().empty()) {
      if (scope.attributes == nullptr) {
        return InvalidModel(NodeName(proto) + " attribute '" + attribute.name() +
                            "' refers to a function's attribute");
      }
      auto it = scope.attributes->find(attribute.ref_attr_name());
      if (it == scope.attributes->end()) continue;  // left to the op's default
      std::tie(actual, written_in) = it->second;
    }
    Result<Attribute> value = ImportAttribute(*actual, graph, *written_in);
    if (!value.ok()) return value.status().WithPrefix(NodeName(proto) + " ");
    out[attribute.name()] = *std::move(value);
  }
  return out;
}

Result<Attribute> GraphImporter::ImportAttribute(const onnx::AttributeProto& proto, Graph* graph,
                                                 Scope& scope) {
  switch (proto.type()) {
    case onnx::AttributeProto::GRAPH: {
      ASSIGN_OR_RETURN(std::shared_ptr<Graph> body, ImportSubgraph(proto.g(), graph, scope));
      return Attribute(std::move(body));
    }
    case onnx::AttributeProto::GRAPHS: {
      std::vector<std::shared_ptr<Graph>> bodies;
      for (const auto& one : proto.graphs()) {
        ASSIGN_OR_RETURN(std::shared_ptr<Graph> body, ImportSubgraph(one, graph, scope));
        bodies.push_back(std::move(body));
      }
      return Attribute(std::move(bodies));
    }
    case onnx::AttributeProto::TENSOR: {
      ASSIGN_OR_RETURN(Tensor tensor, ImportTensor(proto.t()));
      return Attribute(std::move(tensor));
    }
    case onnx::AttributeProto::TENSORS: {
      std::vector<Tensor> tensors;
      for (const auto& one : proto.tensors()) {
        ASSIGN_OR_RETURN(Tensor tensor, ImportTensor(one));
        tensors.push_back(std::move(tensor));
      }
      return Attribute(std::move(tensors));
    }
    default: return AttributeFromProto(proto);
  }
}

Result<std::shared_ptr<Graph>> GraphImporter::ImportSubgraph(const onnx::GraphProto& proto,
                                                             Graph* parent, Scope& scope) {
  if (scope.depth + 1 > limits_.max_depth) {
    return InvalidModel("graphs and functions are nested deeper than " +
                        std::to_string(limits_.max_depth));
  }
  auto graph = std::make_shared<Graph>(proto.name().empty() ? "body" : proto.name(), parent);
  Scope inner;
  inner.parent = &scope;
  inner.opsets = scope.opsets;
  inner.attributes = scope.attributes;
  inner.prefix = scope.prefix;
  inner.source = scope.source;
  inner.provider = scope.provider;
  inner.depth = scope.depth + 1;
  RETURN_IF_ERROR(FillGraph(proto, graph.get(), inner, false));
  return graph;
}

Status GraphImporter::InlineCall(const onnx::NodeProto& call, const onnx::FunctionProto& function,
                                 Graph* graph, Scope& scope) {
  if (scope.depth + 1 > limits_.max_depth) {
    return InvalidModel("graphs and functions are nested deeper than " +
                        std::to_string(limits_.max_depth));
  }
  const OpsetMap opsets = OpsetsFromProto(function.opset_import());
  std::map<std::string, std::pair<const onnx::AttributeProto*, Scope*>> attributes;
  for (const auto& attribute : function.attribute_proto())
    attributes[attribute.name()] = {&attribute, &scope};
  for (const auto& attribute : call.attribute()) {
    if (attribute.ref_attr_name().empty()) {
      attributes[attribute.name()] = {&attribute, &scope};
    } else if (scope.attributes != nullptr && scope.attributes->count(attribute.ref_attr_name())) {
      attributes[attribute.name()] = scope.attributes->at(attribute.ref_attr_name());
    }
  }
  Scope inner;
  inner.opsets = &opsets;
  inner.attributes = &attributes;
  inner.prefix = scope.prefix + (call.name().empty() ? call.op_type() : call.name()) + "/";
  inner.source = NodeSource(call).empty() ? scope.source : NodeSource(call);
  inner.provider = ProviderOf(call).empty() ? scope.provider : ProviderOf(call);
  inner.depth = scope.depth + 1;
  if (call.input_size() > function.input_size() || call.output_size() > function.output_size()) {
    return InvalidModel(NodeName(call) + " has more inputs or outputs than its function");
  }
  for (int i = 0; i < function.input_size(); ++i) {
    bool found = true;
    const bool present = i < call.input_size() && !call.input(i).empty();
    inner.values[function.input(i)] = present ? scope.Find(call.input(i), &found) : nullptr;
    if (!found)
      return InvalidModel(NodeName(call) + " reads '" + call.input(i) + "', which nothing makes");
  }
  std::vector<Value*> outputs;
  for (const std::string& name : call.output())
    outputs.push_back(name.empty() ? nullptr : scope.values.at(name));
  return ImportFunctionNodes(function, outputs, graph, inner);
}

Status GraphImporter::ImportFunctionNodes(const onnx::FunctionProto& function,
                                          const std::vector<Value*>& outputs, Graph* graph,
                                          Scope& scope) {
  std::unordered_set<std::string> written;
  for (const auto& node : function.node())
    written.insert(node.output().begin(), node.output().end());
  // An output that the body does not write itself, or lists twice, is copied from where its value
  // is.
  std::vector<std::pair<std::string, Value*>> copied;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& formal = function.output(static_cast<int>(i));
    if (outputs[i] == nullptr) continue;
    if (outputs[i]->producer() != nullptr || outputs[i]->graph() != graph) {
      return InvalidModel("'" + outputs[i]->name() + "' is made more than once");
    }
    if (written.count(formal) && !scope.values.count(formal)) {
      scope.values[formal] = outputs[i];
    } else {
      copied.emplace_back(formal, outputs[i]);
    }
  }
  DeclareOutputs(function.node(), graph, scope);
  RETURN_IF_ERROR(ImportNodes(function.node(), graph, scope));
  for (const auto& [formal, output] : copied) {
    bool found = false;
    Value* value = scope.Find(formal, &found);
    if (value == nullptr)
      return InvalidModel("function " + function.name() + " does not make its output '" + formal +
                          "'");
    Node* identity =
        graph->AddNode("Identity", {value}, {output}, {}, "", scope.prefix + formal + "_copy");
    identity->set_since_version(SinceVersion("Identity"));
    identity->set_source(scope.source);
    identity->set_provider(scope.provider);
  }
  return {};
}

Status GraphImporter::ImportBody(const onnx::FunctionProto& function, const Call& call,
                                 Graph* graph) {
  const OpsetMap opsets = OpsetsFromProto(function.opset_import());
  std::map<std::string, std::pair<const onnx::AttributeProto*, Scope*>> attributes;
  Scope scope;
  for (const auto& attribute : call.attributes) attributes[attribute.name()] = {&attribute, &scope};
  scope.opsets = &opsets;
  scope.attributes = &attributes;
  scope.graph = graph;  // bodies among the attributes read the values around the call
  scope.prefix = call.prefix;
  for (int i = 0; i < function.input_size(); ++i) {
    scope.values[function.input(i)] =
        i < static_cast<int>(call.inputs.size()) ? call.inputs[i] : nullptr;
  }
  return ImportFunctionNodes(function, call.outputs, graph, scope);
}

Result<Tensor> GraphImporter::ImportTensor(const onnx::TensorProto& proto) const {
  const int64_t index = BankIndex(proto);
  if (index < 0) return TensorFromProto(proto);
  if (tensors_ == nullptr || index >= static_cast<int64_t>(tensors_->size())) {
    return InvalidModel("tensor '" + proto.name() + "' is a segment of another");
  }
  return (*tensors_)[static_cast<size_t>(index)];
}

}  // namespace caesura
