// SPDX-License-Identifier: Apache-2.0
// Writes nodes in an older opset, for readers that know no newer one: the way back from
// opset_normalization.h.
#ifndef CAESURA_CORE_ONNX_OPSETS_OPSET_LOWERING_H_
#define CAESURA_CORE_ONNX_OPSETS_OPSET_LOWERING_H_

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// Each node of ONNX's that `opset` has not in its form gets an older form of the same meaning,
// where there is one (axes of reductions as attributes, equal parts of Split), or becomes the body
// of its op's function. Bodies of control flow, too. All other nodes stay as they are: a writer
// that is told the opset refuses them (WriteOptions::opset). Types must have been inferred.
Status LowerOpset(Graph& graph, int opset);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_OPSETS_OPSET_LOWERING_H_
