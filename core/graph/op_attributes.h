// SPDX-License-Identifier: Apache-2.0
// Attributes that sessions put on nodes of custom ops (core/custom_ops/custom_op.h), besides the
// ops' own.
#ifndef CAESURA_CORE_GRAPH_OP_ATTRIBUTES_H_
#define CAESURA_CORE_GRAPH_OP_ATTRIBUTES_H_

namespace caesura {

// The number of the session's instance that computes the node (int). Never in a file.
inline constexpr char kInstanceAttribute[] = "ai.caesura.instance";
// The attribute of a node that a gradient hook has added: the name of the forward node, whose
// options it has (string; empty: of none).
inline constexpr char kForwardNodeAttribute[] = "ai.caesura.forward_node";
// Options that a model brings along for the node (strings of one length).
inline constexpr char kOptionNamesAttribute[] = "option_names";
inline constexpr char kOptionValuesAttribute[] = "option_values";

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_OP_ATTRIBUTES_H_
