// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/opsets/opset_lowering.h"

#include <string>
#include <vector>

#include "core/base/status_macros.h"
#include "core/graph/op_schema.h"
#include "core/onnx/function_body.h"
#include "core/onnx/opsets/opset_choice.h"
#include "core/onnx/opsets/opset_rewrite.h"

namespace caesura {
namespace {

constexpr int kAxesAreInputs = 18;  // of all reductions but ReduceSum

// Bools have a largest and a smallest element since version 20.
bool ReduceBoolsAsIntegers(NodeRewrite& r) {
  if (r.InputDType(0) != DType::kBool) return true;
  const auto to = [](DType dtype) { return AttributeMap{{"to", static_cast<int64_t>(dtype)}}; };
  std::vector<Value*> inputs = r.node().inputs();
  inputs[0] = r.Op("Cast", {inputs[0]}, to(DType::kInt32));
  Value* reduced = r.Op(r.node().op_type(), std::move(inputs), r.node().attributes());
  r.Replace("Cast", {reduced}, to(DType::kBool), 1);
  return true;
}

bool AxesToAttribute(NodeRewrite& r) {
  const std::optional<std::vector<int64_t>> axes = r.ConstantInts(1);
  const bool has_axes = r.node().input(1) != nullptr;
  const bool reduces_nothing = r.node().Attr<int64_t>("noop_with_empty_axes", 0) != 0;
  if (has_axes ? !axes || axes->empty() : reduces_nothing) return false;
  r.DropAttribute("noop_with_empty_axes");
  if (has_axes) r.SetAttribute("axes", *axes);
  r.node().TruncateInputs(1);
  return true;
}

// num_outputs may leave a smaller last part; without it all parts are equal.
bool SplitEqually(NodeRewrite& r) {
  const Node& node = r.node();
  const auto parts = static_cast<int64_t>(node.outputs().size());
  const auto rank = r.Rank(0);
  if (!rank) return false;
  const auto axis = static_cast<int>(node.Attr<int64_t>("axis", 0));
  const auto dim = r.StaticDim(0, axis < 0 ? axis + *rank : axis);
  if (!dim || *dim % parts != 0) return false;
  r.DropAttribute("num_outputs");
  return true;
}

// Gives the node the form that `opset` has. False: there is none.
bool WriteOlder(NodeRewrite& r, int opset) {
  const std::string op_type = r.node().op_type();
  if (op_type == "Split") {
    if (!SplitEqually(r)) return false;
  } else if (op_type.starts_with("Reduce")) {
    if (!ReduceBoolsAsIntegers(r)) return false;
    if (r.was_replaced()) return true;
    if (opset < kAxesAreInputs && !AxesToAttribute(r)) return false;
  } else {
    return false;
  }
  r.node().set_since_version(SinceVersion(op_type, "", opset));
  return true;
}

void CollectMisfits(Graph& graph, int opset, std::vector<std::pair<Graph*, Node*>>* out) {
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) CollectMisfits(*body, opset, out);
    if (node->domain().empty() && !FitsOpset(*node, opset)) out->emplace_back(&graph, node.get());
  }
}

// True if nodes have come that may not fit either.
Result<bool> LowerNode(Graph& graph, Node* node, int opset) {
  NodeRewrite rewrite(graph, node, /*types_are_known=*/true);
  if (!WriteOlder(rewrite, opset)) return ExpandFunctionBody(graph, node);
  if (rewrite.was_replaced()) graph.RemoveNode(node);
  return rewrite.was_replaced();
}

}  // namespace

Status LowerOpset(Graph& graph, int opset) {
  for (bool has_new = true; has_new;) {
    has_new = false;
    std::vector<std::pair<Graph*, Node*>> misfits;
    CollectMisfits(graph, opset, &misfits);
    for (const auto& [owner, node] : misfits) {
      ASSIGN_OR_RETURN(const bool has_more, LowerNode(*owner, node, opset));
      has_new |= has_more;
    }
  }
  graph.RemoveUnusedValues();
  return {};
}

}  // namespace caesura
