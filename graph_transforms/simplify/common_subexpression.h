// SPDX-License-Identifier: Apache-2.0
// common_subexpression: of nodes with equal op, attributes and inputs one is kept. Small equal
// constants count as equal inputs. Random ops, YieldOp, optimizer nodes and nodes with bodies are
// left alone.
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_COMMON_SUBEXPRESSION_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_COMMON_SUBEXPRESSION_H_

#include <string>
#include <unordered_set>

#include "core/graph/pass.h"

namespace caesura {

// `parameters`: names of initializers whose values may change, so that equal bytes do not make them
// equal.
std::shared_ptr<Pass> MakeCommonSubexpressionPass(std::unordered_set<std::string> parameters);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_COMMON_SUBEXPRESSION_H_
