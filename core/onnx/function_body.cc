// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/function_body.h"

#include <algorithm>
#include <climits>
#include <new>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/inference/type_inference.h"
#include "core/onnx/graph_export.h"
#include "core/onnx/graph_import.h"
#include "core/onnx/opsets/opset_normalization.h"
#include "onnx/defs/schema.h"

namespace caesura {
namespace {

// As onnx's own context, but that an input whose type is not known is no absent one: builders
// follow the pointer.
class BodyContext : public onnx::FunctionBodyBuildContextImpl {
 public:
  using FunctionBodyBuildContextImpl::FunctionBodyBuildContextImpl;
  const onnx::TypeProto* getInputType(int i) const override {
    static const onnx::TypeProto kUnknown;
    const onnx::TypeProto* type = FunctionBodyBuildContextImpl::getInputType(i);
    return type == nullptr && hasInput(i) ? &kUnknown : type;
  }
};

// The function of `schema` for this node; false when there is none.
bool BuildBody(const onnx::OpSchema& schema, const Node& node, const onnx::NodeProto& proto,
               onnx::FunctionProto* out) {
  if (schema.HasFunction()) {
    // Several bodies differ in the opset that they are written in: the newest.
    *out = *schema.GetFunction();
    return true;
  }
  if (!schema.HasContextDependentFunction()) return false;
  std::vector<onnx::TypeProto> types;
  for (const Value* input : node.inputs()) {
    TypeToProto(input == nullptr ? ValueType() : input->type(), &types.emplace_back());
  }
  const BodyContext context(proto, types);
  return schema.BuildContextDependentFunction(
      context, *out, schema.context_dependent_function_opset_versions().back());
}

// The node's attributes, and its schema's defaults for the others.
std::vector<onnx::AttributeProto> BoundAttributes(const onnx::OpSchema& schema,
                                                  const onnx::NodeProto& proto) {
  std::vector<onnx::AttributeProto> out(proto.attribute().begin(), proto.attribute().end());
  for (const auto& [name, attribute] : schema.attributes()) {
    const bool is_set = std::any_of(out.begin(), out.end(),
                                    [&, &n = name](const auto& a) { return a.name() == n; });
    if (is_set || attribute.default_value.type() == onnx::AttributeProto::UNDEFINED) continue;
    out.push_back(attribute.default_value);
    out.back().set_name(name);
  }
  return out;
}

// Removes nodes of the body whose outputs nothing wants (most bodies compute all outputs of the op,
// wanted or not).
std::vector<Node*> DropUnread(Graph& graph, const std::vector<Node*>& nodes) {
  std::unordered_set<const Value*> exported(graph.outputs().begin(), graph.outputs().end());
  for (const Node* node : nodes) {
    for (const Value* value : Graph::ImplicitInputs(*node)) exported.insert(value);
  }
  std::vector<Node*> kept;
  std::unordered_set<const Node*> dropped;
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    const auto& outputs = (*it)->outputs();
    const bool is_wanted = std::any_of(outputs.begin(), outputs.end(), [&](const Value* v) {
      return v != nullptr && (exported.count(v) || !v->uses().empty());
    });
    if (is_wanted) {
      kept.push_back(*it);
    } else {
      (*it)->TruncateInputs(0);
      dropped.insert(*it);
    }
  }
  if (!dropped.empty()) graph.RemoveNodes(dropped);
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace

bool HasFunctionBody(const Node& node) {
  const onnx::OpSchema* schema = OnnxSchema(node);
  return schema != nullptr && (schema->HasFunction() || schema->HasContextDependentFunction());
}

Result<bool> ExpandFunctionBody(Graph& graph, Node* node) {
  const onnx::OpSchema* schema = OnnxSchema(*node);
  if (schema == nullptr) return false;
  ArenaMessage<onnx::NodeProto> proto;
  RETURN_IF_ERROR(NodeToProto(*node, proto.get()));
  ArenaMessage<onnx::FunctionProto> body;
  try {
    if (!BuildBody(*schema, *node, *proto, body.get())) return false;
  } catch (const std::bad_alloc&) {
    throw;  // not the node's fault
  } catch (const std::exception& e) {
    return Unsupported(node->Label() + " has no function body for its inputs: " + e.what());
  }
  GraphImporter::Call call;
  call.inputs = node->inputs();
  call.attributes = BoundAttributes(*schema, *proto);
  call.prefix = node->name() + "/";
  call.outputs = graph.ReleaseOutputs(node);
  const size_t first = graph.nodes().size();
  GraphImporter importer({}, nullptr);
  Status status = importer.ImportBody(*body, call, &graph);
  if (!status.ok()) return status.WithPrefix(node->Label() + " function body: ");
  std::vector<Node*> fresh;
  for (size_t i = first; i < graph.nodes().size(); ++i) {
    fresh.push_back(graph.nodes()[i].get());
    fresh.back()->set_metadata(node->metadata());
  }
  graph.MoveTailBefore(first, node);
  graph.RemoveNode(node);
  RETURN_IF_ERROR(NormalizeNodes(graph, DropUnread(graph, fresh)));
  return true;
}

}  // namespace caesura
