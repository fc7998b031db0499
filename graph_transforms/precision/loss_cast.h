// SPDX-License-Identifier: Apache-2.0
// loss_cast: where the gradient of a cross-entropy's scores is only read in half precision,
// SoftmaxCrossEntropyLossGrad (ai.caesura) writes it so. A language model's scores are its largest
// values: the cast would read and write all of them once more. For providers with a device; on the
// CPU the cast is a part of the product that reads it.
#ifndef CAESURA_GRAPH_TRANSFORMS_PRECISION_LOSS_CAST_H_
#define CAESURA_GRAPH_TRANSFORMS_PRECISION_LOSS_CAST_H_

#include <memory>

#include "core/graph/pass.h"

namespace caesura {

// Looks through reshapes between the gradient and the cast, which then reshape halves.
std::shared_ptr<Pass> MakeLossCastPass();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_PRECISION_LOSS_CAST_H_
