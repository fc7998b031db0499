// SPDX-License-Identifier: Apache-2.0
// Integers that a graph holds as constants: axes, shapes, splits. A hostile model has floats or
// strings there, or nothing.
#ifndef CAESURA_GRAPH_TRANSFORMS_CONSTANT_INTS_H_
#define CAESURA_GRAPH_TRANSFORMS_CONSTANT_INTS_H_

#include <optional>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// The elements of an initializer of int32 or int64 that no caller may replace; nothing for any
// other value, and for null.
std::optional<std::vector<int64_t>> ConstantInts(const Value* value);

// Its only element; nothing where it has none or several.
std::optional<int64_t> ConstantInt(const Value* value);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_CONSTANT_INTS_H_
