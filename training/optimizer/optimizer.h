// SPDX-License-Identifier: Apache-2.0
// Optimizers: coefficients under PyTorch's names and with PyTorch's defaults, and the update op
// that each stands for (core/ops).
//
//   options.optimizer = AdamW{.learning_rate = 3e-4, .weight_decay = 0.1};
#ifndef CAESURA_TRAINING_OPTIMIZER_OPTIMIZER_H_
#define CAESURA_TRAINING_OPTIMIZER_OPTIMIZER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// torch.optim.SGD. State: momentum_buffer, if momentum is not 0.
struct Sgd {
  double learning_rate = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

// torch.optim.Adam (weight decay as L2). State: exp_avg, exp_avg_sq, max_exp_avg_sq if amsgrad.
struct Adam {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
};

// torch.optim.AdamW (Loshchilov and Hutter 2019: decoupled weight decay). State: as Adam's.
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

// torch.optim.NAdam (Dozat 2016: Adam with Nesterov momentum). State: mu_product, exp_avg,
// exp_avg_sq.
struct NAdam {
  double learning_rate = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;
  bool maximize = false;
  bool float64_state = false;  // of mu_product, which is float32 otherwise
};

// torch.optim.RAdam (Liu et al. 2020: Adam with a rectified variance). State: exp_avg, exp_avg_sq.
struct RAdam {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  bool maximize = false;
};

// torch.optim.Adamax (Kingma and Ba 2015, section 7.1). State: exp_avg, exp_inf.
struct Adamax {
  double learning_rate = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
};

// torch.optim.Adagrad (Duchi et al. 2011). State: sum, which starts at initial_accumulator_value.
struct Adagrad {
  double learning_rate = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double epsilon = 1e-10;
  bool maximize = false;
};

// torch.optim.Adadelta (Zeiler 2012). State: square_avg, acc_delta.
struct Adadelta {
  double learning_rate = 1;
  double rho = 0.9;
  double epsilon = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
};

// torch.optim.ASGD (Polyak and Juditsky 1992). State: eta, which starts at the learning rate, mu,
// ax.
struct Asgd {
  double learning_rate = 1e-2;
  double lambd = 1e-4;
  double alpha = 0.75;
  double t0 = 1e6;
  double weight_decay = 0;
  bool maximize = false;
  bool float64_state = false;  // of eta and mu, which are float32 otherwise
  bool float64_rates = false;  // they are computed to float64; otherwise rounded to float32 first
};

// torch.optim.Rprop (Riedmiller and Braun 1993). State: prev, step_size, which starts at the
// learning rate.
struct Rprop {
  double learning_rate = 1e-2;
  double eta_minus = 0.5;
  double eta_plus = 1.2;
  double step_size_min = 1e-6;
  double step_size_max = 50;
  bool maximize = false;
};

// torch.optim.Adafactor (Shazeer and Stern 2018). State: row_var and col_var of what has two axes
// or more, or variance.
struct Adafactor {
  double learning_rate = 1e-2;
  double beta2_decay = -0.8;
  double epsilon1 = -1;  // below 0: the smallest step from 1 of the parameter's dtype
  double epsilon2 = 1e-3;
  double d = 1;
  double weight_decay = 0;
  bool maximize = false;
};

// torch.optim.Muon (Jordan et al. 2024), of matrices. State: momentum_buffer.
struct Muon {
  double learning_rate = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  double ns_a = 3.4445;
  double ns_b = -4.775;
  double ns_c = 2.0315;
  double epsilon = 1e-7;
  double ns_steps = 5;
  bool nesterov = true;
  // The learning rate by AdamW's root mean square, in place of the matrix's sides.
  bool match_rms_adamw = false;
  // The learning rate by sqrt(rows / columns), even where this is below 1. Excludes
  // match_rms_adamw.
  bool spectral_unclamped = false;
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

// torch.optim.RMSprop. State: square_avg, grad_avg if centered, momentum_buffer if momentum is not
// 0.
struct Rmsprop {
  double learning_rate = 1e-2;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double momentum = 0;
  double weight_decay = 0;
  bool centered = false;
  bool maximize = false;
};

// Any optimizer: a value without state. The state lives in the session's ParameterSet.
using Optimizer = std::variant<Sgd, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, Adadelta, Asgd,
                               Rprop, Adafactor, Muon, Lamb, Lion, Rmsprop>;

// Parameters whose names match one of `names` ('*' matches any run of characters); the first group
// that matches a parameter takes it, the rest form a group with the optimizer's own coefficients.
struct ParameterGroup {
  std::vector<std::string> names;
  double learning_rate_scale = 1;           // times the schedule's learning rate
  std::optional<double> weight_decay = {};  // in place of the optimizer's
  std::optional<Optimizer> optimizer = {};  // in place of the step's, but for the learning rate
};

// A tensor that an optimizer keeps for each parameter.
struct OptimizerState {
  std::string name;
  DType scalar = DType::kUndefined;  // a scalar's dtype; undefined: shape and dtype are the
                                     // parameter's
  double initial = 0;
};

// The facts that the step program needs.
struct OptimizerUpdate {
  std::string op_type;        // "AdamWUpdate", in domain ai.caesura; empty: composed of ONNX's ops
                              // (update_writer.h)
  AttributeMap coefficients;  // float64 scalar tensors (exact), flags as ints
  std::vector<OptimizerState> states;  // the scalars first
};
// The update op of an optimizer, with its coefficients and state.
OptimizerUpdate DescribeUpdate(const Optimizer& optimizer);
// Its coefficients by name, "learning_rate" among them; flags are 0 or 1.
std::map<std::string, double> Coefficients(const Optimizer& optimizer);

// By name ("sgd", "adam", "adamw", "nadam", ...) and coefficients by the names of the members
// above; flags are 0 or 1. Fails with kInvalidArgument for a name or a coefficient that does not
// exist.
Result<Optimizer> MakeOptimizer(const std::string& name,
                                const std::map<std::string, double>& coefficients);

// The optimizer's own learning rate, before any schedule.
double LearningRate(const Optimizer& optimizer);
// The optimizer of a group's parameters, with the group's weight decay where it sets one.
Optimizer ForGroup(Optimizer optimizer, const ParameterGroup& group);

// --- learning-rate schedules: pure functions of the step, with nothing to save but the step ---
//
//   LrSchedule schedule{.decay = CosineDecay{.steps = 9500}, .warmup_steps = 500};
//   double rate = 3e-4 * schedule.Factor(updates_done);

// In all of them t counts updates from 0, and `end` is the last value as a part of the base
// learning rate. Beyond `steps` the last value stays.

// 1
struct ConstantDecay {};

// end + (1 - end) (1 - t / steps)^power: torch's PolynomialLR (end 0), transformers' linear (power
// 1) and polynomial.
struct PolynomialDecay {
  int64_t steps = 0;
  double end = 0;
  double power = 1;
};

// end + (1 - end) (1 + cos(pi t / steps)) / 2: torch's CosineAnnealingLR, transformers' cosine.
struct CosineDecay {
  int64_t steps = 0;
  double end = 0;
};

// gamma^floor(t / every): torch's StepLR.
struct StepDecay {
  int64_t every = 0;
  double gamma = 0.1;
};

// Any decay. Each one gives a factor of the base learning rate.
using LrDecay = std::variant<ConstantDecay, PolynomialDecay, CosineDecay, StepDecay>;

// A linear warm-up, then a decay that counts from the warm-up's end (torch's SequentialLR).
struct LrSchedule {
  LrDecay decay = {};
  int64_t warmup_steps = 0;
  // The start of the warm-up: 0 in transformers (the first update then has rate 0), 1/3 in torch's
  // LinearLR.
  double warmup_start = 0;

