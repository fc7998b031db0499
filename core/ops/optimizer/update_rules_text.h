// SPDX-License-Identifier: Apache-2.0
// The text of core/ops/optimizer/update_rules.h, to be compiled as CUDA source: after CudaPrelude.
#ifndef CAESURA_CORE_OPS_OPTIMIZER_UPDATE_RULES_TEXT_H_
#define CAESURA_CORE_OPS_OPTIMIZER_UPDATE_RULES_TEXT_H_

namespace caesura {

extern const char kUpdateRulesText[];

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_OPTIMIZER_UPDATE_RULES_TEXT_H_
