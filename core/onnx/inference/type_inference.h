// SPDX-License-Identifier: Apache-2.0
// Private to core/graph: onnx's inference functions run over our Graph, node by node. No protobuf
// graph is built; types and attributes are converted when a function asks for them.
#ifndef CAESURA_CORE_ONNX_INFERENCE_TYPE_INFERENCE_H_
#define CAESURA_CORE_ONNX_INFERENCE_TYPE_INFERENCE_H_

#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/onnx/onnx_proto.h"

namespace onnx {
class OpSchema;
}

namespace caesura {

// ONNX's schema of the node's op in the node's version, the newest where the node names none. Null
// where ONNX has none.
const onnx::OpSchema* OnnxSchema(const Node& node);

class TypeInference {
 public:
  // With symbols, dims that stay unknown get fresh ones.
  explicit TypeInference(bool make_symbols) : make_symbols_(make_symbols) {}

  // Takes note of the symbols that the graph uses already.
  void ReserveSymbols(const Graph& graph);
  // Infers all nodes in order. Faults are gathered (Verdict). REQUIRES where symbols are made:
  // ReserveSymbols took note of a top-level graph.
  void InferGraph(Graph& graph);
  void InferNode(Node& node);
  // Ok, or all faults so far.
  Status Verdict() const;

  // --- for the contexts that onnx's functions see ---
  // Null when nothing is known.
  const onnx::TypeProto* TypeOf(const Value* value);
  // The elements of a small constant; null for others.
  const onnx::TensorProto* ConstantOf(const Value* value);
  // Integers that are known of a value of rank 0 or 1, as dims; null when none are.
  const onnx::TensorShapeProto* DataOf(const Value* value);
  void SetData(const Value* value, onnx::TensorShapeProto data) { data_[value] = std::move(data); }
  // Sets the types of a body's inputs, infers it, and gives its outputs' types.
  std::vector<const onnx::TypeProto*> InferBody(
      Graph& body, const std::vector<const onnx::TypeProto*>& input_types);

 private:
  void InferFromSchema(Node& node, const onnx::OpSchema& schema);
  void InferRegistered(Node& node);
  void Refine(const Node& node, ValueType* found);
  void Merge(Node& node, Value* output, const ValueType& found);
  void SetType(Value* value, ValueType type);
  void NameUnknownDims(ValueType* type);
  std::string FreshSymbol();
  void Fault(const Node& node, const std::string& what);

  bool make_symbols_;
  bool has_reserved_ = false;  // the symbols of a top-level graph
  int symbol_count_ = 0;
  std::unordered_set<std::string> symbols_;
  std::unordered_map<const Value*, onnx::TypeProto> types_;
  std::unordered_map<const Value*, onnx::TensorProto> constants_;
  std::unordered_map<const Value*, onnx::TensorShapeProto> data_;
  std::unordered_set<const Graph*> inferred_bodies_;
  std::list<onnx::TypeProto> unknown_types_;
  std::vector<std::string> faults_;
};

// Puts what `found` says into `type`. False when kinds or element types contradict each other.
bool MergeTypes(const ValueType& found, ValueType* type);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_INFERENCE_TYPE_INFERENCE_H_