  // The factor of the base learning rate in the update that follows `updates_done`
  // others.
  double Factor(int64_t updates_done) const;
  // Fails when a length is not positive or a coefficient is not finite.
  Status Check() const;
};

// "constant", "linear", "cosine", "polynomial" (power 2) or "step" (a tenth after each third),
// ending with update `total_steps`, the warm-up included.
Result<LrSchedule> NamedSchedule(const std::string& name, int64_t total_steps,
                                 int64_t warmup_steps = 0);

// --- dynamic loss scaling for half precision, with torch.amp.GradScaler's rules ---
//
// The loss is multiplied by scale() so that small gradients do not vanish, and gradients by
// 1 / scale(). A step whose gradients are not finite is skipped and lowers the scale; a long run of
// good ones raises it.

// The rules by which the loss scale moves; the defaults are PyTorch's.
struct GradScalerOptions {
  float initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // good steps in a row

  // growth_factor > 1, 0 < backoff_factor < 1, a positive scale and interval.
  Status Check() const;
};

// The current loss scale, and its rule after each update. Thread safety: one thread at a time.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {})
      : options_(options), scale_(options.initial_scale) {}

  const GradScalerOptions& options() const { return options_; }
  float scale() const { return scale_; }
  // Good steps since the scale changed last.
  int64_t good_steps() const { return good_steps_; }

  // After each update: were all gradients finite? If not, the update must not have happened.
  void Update(bool gradients_finite);
  // From a checkpoint.
  void Restore(float scale, int64_t good_steps) {
    scale_ = scale;
    good_steps_ = good_steps;
  }

 private:
  GradScalerOptions options_;
  float scale_;
  int64_t good_steps_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_OPTIMIZER_OPTIMIZER_H_
