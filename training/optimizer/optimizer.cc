// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer/optimizer.h"

#include <map>
#include <type_traits>
#include <utility>

namespace caesura {
namespace {

using States = std::vector<OptimizerState>;

// A row for each optimizer: its name, its update op, its coefficients and flags but the learning
// rate, and its states.
template <typename O>
struct Kind;

// The coefficients that Adam and its kin have.
void VisitAdam(auto& o, auto&& v) {
  v("beta1", o.beta1), v("beta2", o.beta2), v("epsilon", o.epsilon);
  v("weight_decay", o.weight_decay);
}

DType ScalarDType(bool is_float64) { return is_float64 ? DType::kFloat64 : DType::kFloat32; }

template <>
struct Kind<Sgd> {
  static constexpr const char *kName = "sgd", *kOp = "SgdUpdate";
  static void Visit(auto& o, auto&& v) {
    v("momentum", o.momentum), v("dampening", o.dampening), v("weight_decay", o.weight_decay);
    v("nesterov", o.nesterov), v("maximize", o.maximize);
  }
  static States Of(const Sgd& o) {
    return o.momentum != 0 ? States{{"momentum_buffer"}} : States{};
  }
};

template <typename O>
struct AdamKind {
  static void Visit(auto& o, auto&& v) {
    VisitAdam(o, v);
    v("amsgrad", o.amsgrad), v("maximize", o.maximize);
  }
  static States Of(const O& o) {
    States states = {{"exp_avg"}, {"exp_avg_sq"}};
    if (o.amsgrad) states.push_back({"max_exp_avg_sq"});
    return states;
  }
};
template <>
struct Kind<Adam> : AdamKind<Adam> {
  static constexpr const char *kName = "adam", *kOp = "AdamUpdate";
};
template <>
struct Kind<AdamW> : AdamKind<AdamW> {
  static constexpr const char *kName = "adamw", *kOp = "AdamWUpdate";
};

template <>
struct Kind<NAdam> {
  static constexpr const char *kName = "nadam", *kOp = "NAdamUpdate";
  static void Visit(auto& o, auto&& v) {
    VisitAdam(o, v);
    v("momentum_decay", o.momentum_decay), v("decoupled_weight_decay", o.decoupled_weight_decay);
    v("maximize", o.maximize), v("float64_state", o.float64_state);
  }
  static States Of(const NAdam& o) {
    return {{"mu_product", ScalarDType(o.float64_state), 1}, {"exp_avg"}, {"exp_avg_sq"}};
  }
};

template <>
struct Kind<RAdam> {
  static constexpr const char *kName = "radam", *kOp = "RAdamUpdate";
  static void Visit(auto& o, auto&& v) {
    VisitAdam(o, v);
    v("decoupled_weight_decay", o.decoupled_weight_decay), v("maximize", o.maximize);
  }
  static States Of(const RAdam&) { return {{"exp_avg"}, {"exp_avg_sq"}}; }
};

template <>
struct Kind<Adamax> {
  static constexpr const char *kName = "adamax", *kOp = "AdamaxUpdate";
  static void Visit(auto& o, auto&& v) {
    VisitAdam(o, v);
    v("maximize", o.maximize);
  }
  static States Of(const Adamax&) { return {{"exp_avg"}, {"exp_inf"}}; }
};

template <>
struct Kind<Adagrad> {
  static constexpr const char *kName = "adagrad", *kOp = "AdagradUpdate";
  static void Visit(auto& o, auto&& v) {
    v("lr_decay", o.lr_decay), v("weight_decay", o.weight_decay), v("epsilon", o.epsilon);
    v("initial_accumulator_value", o.initial_accumulator_value), v("maximize", o.maximize);
  }
  static States Of(const Adagrad& o) {
    return {{"sum", DType::kUndefined, o.initial_accumulator_value}};
  }
};

template <>
struct Kind<Adadelta> {
  static constexpr const char *kName = "adadelta", *kOp = "AdadeltaUpdate";
  static void Visit(auto& o, auto&& v) {
    v("rho", o.rho), v("epsilon", o.epsilon), v("weight_decay", o.weight_decay),
        v("maximize", o.maximize);
  }
  static States Of(const Adadelta&) { return {{"square_avg"}, {"acc_delta"}}; }
};

template <>
struct Kind<Asgd> {
  static constexpr const char *kName = "asgd", *kOp = "AsgdUpdate";
  static void Visit(auto& o, auto&& v) {
    v("lambd", o.lambd), v("alpha", o.alpha), v("t0", o.t0), v("weight_decay", o.weight_decay);
    v("maximize", o.maximize), v("float64_state", o.float64_state);
    v("float64_rates", o.float64_rates);
  }
  static States Of(const Asgd& o) {
    const DType scalar = ScalarDType(o.float64_state);
    return {{"eta", scalar, o.learning_rate}, {"mu", scalar, 1}, {"ax"}};
  }
};

template <>
struct Kind<Rprop> {
  static constexpr const char *kName = "rprop", *kOp = "RpropUpdate";
  static void Visit(auto& o, auto&& v) {
    v("eta_minus", o.eta_minus), v("eta_plus", o.eta_plus), v("step_size_min", o.step_size_min);
    v("step_size_max", o.step_size_max), v("maximize", o.maximize);
  }
  static States Of(const Rprop& o) {
    return {{"prev"}, {"step_size", DType::kUndefined, o.learning_rate}};
  }
};

template <>
struct Kind<Adafactor> {
  static constexpr const char *kName = "adafactor", *kOp = "";
  static void Visit(auto& o, auto&& v) {
    v("beta2_decay", o.beta2_decay), v("epsilon1", o.epsilon1), v("epsilon2", o.epsilon2),
        v("d", o.d);
    v("weight_decay", o.weight_decay), v("maximize", o.maximize);
  }
  static States Of(const Adafactor&) { return {}; }
};

template <>
struct Kind<Muon> {
  static constexpr const char *kName = "muon", *kOp = "";
  static void Visit(auto& o, auto&& v) {
    v("weight_decay", o.weight_decay), v("momentum", o.momentum), v("ns_a", o.ns_a),
        v("ns_b", o.ns_b), v("ns_c", o.ns_c);
    v("epsilon", o.epsilon), v("ns_steps", o.ns_steps), v("nesterov", o.nesterov),
        v("match_rms_adamw", o.match_rms_adamw), v("spectral_unclamped", o.spectral_unclamped);
  }
  static States Of(const Muon&) { return {}; }
};

template <>
struct Kind<Lamb> {
  static constexpr const char *kName = "lamb", *kOp = "LambUpdate";
  static void Visit(auto& o, auto&& v) { VisitAdam(o, v); }
  static States Of(const Lamb&) { return {{"exp_avg"}, {"exp_avg_sq"}}; }
};

template <>
struct Kind<Lion> {
  static constexpr const char *kName = "lion", *kOp = "LionUpdate";
  static void Visit(auto& o, auto&& v) {
    v("beta1", o.beta1), v("beta2", o.beta2), v("weight_decay", o.weight_decay);
  }
  static States Of(const Lion&) { return {{"exp_avg"}}; }
};

template <>
struct Kind<Rmsprop> {
  static constexpr const char *kName = "rmsprop", *kOp = "RmspropUpdate";
  static void Visit(auto& o, auto&& v) {
    v("alpha", o.alpha), v("epsilon", o.epsilon), v("momentum", o.momentum),
        v("weight_decay", o.weight_decay);
    v("centered", o.centered), v("maximize", o.maximize);
  }
  static States Of(const Rmsprop& o) {
    States states = {{"square_avg"}};
    if (o.centered) states.push_back({"grad_avg"});
    if (o.momentum != 0) states.push_back({"momentum_buffer"});
    return states;
  }
};

template <typename O>
using KindOf = Kind<std::remove_cvref_t<O>>;

// Calls f(o) with each of the optimizers, which has its defaults.
template <typename F>
void ForEachKind(F f) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    (f(std::variant_alternative_t<I, Optimizer>{}), ...);
  }(std::make_index_sequence<std::variant_size_v<Optimizer>>());
}

}  // namespace

