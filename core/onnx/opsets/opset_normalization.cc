// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/opsets/opset_normalization.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/base/status_macros.h"
#include "core/graph/op_schema.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/opsets/opset_rewrite.h"

namespace caesura {
namespace {

struct RuleRow {
  const char* op_type;
  int version;  // nodes of older versions are given the semantics of this one
  RewriteRule rule;
};

// All changes of meaning between the versions of an op; between the others only types were added,
// or attributes whose default is the old behaviour. In order of versions for each op. kNoRule:
// nothing leads across.
constexpr RewriteRule kNoRule = nullptr;
constexpr int kAlways = 1 << 20;  // also applied to nodes that are at the newest version
constexpr RuleRow kRules[] = {
    // arithmetic: axis and broadcast attributes became numpy's broadcasting
    {"Add", 7, LegacyBroadcast},
    {"Sub", 7, LegacyBroadcast},
    {"Mul", 7, LegacyBroadcast},
    {"Div", 7, LegacyBroadcast},
    {"Pow", 7, LegacyBroadcast},
    {"And", 7, LegacyBroadcast},
    {"Or", 7, LegacyBroadcast},
    {"Xor", 7, LegacyBroadcast},
    {"Equal", 7, LegacyBroadcast},
    {"Greater", 7, LegacyBroadcast},
    {"Less", 7, LegacyBroadcast},
    {"PRelu", 7, PReluSlope},
    {"Gemm", 7, GemmBroadcast},
    // activations and the like
    {"Cast", 6, CastTarget},
    {"Clip", 11, ClipToInputs},
    {"Selu", 6, SeluDefaults},
    {"Softmax", 13, FlattenedSoftmax},
    {"LogSoftmax", 13, FlattenedSoftmax},
    {"Hardmax", 13, FlattenedSoftmax},
    {"Dropout", 7, DropIsTest},
    {"Dropout", 12, DropoutToInputs},
    {"DFT", 20, DftAxisToInput},
    // normalisation, pooling, recurrence
    {"BatchNormalization", 7, DropIsTest},
    {"BatchNormalization", 9, BatchNormIsSpatial},
    {"BatchNormalization", 14, BatchNormTrainingMode},
    {"GroupNormalization", 21, GroupNormPerChannel},
    {"LpPool", 2, LpIntegerNorm},
    {"GlobalLpPool", 2, LpIntegerNorm},
    {"RNN", 7, DropOutputSequence},
    {"GRU", 7, DropOutputSequence},
    {"LSTM", 7, DropOutputSequence},
    {"RoiAlign", 16, RoiAlignMode},
    {"GridSample", 20, GridSampleMode},
    // reductions: axes became an input
    {"ReduceSum", 13, AxesToInput},
    {"ReduceL1", 18, AxesToInput},
    {"ReduceL2", 18, AxesToInput},
    {"ReduceLogSum", 18, AxesToInput},
    {"ReduceLogSum", 28, FloatsOnly},
    {"ReduceLogSumExp", 18, AxesToInput},
    {"ReduceLogSumExp", 28, FloatsOnly},
    {"ReduceMax", 18, AxesToInput},
    {"ReduceMean", 18, AxesToInput},
    {"ReduceMin", 18, AxesToInput},
    {"ReduceProd", 18, AxesToInput},
    {"ReduceSumSquare", 18, AxesToInput},
    // shapes
    {"Squeeze", 13, AxesToInput},
    {"Unsqueeze", 13, AxesToInput},
    {"Reshape", 5, ReshapeToInput},
    {"Pad", 2, PaddingsToPads},
    {"Pad", 11, PadToInputs},
    {"Slice", 10, SliceToInputs},
    {"Split", 13, SplitToInput},
    {"Split", 18, SplitCount},
    {"Concat", 4, ConcatAxis},
    {"Tile", 6, TileToRepeats},
    {"TopK", 10, TopKToInput},
    {"OneHot", 11, OneHotCountsFromTheEnd},
    {"Scatter", kAlways, ScatterToElements},
    {"Upsample", kAlways, UpsampleToResize},
    {"Resize", 11, ResizeInputs},
    {"Resize", kAlways, ResizeEmptyInputs},
    {"Constant", kAlways, ConstantValue},
    // Version 8 of Scan runs over a batch.
    {"Scan", 9, kNoRule},
};

const std::multimap<std::string, const RuleRow*>& RuleTable() {
  static const auto* table = [] {
    auto* out = new std::multimap<std::string, const RuleRow*>;
    for (const RuleRow& row : kRules) out->emplace(row.op_type, &row);
    return out;
  }();
  return *table;
}

// Applies every rule that lies ahead of the node's version. False when one of them cannot: the node
// then has the version that the rules before it have led to, whose schema fits what they have
// written.
bool Rewrite(NodeRewrite& rewrite) {
  DropConsumedInputs(rewrite);
  Node& node = rewrite.node();
  const auto [begin, end] = RuleTable().equal_range(node.op_type());
  for (auto it = begin; it != end; ++it) {
    const RuleRow& row = *it->second;
    if (node.since_version() >= row.version || node.since_version() == 0) continue;
    if (row.rule == kNoRule || !row.rule(rewrite)) return false;
    if (rewrite.was_replaced()) break;
    if (row.version != kAlways) node.set_since_version(row.version);
  }
  return true;
}

struct Outcome {
  bool changed = false;
  bool is_newest = true;
  std::vector<Node*> nodes;  // what stands for the node now, in order
};

Outcome NormalizeNode(Graph& graph, Node* node, bool types_are_known) {
  Outcome out;
  if (!node->domain().empty()) return {false, true, {node}};
  NodeRewrite rewrite(graph, node, types_are_known);
  out.is_newest = Rewrite(rewrite);
  out.changed = rewrite.was_changed();
  out.nodes = rewrite.added();
  if (rewrite.was_replaced()) {
    graph.RemoveNode(node);
  } else {
    if (out.is_newest && node->since_version() > 0)
      node->set_since_version(SinceVersion(node->op_type()));
    out.nodes.push_back(node);
  }
  return out;
}

// Two answers: something changed; all nodes are at the newest version now.
Outcome NormalizeGraph(Graph& graph, bool types_are_known) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  Outcome out;
  auto add = [&](const Outcome& one) {
    out.changed |= one.changed;
    out.is_newest &= one.is_newest;
  };
  for (Node* node : nodes) {
    for (Graph* body : node->Subgraphs()) add(NormalizeGraph(*body, types_are_known));
    add(NormalizeNode(graph, node, types_are_known));
  }
  if (out.changed) graph.RemoveUnusedValues();
  return out;
}

}  // namespace

