// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shape_inference_pass.h"

#include "core/base/status_macros.h"
#include "core/graph/shape_inference.h"

namespace caesura {
namespace {

class ShapeInference : public Pass {
 public:
  const char* name() const override { return "shape_inference"; }
  Result<bool> Run(Model& model) override {
    RETURN_IF_ERROR(InferShapes(model));
    return false;  // nodes and edges are as they were
  }
};

}  // namespace

std::shared_ptr<Pass> MakeShapeInferencePass() { return std::make_shared<ShapeInference>(); }

}  // namespace caesura
