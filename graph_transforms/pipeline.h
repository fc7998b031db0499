// SPDX-License-Identifier: Apache-2.0
// The lists of passes, in order, a sentence each.
#ifndef CAESURA_GRAPH_TRANSFORMS_PIPELINE_H_
#define CAESURA_GRAPH_TRANSFORMS_PIPELINE_H_

#include <string>
#include <unordered_set>

#include "core/graph/pass.h"

namespace caesura {

// For inference and for the forward graph before it is differentiated. Initializers named in `parameters` change
// between runs: no pass may rely on their values.
PassList ForwardPasses(std::unordered_set<std::string> parameters = {});

// For a graph that holds its backward part and optimizer already.
PassList StepPasses();

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_PIPELINE_H_
