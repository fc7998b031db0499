// SPDX-License-Identifier: Apache-2.0
// From an op as a plug-in describes it (core/plugin/caesura_op.h) to a CustomOp.
#ifndef CAESURA_CORE_CUSTOM_OPS_PLUGIN_OP_H_
#define CAESURA_CORE_CUSTOM_OPS_PLUGIN_OP_H_

#include "core/custom_ops/custom_op.h"
#include "core/plugin/caesura_op.h"
#include "core/plugin/op_node.h"

namespace caesura {

// kInvalidArgument where the description contradicts itself. What it points at must stay.
Result<CustomOp> MakePluginOp(const CaesuraOp& op);

// A plug-in's view of a node for which an instance is made. It borrows from `info`.
std::unique_ptr<CaesuraOpNode> ShowNode(const OpNodeInfo& info);

}  // namespace caesura

#endif  // CAESURA_CORE_CUSTOM_OPS_PLUGIN_OP_H_