Status NormalizeOpsets(Model& model) {
  // Old schemas infer less than new ones: what can be settled by declared types alone comes first.
  const bool is_newest = NormalizeGraph(*model.graph, /*types_are_known=*/false).is_newest;
  model.opsets[""] = LatestOpset();
  RETURN_IF_ERROR(InferShapes(model));
  if (is_newest || !NormalizeGraph(*model.graph, /*types_are_known=*/true).changed) return {};
  return InferShapes(model);
}

int MeaningSince(const std::string& op_type) {
  int version = 1;
  const auto [begin, end] = RuleTable().equal_range(op_type);
  for (auto it = begin; it != end; ++it) {
    const bool keeps_meaning = it->second->version == kAlways || it->second->rule == FloatsOnly;
    if (!keeps_meaning) version = std::max(version, it->second->version);
  }
  return version;
}

Status NormalizeNodes(Graph& graph, const std::vector<Node*>& nodes) {
  NodeTypeInference inference;
  for (Node* node : nodes) {
    for (Graph* body : node->Subgraphs()) NormalizeGraph(*body, /*types_are_known=*/true);
    for (Node* fresh : NormalizeNode(graph, node, /*types_are_known=*/true).nodes)
      RETURN_IF_ERROR(inference.Infer(fresh));
  }
  return {};
}

}  // namespace caesura
