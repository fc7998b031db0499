// SPDX-License-Identifier: Apache-2.0
// When types prove that dims are equal.
#ifndef CAESURA_GRAPH_TRANSFORMS_SAME_DIMS_H_
#define CAESURA_GRAPH_TRANSFORMS_SAME_DIMS_H_

#include <algorithm>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// True if both dims have one number or one symbol; unknown dims are equal to nothing.
inline bool SameDim(const Dim& a, const Dim& b) {
  return a == b && (a.known() || !a.symbol.empty());
}

inline bool SameDims(const std::vector<Dim>& a, const std::vector<Dim>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameDim);
}

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SAME_DIMS_H_
