// SPDX-License-Identifier: Apache-2.0
// The definition of CaesuraGradient, which the C table for ops (caesura_op.h) only names.
#ifndef CAESURA_CORE_PLUGIN_OP_GRADIENT_H_
#define CAESURA_CORE_PLUGIN_OP_GRADIENT_H_

#include "core/graph/op_def.h"
#include "core/plugin/op_node.h"

struct CaesuraGradient {
  caesura::GradientHook& hook;
  const CaesuraOpNode& node;  // the forward node
};

#endif  // CAESURA_CORE_PLUGIN_OP_GRADIENT_H_
