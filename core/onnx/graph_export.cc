// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/graph_export.h"

#include "core/base/status_macros.h"
#include "core/onnx/graph_import.h"
#include "core/onnx/opsets/opset_choice.h"

namespace caesura {
namespace {

const char* PhaseName(Phase phase) { return phase == Phase::kBackward ? "backward" : "optimizer"; }

void AddMetadata(const char* key, const std::string& value, onnx::NodeProto* proto) {
  auto* entry = proto->add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

// Writes one graph; bodies get writers of their own that look names up here.
class GraphWriter {
 public:
  GraphWriter(const GraphWriter* parent, const ExportOptions& options)
      : parent_(parent), options_(options) {}

  Status Write(const Graph& graph, onnx::GraphProto* proto) {
    proto->set_name(graph.name().empty() ? "graph" : graph.name());
    for (const Value* value : graph.Values()) Declare(value);
    for (const Value* input : graph.inputs()) {
      if (parent_ == nullptr && !HasElementType(input->type()) && !options_.brief) {
        return Unsupported("graph input '" + input->name() + "' has no type that a file can say");
      }
      WriteInfo(input, NameOf(input), proto->add_input());
    }
    RETURN_IF_ERROR(WriteInitializers(graph, proto));
    for (const auto& node : graph.nodes()) RETURN_IF_ERROR(WriteNode(*node, proto->add_node()));
    RETURN_IF_ERROR(WriteOutputs(graph, proto));
    if (options_.brief) return {};
    for (const auto& node : graph.nodes()) {
      for (const Value* value : node->outputs()) {
        const bool is_inner = value != nullptr && !exported_.count(value);
        if (is_inner && HasElementType(value->type()))
          WriteInfo(value, NameOf(value), proto->add_value_info());
      }
    }
    return {};
  }

  Status WriteBodies(const Attribute& attribute, onnx::AttributeProto* proto) const {
    if (auto* one = std::get_if<std::shared_ptr<Graph>>(&attribute)) {
      proto->set_type(onnx::AttributeProto::GRAPH);
      return GraphWriter(this, options_).Write(**one, proto->mutable_g());
    }
    proto->set_type(onnx::AttributeProto::GRAPHS);
    for (const auto& body : std::get<std::vector<std::shared_ptr<Graph>>>(attribute)) {
      RETURN_IF_ERROR(GraphWriter(this, options_).Write(*body, proto->add_graphs()));
    }
    return {};
  }

 private:
  static bool HasElementType(const ValueType& type) {
    if (type.kind == ValueType::Kind::kTensor) return type.dtype != DType::kUndefined;
    return type.kind != ValueType::Kind::kUnknown && type.element != nullptr &&
           HasElementType(*type.element);
  }

  // Names are unique in a graph; a body must not reuse one of an outer graph.
  void Declare(const Value* value) {
    std::string name = value->name();
    for (int i = 1; IsTaken(name); ++i) name = value->name() + "__" + std::to_string(i);
    taken_.insert(name);
    names_[value] = name;
  }

  bool IsTaken(const std::string& name) const {
    return taken_.count(name) > 0 || (parent_ != nullptr && parent_->IsTaken(name));
  }

  std::string NameOf(const Value* value) const {
    if (value == nullptr) return "";
    auto it = names_.find(value);
    if (it != names_.end()) return it->second;
    return parent_ != nullptr ? parent_->NameOf(value) : value->name();
  }

  void WriteInfo(const Value* value, const std::string& name, onnx::ValueInfoProto* proto) const {
    proto->set_name(name);
    TypeToProto(value->type(), proto->mutable_type());
    if (value->type().kind == ValueType::Kind::kUnknown) proto->clear_type();
  }

  Status WriteInitializers(const Graph& graph, onnx::GraphProto* proto) {
    // In order of creation, so that the bytes do not depend on hashing.
    for (const Value* value : graph.Values()) {
      const Tensor* tensor = graph.Initializer(value);
      if (tensor == nullptr) continue;
      if (!tensor->device().is_host())
        return InvalidArgument("initializer '" + value->name() + "' is not on the host");
      onnx::TensorProto* out = proto->add_initializer();
      out->set_name(NameOf(value));
      if (options_.store_externally != nullptr && parent_ == nullptr &&
          tensor->dtype() != DType::kString) {
        TensorHeaderToProto(*tensor, out);
        ASSIGN_OR_RETURN(const bool stored, options_.store_externally(*tensor, out));
        if (stored) continue;
        out->clear_dims();
      }
      TensorToProto(*tensor, out);
    }
    return {};
  }

  Status WriteNode(const Node& node, onnx::NodeProto* proto) {
    for (const Value* input : node.inputs()) proto->add_input(NameOf(input));
    for (const Value* output : node.outputs()) proto->add_output(NameOf(output));
    proto->set_name(node.name());
    proto->set_op_type(node.op_type());
    if (!node.domain().empty()) proto->set_domain(node.domain());
    for (const auto& [name, attribute] : node.attributes()) {
      onnx::AttributeProto* out = proto->add_attribute();
      if (!AttributeToProto(name, attribute, out)) RETURN_IF_ERROR(WriteBodies(attribute, out));
    }
    if (options_.brief) return {};
    if (!node.source().empty()) AddMetadata(kSourceKey, node.source(), proto);
    if (node.phase() != Phase::kForward) AddMetadata(kPhaseKey, PhaseName(node.phase()), proto);
    if (!node.provider().empty()) AddMetadata(kProviderKey, node.provider(), proto);
    return {};
  }

  // Files want every output once, made in the graph itself: others go through an Identity.
  Status WriteOutputs(const Graph& graph, onnx::GraphProto* proto) {
    for (const Value* output : graph.outputs()) {
      if (output == nullptr)
        return Internal("graph '" + graph.name() + "' has an output that is null");
      std::string name = NameOf(output);
      if (output->graph() != &graph || exported_.count(output)) {
        onnx::NodeProto* copy = proto->add_node();
        copy->set_op_type("Identity");
        copy->add_input(name);
        std::string fresh = name + "_out";
        while (IsTaken(fresh)) fresh += "_";
        taken_.insert(fresh);
        copy->set_name(fresh);
        copy->add_output(fresh);
        name = fresh;
      } else {
        exported_.insert(output);
      }
      WriteInfo(output, name, proto->add_output());
    }
    return {};
  }

  const GraphWriter* parent_;
  const ExportOptions& options_;
  std::unordered_set<std::string> taken_;
  std::unordered_map<const Value*, std::string> names_;
  std::unordered_set<const Value*> exported_;
};

}  // namespace

Status AnyAttributeToProto(const std::string& name, const Attribute& attribute,
                           onnx::AttributeProto* proto) {
  if (AttributeToProto(name, attribute, proto)) return {};
  const ExportOptions options;
  return GraphWriter(nullptr, options).WriteBodies(attribute, proto);
}

Status NodeToProto(const Node& node, onnx::NodeProto* proto) {
  for (const Value* input : node.inputs()) proto->add_input(input == nullptr ? "" : input->name());
  for (const Value* output : node.outputs())
    proto->add_output(output == nullptr ? "" : output->name());
  proto->set_name(node.name());
  proto->set_op_type(node.op_type());
  if (!node.domain().empty()) proto->set_domain(node.domain());
  for (const auto& [name, attribute] : node.attributes()) {
    RETURN_IF_ERROR(AnyAttributeToProto(name, attribute, proto->add_attribute()));
  }
  return {};
}

Status ModelToProto(const Model& model, const ExportOptions& options, onnx::ModelProto* proto) {
  constexpr int kMetadataOfNodes = 10;  // the first IR version that has it
  ASSIGN_OR_RETURN(const auto opsets, ChooseOpsets(model, options.opset));
  for (const auto& [domain, version] : opsets) {
    auto* import = proto->add_opset_import();
    import->set_domain(domain);
    import->set_version(version);
  }
  proto->set_ir_version(
      ChooseIrVersion(model, opsets.at(""), options.opset == 0 ? kMetadataOfNodes : 0));
  if (!model.producer.empty()) proto->set_producer_name(model.producer);
  if (!model.producer_version.empty()) proto->set_producer_version(model.producer_version);
  if (!model.domain.empty()) proto->set_domain(model.domain);
  if (model.version != 0) proto->set_model_version(model.version);
  if (!model.description.empty()) proto->set_doc_string(model.description);
  if (!model.graph_description.empty())
    proto->mutable_graph()->set_doc_string(model.graph_description);
  for (const auto& [key, value] : model.metadata) {
    auto* entry = proto->add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  }
  return GraphWriter(nullptr, options).Write(*model.graph, proto->mutable_graph());
}

}  // namespace caesura
