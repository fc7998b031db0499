// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/graph_view.h"

#include "core/base/status_macros.h"
#include "core/graph/extract_subgraph.h"
#include "core/onnx/model_writer.h"
#include "core/plugin/plugin_library.h"

using caesura::Attribute;
using caesura::Status;

CaesuraGraph::CaesuraGraph(const caesura::Graph& shown, const std::vector<bool>& offered,
                           const std::unordered_set<std::string>& changing_names)
    : graph(shown), changing(changing_names) {
  auto list = [&](const std::vector<caesura::Value*>& given) -> const std::vector<int32_t>& {
    std::vector<int32_t>& out = lists_.emplace_back();
    for (const caesura::Value* value : given) out.push_back(ValueIndex(value));
    return out;
  };
  for (const caesura::Value* value : graph.inputs()) inputs.push_back(ValueIndex(value));
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const caesura::Node& n = node(i);
    const std::vector<int32_t>& reads = list(n.inputs());
    const std::vector<int32_t>& writes = list(n.outputs());
    nodes.push_back({n.op_type().c_str(), n.domain().c_str(), n.name().c_str(), n.since_version(),
                     offered.empty() || offered[i], reads.data(),
                     static_cast<int32_t>(reads.size()), static_cast<int32_t>(writes.size()),
                     writes.data()});
  }
  for (const caesura::Value* value : graph.outputs()) outputs.push_back(ValueIndex(value));
}

int32_t CaesuraGraph::ValueIndex(const caesura::Value* value) {
  if (value == nullptr) return -1;
  auto [it, fresh] = indices_.try_emplace(value, static_cast<int32_t>(values.size()));
  if (!fresh) return it->second;
  CaesuraValue out = {};
  out.name = value->name().c_str();
  const caesura::ValueType& type = value->type();
  out.tensor.rank = -1;
  if (type.is_tensor()) out.tensor.dtype = static_cast<int32_t>(type.dtype);
  if (type.is_tensor() && type.shape) {
    std::vector<int64_t>& dims = dims_.emplace_back();
    for (const caesura::Dim& dim : *type.shape) dims.push_back(dim.known() ? dim.value : -1);
    out.tensor.dims = dims.data();
    out.tensor.rank = static_cast<int32_t>(dims.size());
  }
  if (IsConstant(graph, value, changing) && type.dtype != caesura::DType::kString) {
    out.tensor.data = graph.Initializer(value)->raw();
  }
  values.push_back(out);
  return it->second;
}

Status CaesuraGraph::WriteAll() {
  if (!all_bytes.empty()) return {};
  caesura::Model model;
  model.graph = std::shared_ptr<caesura::Graph>(graph.Clone());
  ASSIGN_OR_RETURN(all_bytes, SerializeModel(model));
  return {};
}

Status CaesuraGraph::WriteNode(size_t i) {
  if (i >= nodes.size() || nodes[i].offered == 0)
    return caesura::InvalidArgument("node_onnx: no offered node");
  std::vector<caesura::Value*> writes;
  for (caesura::Value* value : node(i).outputs()) {
    if (value != nullptr) writes.push_back(value);
  }
  caesura::Model model;
  model.graph = ExtractSubgraph(graph, {&node(i)}, writes, changing).graph;
  ASSIGN_OR_RETURN(node_bytes, SerializeModel(model));
  return {};
}

namespace caesura {
namespace {

// An attribute of T, or of many of them, as a list.
template <typename T>
const T* ListOf(const CaesuraGraph* graph, size_t node, const char* name, size_t* count,
                std::unordered_map<std::string, std::vector<T>>& singles) {
  const Node& at = graph->node(node);
  const std::vector<T>* list = at.FindAttr<std::vector<T>>(name);
  if (const T* one = at.FindAttr<T>(name))
    list = &singles.try_emplace(at.name() + "\n" + name, 1, *one).first->second;
  *count = list == nullptr ? 0 : list->size();
  static const T kEmpty = 0;
  return list == nullptr ? nullptr : list->empty() ? &kEmpty : list->data();
}

// The bytes are made when they are asked for: what is logically const.
CaesuraGraph* Mutable(const CaesuraGraph* graph) { return const_cast<CaesuraGraph*>(graph); }

CaesuraStatus* Bytes(Status status, const std::string& from, const void** bytes, size_t* size) {
  *bytes = from.data();
  *size = from.size();
  return GiveStatus(std::move(status));
}

}  // namespace

void FillGraphFunctions(CaesuraProviderApi* api) {
  api->node_count = [](const CaesuraGraph* graph) { return graph->nodes.size(); };
  api->node = [](const CaesuraGraph* graph, size_t i) { return &graph->nodes[i]; };
  api->value_count = [](const CaesuraGraph* graph) { return graph->values.size(); };
  api->value = [](const CaesuraGraph* graph, size_t i) { return &graph->values[i]; };
  api->inputs = [](const CaesuraGraph* graph, size_t* count) -> const int32_t* {
    *count = graph->inputs.size();
    return graph->inputs.data();
  };
  api->outputs = [](const CaesuraGraph* graph, size_t* count) -> const int32_t* {
    *count = graph->outputs.size();
    return graph->outputs.data();
  };
  api->ints = [](const CaesuraGraph* graph, size_t node, const char* name, size_t* count) {
    return ListOf<int64_t>(graph, node, name, count, Mutable(graph)->single_ints);
  };
  api->floats = [](const CaesuraGraph* graph, size_t node, const char* name, size_t* count) {
    return ListOf<float>(graph, node, name, count, Mutable(graph)->single_floats);
  };
  api->string = [](const CaesuraGraph* graph, size_t node, const char* name) -> const char* {
    const std::string* found = graph->node(node).FindAttr<std::string>(name);
    return found == nullptr ? nullptr : found->c_str();
  };
  api->onnx = [](const CaesuraGraph* graph, const void** bytes, size_t* size) {
    Status status = Mutable(graph)->WriteAll();
    return Bytes(std::move(status), graph->all_bytes, bytes, size);
  };
  api->node_onnx = [](const CaesuraGraph* graph, size_t node, const void** bytes, size_t* size) {
    Status status = Mutable(graph)->WriteNode(node);
    return Bytes(std::move(status), graph->node_bytes, bytes, size);
  };
}

}  // namespace caesura
