// SPDX-License-Identifier: Apache-2.0
// CtcLoss: the loss of connectionist temporal classification with its derivative (Graves et al.,
// 2006: equations 6 to 11 and 16), in logarithms. A target of L labels has 2 L + 1 states: its
// labels with blanks around them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

struct CtcSpec {
  int64_t steps = 0, batch = 0, classes = 0;
  int64_t most_labels = 0;  // of a target that can have a path
  int64_t row = 0;          // labels from one target to the next
  bool in_rows = false;     // otherwise the targets follow one another
  int64_t labels = 0;       // in all targets
  int64_t blank = 0;
  bool zero_infinity = false;
  size_t scratch = 0;
  int64_t scratch_size = 0;  // elements of one sample
};

template <typename T>
T LogSum(T a, T b, T c) {
  const T most = std::max({a, b, c});
  if (most == -std::numeric_limits<T>::infinity()) return most;
  return most + std::log(std::exp(a - most) + std::exp(b - most) + std::exp(c - most));
}

// One sample: log_probs and slopes are its own, `stride` elements from one step to the next.
template <typename T>
class CtcSample {
 public:
  CtcSample(const CtcSpec& spec, const T* log_probs, const int64_t* target, int64_t steps,
            int64_t labels, T* scratch)
      : s_(spec),
        log_probs_(log_probs),
        target_(target),
        steps_(steps),
        states_(2 * labels + 1),
        alpha_(scratch),
        beta_(scratch + spec.steps * (2 * spec.most_labels + 1)) {}

  // Fills alpha: the logarithm of the probability of all paths that are in a state after a step.
  T Loss() {
    if (steps_ == 0) return states_ == 1 ? T(0) : -kNone;
    for (int64_t t = 0; t < steps_; ++t) {
      const T* before = alpha_ + (t - 1) * states_;
      T* now = alpha_ + t * states_;
      for (int64_t i = 0; i < states_; ++i) {
        T sum = i < 2 ? T(0) : kNone;
        if (t > 0)
          sum =
              LogSum(before[i], i > 0 ? before[i - 1] : kNone, SkipsTo(i) ? before[i - 2] : kNone);
        now[i] = sum + LogProb(t, i);
      }
    }
    const T* last = alpha_ + (steps_ - 1) * states_;
    return -LogSum(last[states_ - 1], states_ > 1 ? last[states_ - 2] : kNone, kNone);
  }

  // The derivative of the loss by the scores that log_probs are the logarithms of the softmax of,
  // as PyTorch has it.
  void Slopes(T loss, T* slopes) {
    for (int64_t t = s_.steps - 1; t >= 0; --t) {
      T* slope = slopes + t * Stride();
      if (t >= steps_ || loss == -kNone) {
        std::fill_n(slope, s_.classes,
                    t >= steps_ || s_.zero_infinity ? T(0) : std::numeric_limits<T>::quiet_NaN());
        continue;
      }
      std::fill_n(slope, s_.classes, kNone);
      const T* after = beta_ + (t + 1) % 2 * states_;
      T* now = beta_ + t % 2 * states_;
      for (int64_t i = states_ - 1; i >= 0; --i) {
        T sum = i >= states_ - 2 ? T(0) : kNone;
        if (t < steps_ - 1) {
          sum = LogSum(after[i], i + 1 < states_ ? after[i + 1] : kNone,
                       i + 2 < states_ && SkipsTo(i + 2) ? after[i + 2] : kNone);
        }
        now[i] = sum + LogProb(t, i);
        T& all = slope[Label(i)];
        all = LogSum(all, alpha_[t * states_ + i] + now[i], kNone);
      }
      for (int64_t c = 0; c < s_.classes; ++c) {
        const T p = log_probs_[t * Stride() + c];
        slope[c] = std::exp(p) - std::exp(slope[c] + loss - p);
      }
    }
  }

 private:
  static constexpr T kNone = -std::numeric_limits<T>::infinity();

  int64_t Stride() const { return s_.batch * s_.classes; }
  int64_t Label(int64_t state) const { return state % 2 == 0 ? s_.blank : target_[state / 2]; }
  T LogProb(int64_t t, int64_t state) const { return log_probs_[t * Stride() + Label(state)]; }
  // Between labels that differ no blank is needed.
  bool SkipsTo(int64_t state) const {
    return state >= 2 && state % 2 == 1 && Label(state) != Label(state - 2);
  }

  const CtcSpec& s_;
  const T* log_probs_;
  const int64_t* target_;
  int64_t steps_, states_;
  T *alpha_, *beta_;
};

