// SPDX-License-Identifier: Apache-2.0
// Models of ONNX's own operators, which any runtime runs, of models that training has made.
#ifndef CAESURA_GRAPH_TRANSFORMS_PLAIN_MODEL_H_
#define CAESURA_GRAPH_TRANSFORMS_PLAIN_MODEL_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/gradient/gradient_model.h"
#include "core/graph/graph.h"

namespace caesura {

// Writes all nodes in ONNX's operators (WriteInStandardOps) and simplifies the graph. `outputs`:
// the names of the graph's outputs from here on. Fails as WriteInStandardOps does.
Status MakePlain(Model& model, const std::vector<std::string>& outputs);

// Returns what GradientModel does, in ONNX's operators; initializers among GradientModelOptions::by
// become inputs that have them as defaults. Fails with kUnsupported, too, where nodes have
// no body in them; all of these are listed.
Result<Model> PlainGradientModel(const Model& model, const GradientModelOptions& options);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_PLAIN_MODEL_H_
