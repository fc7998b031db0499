// SPDX-License-Identifier: Apache-2.0
// Optimizers: coefficients under PyTorch's names and with PyTorch's defaults, and the update op that each stands for
// (training/kernels/training_ops.h).
//
//   options.optimizer = AdamW{.learning_rate = 3e-4, .weight_decay = 0.1};
#ifndef CAESURA_TRAINING_OPTIMIZER_OPTIMIZER_H_
#define CAESURA_TRAINING_OPTIMIZER_OPTIMIZER_H_

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/graph/node.h"

namespace caesura {

// torch.optim.SGD. State: momentum_buffer, if momentum is not 0.
struct Sgd {
  double learning_rate = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

// torch.optim.Adam (weight decay as L2). State: exp_avg, exp_avg_sq.
struct Adam {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

// torch.optim.AdamW (Loshchilov and Hutter 2019: decoupled weight decay). State: exp_avg, exp_avg_sq.
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
};

// You et al. 2020, with bias correction. State: exp_avg, exp_avg_sq.
struct Lamb {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 1e-2;
};

// Chen et al. 2023. State: exp_avg.
struct Lion {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

// torch.optim.RMSprop. State: square_avg, grad_avg if centered, momentum_buffer if momentum is not 0.
struct Rmsprop {
  double learning_rate = 1e-2;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double momentum = 0;
  double weight_decay = 0;
  bool centered = false;
};

using Optimizer = std::variant<Sgd, Adam, AdamW, Lamb, Lion, Rmsprop>;

// Parameters whose names match one of `names` ('*' matches any run of characters); the first group that matches a
// parameter takes it, the rest form a group with the optimizer's own coefficients.
struct ParameterGroup {
  std::vector<std::string> names;
  double learning_rate_scale = 1;       // times the schedule's learning rate
  std::optional<double> weight_decay;   // in place of the optimizer's
};

// What the step program needs to know.
struct OptimizerUpdate {
  std::string op_type;              // "AdamWUpdate", in domain ai.caesura
  AttributeMap coefficients;        // float64 scalar tensors (exact), flags as ints
  std::vector<std::string> states;  // names of the state tensors that each parameter has; all start as zeros
};
OptimizerUpdate DescribeUpdate(const Optimizer& optimizer);

// By name ("sgd", "adam", "adamw", "lamb", "lion", "rmsprop") and coefficients by the names of the members above; flags are
// 0 or 1. Fails with kInvalidArgument for a name or a coefficient that does not exist.
Result<Optimizer> MakeOptimizer(const std::string& name, const std::map<std::string, double>& coefficients);

double LearningRate(const Optimizer& optimizer);
// The optimizer with the group's weight decay, where it sets one.
Optimizer ForGroup(Optimizer optimizer, const ParameterGroup& group);
// '*' in `pattern` matches any run of characters.
bool MatchesName(const std::string& pattern, const std::string& name);

}  // namespace caesura

#endif  // CAESURA_TRAINING_OPTIMIZER_OPTIMIZER_H_
