// SPDX-License-Identifier: Apache-2.0
// Private to core/onnx: what a rewrite rule of opset_normalization.cc sees, and the rules
// themselves.
#ifndef CAESURA_CORE_ONNX_OPSETS_OPSET_REWRITE_H_
#define CAESURA_CORE_ONNX_OPSETS_OPSET_REWRITE_H_

#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// One node of an older opset, about to be changed in place or replaced.
class NodeRewrite {
 public:
  // `types_are_known`: all that inference can find out is there; otherwise rules may wait for that
  // and refuse.
  NodeRewrite(Graph& graph, Node* node, bool types_are_known)
      : graph_(graph), node_(node), types_are_known_(types_are_known) {}

  Graph& graph() { return graph_; }
  Node& node() { return *node_; }
  // Nodes that were put in front of the node, or in its place, in order.
  const std::vector<Node*>& added() const { return added_; }
  bool types_are_known() const { return types_are_known_; }
  bool was_replaced() const { return was_replaced_; }
  bool was_changed() const { return was_changed_; }

  // --- facts; empty when they are not known before a run ---
  std::optional<int> Rank(int input) const;
  std::optional<int64_t> StaticDim(int input, int axis) const;
  DType InputDType(int input) const;
  // The elements of a constant input of numbers.
  std::optional<std::vector<int64_t>> ConstantInts(int input) const;
  // The elements of a constant float32 input.
  std::optional<std::vector<float>> ConstantFloats(int input) const;

  // --- changes ---
  // A constant in front of the node.
  Value* Ints(const std::string& what, const std::vector<int64_t>& values);
  Value* Int(const std::string& what, int64_t value);
  Value* Floats(const std::string& what, const std::vector<float>& values);
  // A scalar of a floating dtype. REQUIRES: IsDifferentiable(dtype).
  Value* Float(const std::string& what, float value, DType dtype);
  // A node of the newest version in front of the node; its only output.
  Value* Op(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes = {});
  void SetInput(int i, Value* value);
  void SetAttribute(const std::string& name, Attribute value);
  void DropAttribute(const std::string& name);
  // The list of integers in the attribute becomes input `i`; without the attribute nothing happens.
  void MoveIntsToInput(const std::string& attribute, int i);
  // Another node writes the node's first `output_count` outputs. REQUIRES: nothing reads the
  // others.
  void Replace(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes,
               int output_count);
  // Takes the node away; its outputs are returned, for nodes of Write.
  std::vector<Value*> TakeOutputs();
  // A node of the newest version in front of the node that writes given values.
  void Write(const std::string& op_type, std::vector<Value*> inputs, std::vector<Value*> outputs,
             AttributeMap attributes = {});
  // A value for Write.
  Value* NewValue(const std::string& what);
  // True if anything reads output `i` or later ones.
  bool ReadsOutputsFrom(int i) const;

 private:
  const Tensor* ConstantInput(int input) const;
  Value* Constant(const std::string& what, Tensor tensor);
  // In front of the node.
  void Add(const std::string& op_type, std::vector<Value*> inputs, std::vector<Value*> outputs,
           AttributeMap attributes, const std::string& name);

  Graph& graph_;
  Node* node_;
  bool types_are_known_;
  std::vector<Node*> added_;
  bool was_replaced_ = false;
  bool was_changed_ = false;
};

// A rule gives the node the semantics of the version that its table row names. False: it cannot,
// and has changed nothing. Rules are written for nodes that onnx's checker has passed.
using RewriteRule = bool (*)(NodeRewrite&);

// opset_rules_shape.cc
bool AxesToInput(NodeRewrite& r);
bool PadToInputs(NodeRewrite& r);
bool PaddingsToPads(NodeRewrite& r);
bool ReshapeToInput(NodeRewrite& r);
bool SliceToInputs(NodeRewrite& r);
bool SplitToInput(NodeRewrite& r);
bool SplitCount(NodeRewrite& r);
bool TileToRepeats(NodeRewrite& r);
bool TopKToInput(NodeRewrite& r);
bool ConcatAxis(NodeRewrite& r);
bool ScatterToElements(NodeRewrite& r);
bool UpsampleToResize(NodeRewrite& r);
bool ResizeInputs(NodeRewrite& r);
bool OneHotCountsFromTheEnd(NodeRewrite& r);
bool ResizeEmptyInputs(NodeRewrite& r);
bool RoiAlignMode(NodeRewrite& r);
bool GridSampleMode(NodeRewrite& r);
bool ConstantValue(NodeRewrite& r);

// opset_rules_math.cc
bool DropConsumedInputs(NodeRewrite& r);
bool LegacyBroadcast(NodeRewrite& r);
bool PReluSlope(NodeRewrite& r);
bool CastTarget(NodeRewrite& r);
bool ClipToInputs(NodeRewrite& r);
bool GemmBroadcast(NodeRewrite& r);
bool SeluDefaults(NodeRewrite& r);
bool FlattenedSoftmax(NodeRewrite& r);
bool DftAxisToInput(NodeRewrite& r);
bool FloatsOnly(NodeRewrite& r);
bool LpIntegerNorm(NodeRewrite& r);
bool DropIsTest(NodeRewrite& r);
bool DropoutToInputs(NodeRewrite& r);
bool BatchNormIsSpatial(NodeRewrite& r);
bool BatchNormTrainingMode(NodeRewrite& r);
bool GroupNormPerChannel(NodeRewrite& r);
bool DropOutputSequence(NodeRewrite& r);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_OPSETS_OPSET_REWRITE_H_
