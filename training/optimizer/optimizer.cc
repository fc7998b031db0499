// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer/optimizer.h"

namespace caesura {
namespace {

Attribute Exact(double value) { return Tensor::Scalar<double>(value); }

OptimizerUpdate Describe(const Sgd& o) {
  OptimizerUpdate update{"SgdUpdate", {}, {}};
  update.coefficients = {{"momentum", Exact(o.momentum)},
                         {"dampening", Exact(o.dampening)},
                         {"weight_decay", Exact(o.weight_decay)},
                         {"nesterov", static_cast<int64_t>(o.nesterov)}};
  if (o.momentum != 0) update.states.push_back("momentum_buffer");
  return update;
}

template <typename AdamLike>
OptimizerUpdate DescribeAdam(const char* op_type, const AdamLike& o) {
  return {op_type,
          {{"beta1", Exact(o.beta1)},
           {"beta2", Exact(o.beta2)},
           {"epsilon", Exact(o.epsilon)},
           {"weight_decay", Exact(o.weight_decay)}},
          {"exp_avg", "exp_avg_sq"}};
}
OptimizerUpdate Describe(const Adam& o) { return DescribeAdam("AdamUpdate", o); }
OptimizerUpdate Describe(const AdamW& o) { return DescribeAdam("AdamWUpdate", o); }
OptimizerUpdate Describe(const Lamb& o) { return DescribeAdam("LambUpdate", o); }

OptimizerUpdate Describe(const Lion& o) {
  return {"LionUpdate",
          {{"beta1", Exact(o.beta1)}, {"beta2", Exact(o.beta2)}, {"weight_decay", Exact(o.weight_decay)}},
          {"exp_avg"}};
}

OptimizerUpdate Describe(const Rmsprop& o) {
  OptimizerUpdate update{"RmspropUpdate", {}, {"square_avg"}};
  update.coefficients = {{"alpha", Exact(o.alpha)},
                         {"epsilon", Exact(o.epsilon)},
                         {"momentum", Exact(o.momentum)},
                         {"weight_decay", Exact(o.weight_decay)},
                         {"centered", static_cast<int64_t>(o.centered)}};
  if (o.centered) update.states.push_back("grad_avg");
  if (o.momentum != 0) update.states.push_back("momentum_buffer");
  return update;
}

}  // namespace

OptimizerUpdate DescribeUpdate(const Optimizer& optimizer) {
  return std::visit([](const auto& o) { return Describe(o); }, optimizer);
}

double LearningRate(const Optimizer& optimizer) {
  return std::visit([](const auto& o) { return o.learning_rate; }, optimizer);
}

Optimizer ForGroup(Optimizer optimizer, const ParameterGroup& group) {
  if (group.weight_decay) std::visit([&](auto& o) { o.weight_decay = *group.weight_decay; }, optimizer);
  return optimizer;
}

bool MatchesName(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;  // let the star take one character more
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace caesura
