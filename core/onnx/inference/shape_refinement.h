// SPDX-License-Identifier: Apache-2.0
// Private to core/graph: what inference can know beyond onnx's own functions.
#ifndef CAESURA_CORE_ONNX_INFERENCE_SHAPE_REFINEMENT_H_
#define CAESURA_CORE_ONNX_INFERENCE_SHAPE_REFINEMENT_H_

#include "core/graph/graph.h"
#include "core/onnx/onnx_proto.h"

namespace caesura {

// The one dim of Reshape that follows from the others, also where symbols cancel: [N, 3, 8] to [N,
// -1] is [N, 24]. `target` is what is known of the second input.
void RefineReshape(const ValueType& input, const onnx::TensorShapeProto& target, ValueType* output);

// The type of output 0 for ops that onnx infers nothing for: that of input 0, mostly. Leaves others
// alone.
void RefineUninferred(const Node& node, ValueType* output);

// The shape of output `i` of a Loop that gives back what it carries: what the start and an
// iteration's result have in common. onnx leaves it open.
void RefineCarried(const Node& loop, int i, ValueType* output);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_INFERENCE_SHAPE_REFINEMENT_H_
