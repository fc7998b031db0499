// SPDX-License-Identifier: Apache-2.0
#include "training/gradient/gradient_rules.h"

#include <unordered_map>

#include "core/graph/op_schema.h"

namespace caesura::gradient {
namespace {

std::string Key(const std::string& op_type, const std::string& domain) {
  return domain + "::" + op_type;
}

std::vector<GradientRule> Collect() {
  std::vector<GradientRule> out;
  for (auto* family :
       {ElementwiseRules, ActivationRules, MatMulRules, EinsumRules,        MovementRules,
        IndexingRules,    ReductionRules,  NnRules,     NormalizationRules, AttentionRules,
        ImageRules,       QuantizeRules,   SignalRules, SequenceRules,      ControlFlowRules,
        TrainingOpRules,  AtenRules,       OwnRules,    ExchangeRules,      StopRules}) {
    for (GradientRule& rule : family()) out.push_back(std::move(rule));
  }
  return out;
}

}  // namespace

const std::vector<GradientRule>& AllGradientRules() {
  static const auto* rules = new std::vector<GradientRule>(Collect());
  return *rules;
}

const GradientRule* FindGradientRule(const std::string& op_type, const std::string& domain) {
  static const auto* by_op = [] {
    auto* map = new std::unordered_map<std::string, const GradientRule*>;
    for (const GradientRule& rule : AllGradientRules())
      map->emplace(Key(rule.op_type, rule.domain), &rule);
    return map;
  }();
  auto it = by_op->find(Key(op_type, domain));
  return it == by_op->end() ? nullptr : it->second;
}

const GradientRule* FindGradientRule(const Node& node) {
  const OpSchemaSpec* spec = FindOpSchemaSpec(node);
  return spec != nullptr && spec->gradient ? &HookRule()
                                           : FindGradientRule(node.op_type(), node.domain());
}

}  // namespace caesura::gradient
