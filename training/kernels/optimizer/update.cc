// SPDX-License-Identifier: Apache-2.0
// SgdUpdate, AdamUpdate, AdamWUpdate, LionUpdate, RmspropUpdate: the rules of
// core/kernels/spec/update_rules.h. The others are in adaptive.cc.
#include "training/kernels/optimizer/kernel_list.h"
#include "training/kernels/optimizer/update_group.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

template <template <typename> class Rule>
Status SetRule(KernelInfo& info, const RuleChoice& choice) {
  return SetUpdate<Rule<float>::kStates>(
      info, choice.coefficients, [flag = choice.flag](auto tag, const UpdateStep& step) {
        return Rule<typename decltype(tag)::type>::Of(step, flag);
      });
}

Status CreateUpdate(KernelInfo& info) {
  const RuleChoice choice = ChooseRule(info);
  switch (choice.rule) {
    case UpdateRule::kPlainSgd: return SetRule<PlainSgdRule>(info, choice);
    case UpdateRule::kSgd: return SetRule<SgdRule>(info, choice);
    case UpdateRule::kAdam: return SetRule<AdamRule>(info, choice);
    case UpdateRule::kAmsgrad: return SetRule<AmsgradRule>(info, choice);
    case UpdateRule::kLion: return SetRule<LionRule>(info, choice);
    case UpdateRule::kRmsprop: return SetRule<RmspropRule>(info, choice);
    case UpdateRule::kCenteredRmsprop: return SetRule<CenteredRmspropRule>(info, choice);
    case UpdateRule::kMomentumRmsprop: return SetRule<MomentumRmspropRule>(info, choice);
    case UpdateRule::kCenteredMomentumRmsprop:
      return SetRule<CenteredMomentumRmspropRule>(info, choice);
  }
  return Internal("no such rule");
}

}  // namespace

void RegisterOptimizerUpdate(KernelRegistry& registry) {
  for (const char* op : kRuleOps) AddUpdateKernels(registry, {{op, CreateUpdate}});
}

}  // namespace caesura
