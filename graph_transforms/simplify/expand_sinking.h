// SPDX-License-Identifier: Apache-2.0
// expand_sinking: arithmetic that would broadcast reads what an Expand reads; arithmetic with a
// single number goes in front of the Expand. So a row's number, as the gradient of a mean is, is
// never written out as a row. For known shapes.
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_EXPAND_SINKING_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_EXPAND_SINKING_H_

#include "core/graph/pass.h"

namespace caesura {

std::shared_ptr<Pass> MakeExpandSinkingPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_EXPAND_SINKING_H_
