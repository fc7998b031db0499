// SPDX-License-Identifier: Apache-2.0
// cast_propagation: brings casts of halves to float32 to where the halves are made. One that alone
// reads a transposed or reshaped value goes ahead of it; one that alone reads a sum of halves (the
// gradient of a broadcast) becomes part of the sum, which is carried in a wider type anyway.
#ifndef CAESURA_GRAPH_TRANSFORMS_PRECISION_CAST_PROPAGATION_H_
#define CAESURA_GRAPH_TRANSFORMS_PRECISION_CAST_PROPAGATION_H_

#include "core/graph/pass.h"

namespace caesura {

std::shared_ptr<Pass> MakeCastPropagationPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_PRECISION_CAST_PROPAGATION_H_
