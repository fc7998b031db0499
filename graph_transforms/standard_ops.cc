// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/standard_ops.h"

#include <deque>
#include <string>
#include <vector>

#include "core/base/status_macros.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace {

using gradient::NodeWriter;
using gradient::OpBody;

bool IsOnnxDomain(const std::string& domain) {
  return domain.empty() || domain.rfind("ai.onnx.", 0) == 0;
}

bool IsToBeWritten(const Node& node) {
  return OpDefOf(node).body != nullptr || !IsOnnxDomain(node.domain());
}

// Random numbers are drawn in training only, which begins with the gradients.
bool IsToBeWrittenFirst(const Node& node) {
  const OpDef& op = OpDefOf(node);
  return op.body != nullptr && IsOnnxDomain(node.domain()) && !op.random;
}

std::string WhyNot(const Node& node) {
  const OpDef& op = OpDefOf(node);
  if (!op.body_refusal.empty()) return op.body_refusal;
  return node.domain() == kCaesuraDomain ? "it is not written in ONNX's operators yet"
                                         : "domain '" + node.domain() + "' is none of ONNX's";
}

class Expansion {
 public:
  explicit Expansion(bool (*is_to_be_written)(const Node&)) : is_to_be_written_(is_to_be_written) {}

  // Fails listing what was refused.
  Status Finish(Graph& graph) {
    RETURN_IF_ERROR(Run(graph));
    if (count_ == 0) return {};
    return Unsupported(std::to_string(count_) +
                       " node(s) cannot be written in ONNX's operators:" + refused_);
  }

  Status Run(Graph& graph) {
    std::deque<Node*> left;
    for (const auto& node : graph.nodes()) {
      for (Graph* body : node->Subgraphs()) RETURN_IF_ERROR(Run(*body));
      if (is_to_be_written_(*node)) left.push_back(node.get());
    }
    while (!left.empty()) {
      Node* node = left.front();
      left.pop_front();
      // A writer keeps shapes by value, and values go with the nodes that are written.
      NodeWriter writer(graph, node->phase());
      Write(graph, node, writer);
      std::vector<Node*> fresh;  // before what reads them: bodies ask for types
      for (Node* one : writer.nodes()) {
        for (Graph* body : one->Subgraphs()) RETURN_IF_ERROR(Run(*body));
        if (is_to_be_written_(*one)) fresh.push_back(one);
      }
      left.insert(left.begin(), fresh.begin(), fresh.end());
    }
    return graph.SortTopologically();
  }

 private:
  void Refuse(const Node& node, const std::string& why) {
    ++count_;
    refused_ += "\n  " + node.Label() + ": " + why;
    if (!node.source().empty()) refused_ += ", " + node.source();
  }

  void Write(Graph& graph, Node* node, NodeWriter& writer) {
    const auto write = OpDefOf(*node).body;
    if (write == nullptr) return Refuse(*node, WhyNot(*node));
    writer.set_origin(node);
    OpBody body(*node, &writer);
    write(body);
    writer.set_origin(nullptr);
    if (!body.refusal().empty()) return Refuse(*node, body.refusal());
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      Value* output = node->outputs()[i];
      if (output == nullptr) continue;
      Value* value = body.result(static_cast<int>(i));
      if (value == nullptr)
        return Refuse(*node, "its body leaves output " + std::to_string(i) + " out");
      if (value->producer() != nullptr && output->type().shape) value->set_type(output->type());
      graph.ReplaceAllUses(output, value);
    }
    graph.RemoveNode(node);
  }

  bool (*is_to_be_written_)(const Node&);
  std::string refused_;
  int count_ = 0;
};

}  // namespace

Status WriteInStandardOps(Graph& graph) { return Expansion(IsToBeWritten).Finish(graph); }

Status WriteBeforeGradients(Graph& graph) { return Expansion(IsToBeWrittenFirst).Run(graph); }

}  // namespace caesura