Status CheckSample(const CtcSpec& s, int64_t i, int64_t steps, int64_t labels, int64_t begin,
                   const int64_t* targets) {
  const std::string sample = "sample " + std::to_string(i) + ": ";
  if (steps < 0 || steps > s.steps) {
    return InvalidArgument(sample + "an input length from 0 to " + std::to_string(s.steps) +
                           " expected, got " + std::to_string(steps));
  }
  const int64_t room = s.in_rows ? s.row : s.labels - begin;
  if (labels < 0 || labels > room) {
    return InvalidArgument(sample + "a target length from 0 to " + std::to_string(room) +
                           " expected, got " + std::to_string(labels));
  }
  for (int64_t k = 0; k < labels; ++k) {
    if (targets[begin + k] >= 0 && targets[begin + k] < s.classes) continue;
    return InvalidArgument(sample + "labels from 0 to " + std::to_string(s.classes - 1) +
                           " expected, got " + std::to_string(targets[begin + k]));
  }
  return {};
}

template <typename T>
Status ComputeCtcLoss(const CtcSpec& s, int threads, KernelContext& context) {
  const T* log_probs = context.Input<T>(0);
  const auto *targets = context.Input<int64_t>(1), *steps = context.Input<int64_t>(2),
             *labels = context.Input<int64_t>(3);
  T *losses = context.Output<T>(0), *slopes = context.Output<T>(1),
    *scratch = context.Scratch<T>(s.scratch);
  int64_t* begins = reinterpret_cast<int64_t*>(scratch + s.batch * s.scratch_size);
  for (int64_t i = 0, begin = 0; i < s.batch; ++i) {
    begins[i] = s.in_rows ? i * s.row : begin;
    RETURN_IF_ERROR(CheckSample(s, i, steps[i], labels[i], begins[i], targets));
    begin += labels[i];
  }
  const int64_t work = 8 * s.steps * (2 * s.most_labels + 1 + s.classes) + 1;
  ParallelFor(threads, s.batch, 1 + kParallelGrain / work, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const bool has_path = labels[i] <= s.most_labels;
      CtcSample<T> sample(s, log_probs + i * s.classes, targets + begins[i], steps[i],
                          has_path ? labels[i] : 0, scratch + i * s.scratch_size);
      losses[i] = has_path ? sample.Loss() : std::numeric_limits<T>::infinity();
      sample.Slopes(losses[i], slopes + i * s.classes);
    }
  });
  return {};
}

Status CreateCtcLoss(KernelInfo& info) {
  const Shape &x = info.InputShape(0), &targets = info.InputShape(1);
  if (x.rank() != 3)
    return info.Invalid("log probabilities [steps, batch, classes] expected, got " + x.ToString());
  if (targets.rank() != 1 && (targets.rank() != 2 || targets[0] != x[1])) {
    return info.Invalid("targets [" + std::to_string(x[1]) +
                        ", labels] or one after the other expected, got " + targets.ToString());
  }
  for (int i = 1; i <= 3; ++i) {
    if (info.InputDType(i) != DType::kInt64)
      return info.Invalid("targets and lengths of int64 expected");
    if (i > 1 && info.InputShape(i) != Shape{x[1]})
      return info.Invalid("a length for each sample expected");
  }
  CtcSpec s;
  s.steps = x[0], s.batch = x[1], s.classes = x[2];
  s.labels = targets.elements();
  s.in_rows = targets.rank() == 2;
  s.row = s.in_rows ? targets[1] : 0;
  s.most_labels = std::min(s.in_rows ? s.row : s.labels, s.steps);
  s.blank = info.Attr<int64_t>("blank", 0);
  s.zero_infinity = info.Attr<int64_t>("zero_infinity", 0) != 0;
  if (s.blank < 0 || s.blank >= s.classes)
    return info.Invalid("blank from 0 to " + std::to_string(s.classes - 1) + " expected");
  s.scratch_size = (s.steps + 2) * (2 * s.most_labels + 1);
  info.SetOutput(0, info.InputDType(0), Shape{s.batch});
  info.SetOutput(1, info.InputDType(0), x);
  DispatchDType<float, double>(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    s.scratch_size += s.scratch_size % 2;  // what follows the samples' numbers are int64
    s.scratch = info.BookScratch(s.batch * (s.scratch_size * sizeof(T) + sizeof(int64_t)));
    info.SetCompute([s, threads = info.threads()](KernelContext& context) {
      return ComputeCtcLoss<T>(s, threads, context);
    });
  });
  return {};
}

}  // namespace

void RegisterCtcLoss(KernelRegistry& registry) {
  registry.Add({.op_type = "CtcLoss",
                .domain = kCaesuraDomain,
                .types = {DType::kFloat32, DType::kFloat64},
                .create = CreateCtcLoss});
  registry.Add({.op_type = "CtcLoss",
                .domain = kCaesuraDomain,
                .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateCtcLoss>});
}

}  // namespace caesura
