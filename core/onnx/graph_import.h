// SPDX-License-Identifier: Apache-2.0
// Private to core/onnx. GraphProto and FunctionProto to Graph. Calls of model-local
// functions are replaced by their bodies on the way, each with the opsets of its own function.
#ifndef CAESURA_CORE_ONNX_GRAPH_IMPORT_H_
#define CAESURA_CORE_ONNX_GRAPH_IMPORT_H_

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/onnx/onnx_proto.h"

namespace caesura {

using OpsetMap = std::map<std::string, int>;
OpsetMap OpsetsFromProto(
    const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);

class GraphImporter {
 public:
  struct Limits {
    int64_t max_nodes = 1 << 20;
    int max_depth = 64;  // of bodies and function calls in each other
  };

  // `tensors` holds those that the reader has taken out of the file (tensor_bank.h); may be null.
  GraphImporter(Limits limits, const std::vector<Tensor>* tensors)
      : limits_(limits), tensors_(tensors) {}

  // The importer keeps the function's address, which must stay valid as long as it imports.
  void AddFunction(const onnx::FunctionProto& function);
  // A top-level graph. `initializers_are_inputs`: of IR versions below 4, where every initializer
  // had to be listed as an input; such inputs are dropped.
  Result<std::shared_ptr<Graph>> Import(const onnx::GraphProto& proto, const OpsetMap& opsets,
                                        bool initializers_are_inputs);
  // Appends the body of `function` to `graph`, applied to `inputs` (null: absent) and writing
  // `outputs` (null: not wanted; others have no producer yet). Attributes that the body refers to
  // are looked up in `attributes`. Names begin with `prefix`; nodes take `source`.
  struct Call {
    std::vector<Value*> inputs, outputs;
    std::vector<onnx::AttributeProto> attributes;
    std::string prefix, source;
  };
  Status ImportBody(const onnx::FunctionProto& function, const Call& call, Graph* graph);

 private:
  struct Scope;
  using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

  Status FillGraph(const onnx::GraphProto& proto, Graph* graph, Scope& scope,
                   bool initializers_are_inputs);
  Status DeclareEnds(const onnx::GraphProto& proto, Graph* graph, Scope& scope,
                     bool initializers_are_inputs);
  void DeclareOutputs(const Nodes& nodes, Graph* graph, Scope& scope);
  Status ImportNodes(const Nodes& nodes, Graph* graph, Scope& scope);
  Status ImportNode(const onnx::NodeProto& proto, Graph* graph, Scope& scope);
  Status InlineCall(const onnx::NodeProto& call, const onnx::FunctionProto& function, Graph* graph,
                    Scope& scope);
  Status ImportFunctionNodes(const onnx::FunctionProto& function,
                             const std::vector<Value*>& outputs, Graph* graph, Scope& scope);
  Result<AttributeMap> ImportAttributes(const onnx::NodeProto& proto, Graph* graph, Scope& scope);
  Result<Attribute> ImportAttribute(const onnx::AttributeProto& proto, Graph* graph, Scope& scope);
  Result<std::shared_ptr<Graph>> ImportSubgraph(const onnx::GraphProto& proto, Graph* parent,
                                                Scope& scope);
  Result<Tensor> ImportTensor(const onnx::TensorProto& proto) const;
  const onnx::FunctionProto* FindFunction(const onnx::NodeProto& node) const;

  Limits limits_;
  const std::vector<Tensor>* tensors_;
  std::map<std::tuple<std::string, std::string, std::string>, const onnx::FunctionProto*>
      functions_;
  int64_t node_count_ = 0;
};

// The user's module and line, from what torch.onnx or our own writer left in a node's metadata;
// else empty.
std::string NodeSource(const onnx::NodeProto& proto);

// Keys of what our writer adds to a node's metadata.
inline constexpr const char* kSourceKey = "ai.caesura.source";
inline constexpr const char* kPhaseKey = "ai.caesura.phase";
inline constexpr const char* kProviderKey = "ai.caesura.provider";

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_GRAPH_IMPORT_H_
