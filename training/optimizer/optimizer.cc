// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer/optimizer.h"

#include <map>

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

template <typename Owner>
bool Set(Owner& owner, const std::string& key, const std::string& name, double Owner::*member, double value) {
  if (key != name) return false;
  owner.*member = value;
  return true;
}

// Sets one coefficient of an optimizer by its name; false when it has none of that name.
bool SetCoefficient(Sgd& o, const std::string& k, double v) {
  if (k == "nesterov") return o.nesterov = v != 0, true;
  return Set(o, k, "momentum", &Sgd::momentum, v) || Set(o, k, "dampening", &Sgd::dampening, v) ||
         Set(o, k, "weight_decay", &Sgd::weight_decay, v);
}
template <typename AdamLike>
bool SetCoefficient(AdamLike& o, const std::string& k, double v) {
  return Set(o, k, "beta1", &AdamLike::beta1, v) || Set(o, k, "beta2", &AdamLike::beta2, v) ||
         Set(o, k, "epsilon", &AdamLike::epsilon, v) || Set(o, k, "weight_decay", &AdamLike::weight_decay, v);
}
bool SetCoefficient(Lion& o, const std::string& k, double v) {
  return Set(o, k, "beta1", &Lion::beta1, v) || Set(o, k, "beta2", &Lion::beta2, v) ||
         Set(o, k, "weight_decay", &Lion::weight_decay, v);
}
bool SetCoefficient(Rmsprop& o, const std::string& k, double v) {
  if (k == "centered") return o.centered = v != 0, true;
  return Set(o, k, "alpha", &Rmsprop::alpha, v) || Set(o, k, "epsilon", &Rmsprop::epsilon, v) ||
         Set(o, k, "momentum", &Rmsprop::momentum, v) || Set(o, k, "weight_decay", &Rmsprop::weight_decay, v);
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

Result<Optimizer> MakeOptimizer(const std::string& name, const std::map<std::string, double>& coefficients) {
  const std::map<std::string, Optimizer> kinds = {{"sgd", Sgd{}},   {"adam", Adam{}}, {"adamw", AdamW{}},
                                                  {"lamb", Lamb{}}, {"lion", Lion{}}, {"rmsprop", Rmsprop{}}};
  auto it = kinds.find(name);
  if (it == kinds.end()) return InvalidArgument("optimizer '" + name + "' is none of sgd, adam, adamw, lamb, lion, rmsprop");
  Optimizer optimizer = it->second;
  for (const auto& [key, value] : coefficients) {
    const bool known = std::visit(
        [&, &key = key, &value = value](auto& o) {
          if (key == "learning_rate") return o.learning_rate = value, true;
          return SetCoefficient(o, key, value);
        },
        optimizer);
    if (!known) return InvalidArgument("optimizer '" + name + "' has no coefficient '" + key + "'");
  }
  return optimizer;
}

}  // namespace caesura
