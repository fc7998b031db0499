// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/common_subexpression.h"

#include <unordered_map>

#include "core/graph/op_schema.h"
#include "core/graph/op_def.h"
#include "graph_transforms/replacements.h"

namespace caesura {
namespace {

// Constants up to this size are compared by their bytes.
constexpr size_t kMaxConstantBytes = 256;

void Append(std::string& key, const void* data, size_t size) {
  key.append(static_cast<const char*>(data), size);
}

void AppendTensor(std::string& key, const Tensor& tensor) {
  key += DTypeName(tensor.dtype()) + tensor.shape().ToString();
  Append(key, tensor.raw(), tensor.bytes());
}

// Appends what tells one attribute from another; false for kinds that are not compared.
bool AppendAttribute(std::string& key, const Attribute& attribute) {
  key += static_cast<char>('a' + attribute.index());
  if (const auto* v = std::get_if<int64_t>(&attribute)) return Append(key, v, sizeof(*v)), true;
  if (const auto* v = std::get_if<float>(&attribute)) return Append(key, v, sizeof(*v)), true;
  if (const auto* v = std::get_if<std::string>(&attribute))
    return key += std::to_string(v->size()) + ":" + *v, true;
  if (const auto* v = std::get_if<std::vector<int64_t>>(&attribute)) {
    key += std::to_string(v->size()) + ":";
    return Append(key, v->data(), v->size() * sizeof((*v)[0])), true;
  }
  if (const auto* v = std::get_if<std::vector<float>>(&attribute)) {
    key += std::to_string(v->size()) + ":";
    return Append(key, v->data(), v->size() * sizeof((*v)[0])), true;
  }
  if (const auto* v = std::get_if<Tensor>(&attribute)) {
    if (v->bytes() > kMaxConstantBytes || v->dtype() == DType::kString) return false;
    return AppendTensor(key, *v), true;
  }
  return false;
}

bool IsRandom(const Node& node) {
  const OpDef* spec = FindOwnOp(node);
  return OpDefOf(node).random || (spec != nullptr && !spec->is_deterministic);
}

class CommonSubexpression : public Pass {
 public:
  explicit CommonSubexpression(std::unordered_set<std::string> parameters)
      : parameters_(std::move(parameters)) {}
  const char* name() const override { return "common_subexpression"; }
  Result<bool> Run(Model& model) override { return RunOn(*model.graph); }

 private:
  std::string InputKey(const Value* value) const {
    if (value == nullptr) return "-";
    const Tensor* tensor = value->graph()->Initializer(value);
    std::string key;
    if (tensor != nullptr && tensor->bytes() <= kMaxConstantBytes &&
        tensor->dtype() != DType::kString && !parameters_.count(value->name()) &&
        !value->graph()->IsGraphInput(value)) {
      key = "c";
      AppendTensor(key, *tensor);
    } else {
      key = "v";
      Append(key, &value, sizeof(value));
    }
    return key;
  }

  // Empty when the node must be left alone.
  std::string NodeKey(const Node& node) const {
    if (node.phase() == Phase::kOptimizer || IsRandom(node) || IsYield(node)) return {};
    std::string key =
        node.domain() + "::" + node.op_type() + "/" + std::to_string(node.since_version());
    key += "@" + node.provider();
    for (const auto& [name, attribute] : node.attributes()) {
      key += "|" + name + "=";
      if (!AppendAttribute(key, attribute)) return {};
    }
    for (const Value* input : node.inputs()) key += "," + InputKey(input);
    key += ">";
    for (const Value* output : node.outputs()) key += output == nullptr ? "-" : "o";
    // The graph's types steer some ops (a Cast by value_info, a constant's dtype).
    for (const Value* output : node.outputs())
      key += output == nullptr ? "" : DTypeName(output->dtype());
    return key;
  }

  bool RunOn(Graph& graph) {
    bool changed = false;
    std::unordered_map<std::string, Node*> first;
    Replacements replacements;
    std::unordered_set<const Node*> gone;
    for (const auto& node : graph.nodes()) {
      for (Graph* body : node->Subgraphs()) changed |= RunOn(*body);
      const std::string key = NodeKey(*node);
      if (key.empty()) continue;
      auto [it, fresh] = first.try_emplace(key, node.get());
      if (fresh) continue;
      bool exported = false;
      for (const Value* output : node->outputs())
        exported |= output != nullptr && graph.IsGraphOutput(output);
      // A graph output keeps its name. A node moved from forward to backward would lengthen a life
      // for nothing, but the backward may read what the forward made.
      if (exported || it->second->phase() > node->phase()) continue;
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        if (node->outputs()[i] != nullptr)
          replacements.Replace(node->outputs()[i], it->second->outputs()[i]);
      }
      gone.insert(node.get());
    }
    replacements.Finish(graph);
    graph.RemoveNodes(gone);
    return changed || !gone.empty();
  }

  std::unordered_set<std::string> parameters_;
};

}  // namespace

std::shared_ptr<Pass> MakeCommonSubexpressionPass(std::unordered_set<std::string> parameters) {
  return std::make_shared<CommonSubexpression>(std::move(parameters));
}

}  // namespace caesura
