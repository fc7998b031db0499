// SPDX-License-Identifier: Apache-2.0
// The common part of all optimizer updates, as numbers: their inputs (coefficients, step, scale,
// parameters..., gradients..., states...), the checks, and which rule is theirs.
#ifndef CAESURA_CORE_OPS_OPTIMIZER_UPDATE_SPEC_H_
#define CAESURA_CORE_OPS_OPTIMIZER_UPDATE_SPEC_H_

#include <array>
#include <string>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura {

// A number that a node has, exact: a float64 scalar tensor as DescribeUpdate writes it; a plain
// float is taken too.
double WrittenNumber(const KernelInfo& info, const char* name, double fallback);

// A coefficient of a rule: fed in each step where the attribute `fed` names it; otherwise the
// node's WrittenNumber.
struct Coefficient {
  const char* name;
  double fallback;
};

struct UpdateSpec {
  static constexpr int kFirst = 3;  // inputs before the parameters

  // Checks inputs and outputs, plans the outputs in place. `states`: state tensors of each
  // parameter, of which the first `scalars` are scalars, all of float32 or all of float64.
  static Result<UpdateSpec> Make(KernelInfo& info, int states,
                                 const std::vector<Coefficient>& coefficients, int scalars = 0);

  // The input and the output of parameter `i`, or of one of its states; -1 is the parameter.
  int Input(int state, int i) const { return kFirst + (state < 0 ? 0 : 2 + state) * count + i; }
  int Output(int state, int i) const { return (1 + state) * count + i; }
  int Gradient(int i) const { return kFirst + count + i; }

  DType dtype = DType::kUndefined, rate_dtype = DType::kUndefined,
        scale_dtype = DType::kUndefined,  // undefined: there is no scale
      scalar_dtype = DType::kFloat32;
  int count = 0, states = 0, scalars = 0;
  bool skip_nonfinite = false, skip_infinite = false, maximize = false;
  int rate = 0;                 // where input 0 has the learning rate
  int step_offset = -1;         // where it has what is added to the step; -1: nothing is
  std::array<int, 6> fed = {};  // where it has the coefficients; -1: they are as written
  std::array<double, 6> written = {};
  std::vector<int64_t> elements;  // of each parameter
  std::string wrong_step;         // the error where the step is below 1

 private:
  Status CheckTensors(const KernelInfo& info) const;
  Status FindCoefficients(const KernelInfo& info, const std::vector<Coefficient>& coefficients);
};

// The rules of update_rules.h, each by the type's name.
enum class UpdateRule : uint8_t {
  kPlainSgd,
  kSgd,
  kAdam,
  kAmsgrad,
  kLion,
  kRmsprop,
  kCenteredRmsprop,
  kMomentumRmsprop,
  kCenteredMomentumRmsprop,
  kNAdam,
  kRAdam,
  kAdamax,
  kAdagrad,
  kAdadelta,
  kAsgd,
  kRprop,
  kLamb,
};

struct RuleChoice {
  UpdateRule rule;
  int states;                             // with the scalars
  std::vector<Coefficient> coefficients;  // in the order in which the rule reads them
  bool flag = false;
  int scalars = 0;  // the first so many states
};

// The ops whose rule is all of an update: no element depends on others of its parameter.
inline constexpr const char* kRuleOps[] = {"SgdUpdate",      "AdamUpdate",    "AdamWUpdate",
                                           "LionUpdate",     "RmspropUpdate", "NAdamUpdate",
                                           "RAdamUpdate",    "AdamaxUpdate",  "AdagradUpdate",
                                           "AdadeltaUpdate", "AsgdUpdate",    "RpropUpdate"};
// The rule of a node, by its op, attributes and outputs. REQUIRES: it is one of kRuleOps, or
// LambUpdate.
RuleChoice ChooseRule(const KernelInfo& info);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_OPTIMIZER_UPDATE_SPEC_H_
