// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_INFERENCE_PASS_H_
#define CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_INFERENCE_PASS_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Types and symbolic shapes of all values (core/onnx/inference/shape_inference.h), for the passes
// after it: gradient rules leave theirs open.
std::shared_ptr<Pass> MakeShapeInferencePass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_INFERENCE_PASS_H_
