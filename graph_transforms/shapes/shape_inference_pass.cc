// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/shape_inference_pass.h"

#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

class ShapeInference : public Pass {
 public:
  const char* name() const override { return "shape_inference"; }
  Result<bool> Run(Model& model) override {
    // A node that says otherwise keeps what it says (LayerNormalization's statistics in float64,
    // which ONNX would have in float32): the model was checked when it was read, and kernels look
    // at what they get.
    (void)InferShapes(model);
    return false;  // nodes and edges are as they were
  }
};

}  // namespace

std::shared_ptr<Pass> MakeShapeInferencePass() { return std::make_shared<ShapeInference>(); }

}  // namespace caesura
