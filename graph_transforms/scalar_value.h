// SPDX-License-Identifier: Apache-2.0
// The number that a value stands for, where constants and known shapes say so.
#ifndef CAESURA_GRAPH_TRANSFORMS_SCALAR_VALUE_H_
#define CAESURA_GRAPH_TRANSFORMS_SCALAR_VALUE_H_

#include <optional>
#include <string>
#include <unordered_set>

#include "core/graph/graph.h"

namespace caesura {

// A value of one element: an initializer outside of `parameters`, a dim of a known shape, or
// arithmetic on such.
std::optional<double> ScalarValue(const Value* value,
                                  const std::unordered_set<std::string>& parameters);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SCALAR_VALUE_H_
