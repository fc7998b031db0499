// SPDX-License-Identifier: Apache-2.0
// The integers that a node's attributes may hold: the one place that is asked before anything
// calculates with them, be it the rewriting of old opsets, onnx's shape inference (which indexes
// with some of them unchecked) or a kernel's factory.
#ifndef CAESURA_CORE_GRAPH_ATTRIBUTE_LIMITS_H_
#define CAESURA_CORE_GRAPH_ATTRIBUTE_LIMITS_H_

#include <string>

#include "core/graph/graph.h"

namespace caesura {

// The first integer among the node's attributes that is outside of its limits ("attribute 'axis':
// expected ..., got ..."), or
// "". Ops of users and of PyTorch have no limits here: nothing but their own kernels reads their
// attributes.
std::string AttributeFault(const std::string& domain, const AttributeMap& attributes);
inline std::string AttributeFault(const Node& node) {
  return AttributeFault(node.domain(), node.attributes());
}

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_ATTRIBUTE_LIMITS_H_
