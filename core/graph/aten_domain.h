// SPDX-License-Identifier: Apache-2.0
// The names of the ops that stand for operators of PyTorch; torch_bridge/aten_op.h is their
// specification.
#ifndef CAESURA_CORE_GRAPH_ATEN_DOMAIN_H_
#define CAESURA_CORE_GRAPH_ATEN_DOMAIN_H_

namespace caesura {

inline constexpr char kAtenDomain[] = "org.pytorch.aten";
inline constexpr char kAtenOp[] = "ATen";
inline constexpr char kAtenGradOp[] = "ATenGrad";

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_ATEN_DOMAIN_H_
