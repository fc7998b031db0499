// SPDX-License-Identifier: Apache-2.0
// Private to core/onnx. Graph to GraphProto.
#ifndef CAESURA_CORE_ONNX_GRAPH_EXPORT_H_
#define CAESURA_CORE_ONNX_GRAPH_EXPORT_H_

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/onnx/onnx_proto.h"

namespace caesura {

struct ExportOptions {
  // Writes the elements of an initializer of the top-level graph elsewhere, and their place into
  // the proto (which has name, type and dims); returns false to have them stored in the proto.
  // Null: all are stored.
  std::function<Result<bool>(const Tensor&, onnx::TensorProto*)> store_externally;
  // Leaves names of values' types and nodes' metadata out, for a text that people read.
  bool brief = false;
  int opset = 0;  // as WriteOptions::opset
};

// A model that reads back as an equal one. Fails when no opset version gives every node its
// semantics (all such nodes are named), or a graph input has no type. An output without a type is
// written without one.
Status ModelToProto(const Model& model, const ExportOptions& options, onnx::ModelProto* proto);
// One node, as inference and function bodies need it.
Status NodeToProto(const Node& node, onnx::NodeProto* proto);
// Any attribute; bodies with all that is in them.
Status AnyAttributeToProto(const std::string& name, const Attribute& attribute,
                           onnx::AttributeProto* proto);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_GRAPH_EXPORT_H_