OptimizerUpdate DescribeUpdate(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& o) {
        using K = KindOf<decltype(o)>;
        OptimizerUpdate update{K::kOp, {}, K::Of(o)};
        K::Visit(o, [&](const char* name, const auto& value) {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, bool>) {
            update.coefficients[name] = static_cast<int64_t>(value);
          } else {
            update.coefficients[name] = Tensor::Scalar<double>(value);
          }
        });
        return update;
      },
      optimizer);
}

std::map<std::string, double> Coefficients(const Optimizer& optimizer) {
  std::map<std::string, double> out = {{"learning_rate", LearningRate(optimizer)}};
  std::visit(
      [&](const auto& o) {
        KindOf<decltype(o)>::Visit(o,
                                   [&](const char* name, const auto& value) { out[name] = value; });
      },
      optimizer);
  return out;
}

double LearningRate(const Optimizer& optimizer) {
  return std::visit([](const auto& o) { return o.learning_rate; }, optimizer);
}

Optimizer ForGroup(Optimizer optimizer, const ParameterGroup& group) {
  if (group.optimizer) optimizer = *group.optimizer;
  if (group.weight_decay) {
    std::visit(
        [&](auto& o) {
          if constexpr (requires { o.weight_decay; }) o.weight_decay = *group.weight_decay;
        },
        optimizer);
  }
  return optimizer;
}

Result<Optimizer> MakeOptimizer(const std::string& name,
                                const std::map<std::string, double>& coefficients) {
  std::optional<Optimizer> made;
  std::string names;
  ForEachKind([&](const auto& o) {
    const char* kind = KindOf<decltype(o)>::kName;
    names += (names.empty() ? "" : ", ") + std::string(kind);
    if (name == kind) made = o;
  });
  if (!made) return InvalidArgument("optimizer '" + name + "' is none of " + names);
  for (const auto& [key, value] : coefficients) {
    bool known = false;
    std::visit(
        [&, &key = key, &value = value](auto& o) {
          auto set = [&](const char* member, auto& target) {
            if (key != member) return;
            target = static_cast<std::remove_reference_t<decltype(target)>>(value);
            known = true;
          };
          set("learning_rate", o.learning_rate);
          KindOf<decltype(o)>::Visit(o, set);
        },
        *made);
    if (!known) return InvalidArgument("optimizer '" + name + "' has no coefficient '" + key + "'");
  }
  return *made;
}

}  // namespace caesura
