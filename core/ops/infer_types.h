// SPDX-License-Identifier: Apache-2.0
// Type inference that ops of several families share: OpDef::infer, and parts of it.
#ifndef CAESURA_CORE_OPS_INFER_TYPES_H_
#define CAESURA_CORE_OPS_INFER_TYPES_H_

#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// The outputs have the dtype of input 0, whatever their shape.
Status SameDType(Graph&, Node* node);
// Output i is input i.
Status SameTypes(Graph&, Node* node);
// The output has the shape that the elements of an input say: a constant, or the Shape of a tensor;
// otherwise its rank is the number of these elements. Its dtype is ResultDType.
Status ShapeSaidBy(int input, Graph& graph, Node* node);
template <int kInput>
Status ShapeOfInput(Graph& graph, Node* node) {
  return ShapeSaidBy(kInput, graph, node);
}

// The dtype of the logarithm of a sum of exponentials of scores.
inline DType LogSumDType(DType scores) {
  return scores == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// The dtype of the node's attribute "dtype", otherwise that of input 0.
DType ResultDType(const Node& node);
// Leaves an output as it is where its shape is known.
void SetOutputType(const Node& node, int output, DType dtype,
                   std::optional<std::vector<Dim>> shape);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_INFER_TYPES_H_
