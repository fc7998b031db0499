// SPDX-License-Identifier: Apache-2.0
// The updates whose rule is all that they are: the ops of kRuleOps, by update_spec.h's
// update_rules.h.
#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/optimizer/update_group.h"

namespace caesura {
namespace {

// Sets the function of a step: `run(tag of T, group, step, context)`, unless the step is skipped.
template <typename Run>
Status SetStep(KernelInfo& info, const UpdateGroup& group, Run run) {
  DispatchFloat(group.dtype(), [&](auto tag) {
    info.SetCompute([=](KernelContext& context) -> Status {
      ASSIGN_OR_RETURN(const Hyperparameters step, group.ReadHyperparameters(context));
      group.CopyToOutputs(context);
      if (!step.skip) run(tag, group, step, context);
      return {};
    });
  });
  return {};
}

template <template <typename> class Rule>
Status SetRule(KernelInfo& info, const RuleChoice& choice) {
  ASSIGN_OR_RETURN(const UpdateGroup group,
                   UpdateGroup::Plan(info, choice.states, choice.coefficients));
  return SetStep(info, group,
                 [flag = choice.flag](auto tag, const UpdateGroup& of, const Hyperparameters& step,
                                      KernelContext& context) {
                   using T = typename decltype(tag)::type;
                   using R = Rule<Accumulator<T>>;
                   const R rule = R::Of(step, flag);
                   of.Apply<T, R::kStates>(context, step, [&](int) -> const auto& { return rule; });
                 });
}

// The rule of parameter `i`, which changes its scalars.
template <typename Rule, typename S>
Rule RuleOf(const UpdateGroup& group, const Hyperparameters& step, bool flag, int i,
            const KernelContext& context) {
  S scalars[Rule::kScalars];
  for (int k = 0; k < Rule::kScalars; ++k) scalars[k] = *group.Updated<S>(context, k, i);
  const Rule rule = Rule::Of(step, flag, scalars);
  for (int k = 0; k < Rule::kScalars; ++k) *group.Updated<S>(context, k, i) = scalars[k];
  return rule;
}

template <template <typename> class Rule>
Status SetRuleWithScalars(KernelInfo& info, const RuleChoice& choice) {
  ASSIGN_OR_RETURN(const UpdateGroup group,
                   UpdateGroup::Plan(info, choice.states, choice.coefficients, choice.scalars));
  const size_t scratch = info.BookScratch(group.count() * sizeof(Rule<double>));
  return SetStep(
      info, group,
      [flag = choice.flag, scratch](auto tag, const UpdateGroup& of, const Hyperparameters& step,
                                    KernelContext& context) {
        using T = typename decltype(tag)::type;
        using R = Rule<Accumulator<T>>;
        R* rules = context.Scratch<R>(scratch);
        for (int i = 0; i < of.count(); ++i) {
          rules[i] = of.scalar_dtype() == DType::kFloat64
                         ? RuleOf<R, double>(of, step, flag, i, context)
                         : RuleOf<R, float>(of, step, flag, i, context);
        }
        of.Apply<T, R::kStates>(context, step, [&](int i) -> const auto& { return rules[i]; });
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
    case UpdateRule::kNAdam: return SetRuleWithScalars<NAdamRule>(info, choice);
    case UpdateRule::kRAdam: return SetRule<RAdamRule>(info, choice);
    case UpdateRule::kAdamax: return SetRule<AdamaxRule>(info, choice);
    case UpdateRule::kAdagrad: return SetRule<AdagradRule>(info, choice);
    case UpdateRule::kAdadelta: return SetRule<AdadeltaRule>(info, choice);
    case UpdateRule::kAsgd: return SetRuleWithScalars<AsgdRule>(info, choice);
    case UpdateRule::kRprop: return SetRule<RpropRule>(info, choice);
    case UpdateRule::kLamb: break;  // lamb.cc
  }
  return Internal("no such rule");
}

}  // namespace

void RegisterOptimizerUpdate(KernelRegistry& registry) {
  for (const char* op : kRuleOps) AddUpdateKernels(registry, {{op, CreateUpdate}});
}

}  // namespace caesura
