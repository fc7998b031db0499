// SPDX-License-Identifier: Apache-2.0
// What SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and their gradients share: checks,
// labels, weights.
#ifndef CAESURA_CORE_OPS_LOSS_LOSS_SPEC_H_
#define CAESURA_CORE_OPS_LOSS_LOSS_SPEC_H_

#include <cassert>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/ops/infer_types.h"

namespace caesura {

enum class LossReduction { kNone, kSum, kMean };

// Scores [batch, classes, positions] against labels [batch, positions].
struct LossSpec {
  int64_t batch = 0, classes = 0, positions = 0;
  LossReduction reduction = LossReduction::kMean;
  bool has_ignore = false;
  int64_t ignore = 0;
  DType label_type = DType::kInt64;
  int label_input = 1, weight_input = -1;  // -1: no weights
  std::string node;                        // for errors at run time

  int64_t samples() const { return batch * positions; }
  // Where the score of `label` for sample `i` lies.
  int64_t ScoreAt(int64_t i, int64_t label) const {
    return (i / positions * classes + label) * positions + i % positions;
  }
};

// Reads the node's attributes and checks labels and weights against scores of shape `scores`.
inline Result<LossSpec> MakeLossSpec(const KernelInfo& info, const Shape& scores, int label_input,
                                     int weight_input) {
  if (scores.rank() < 2)
    return info.Invalid("scores of rank 2 or more expected, got " + scores.ToString());
  LossSpec spec;
  spec.batch = scores[0];
  spec.classes = scores[1];
  spec.positions = scores.Elements(2, scores.rank());
  spec.node = info.node().Label();
  spec.label_input = label_input;
  spec.label_type = info.InputDType(label_input);
  std::vector<int64_t> expected = scores.dims();
  expected.erase(expected.begin() + 1);
  if (info.InputShape(label_input).dims() != expected) {
    return info.Invalid("labels of shape " + Shape(expected).ToString() + " expected, got " +
                        info.InputShape(label_input).ToString());
  }
  if (spec.label_type != DType::kInt32 && spec.label_type != DType::kInt64) {
    return info.Invalid(std::string("int32 or int64 labels expected, got ") +
                        DTypeName(spec.label_type));
  }
  if (info.HasInput(weight_input)) {
    spec.weight_input = weight_input;
    if (info.InputShape(weight_input) != Shape{spec.classes}) {
      return info.Invalid("one weight a class expected, got " +
                          info.InputShape(weight_input).ToString());
    }
  }
  const std::string reduction = info.Attr<std::string>("reduction", "mean");
  if (reduction == "none") spec.reduction = LossReduction::kNone;
  else if (reduction == "sum") spec.reduction = LossReduction::kSum;
  else if (reduction != "mean")
    return info.Invalid("reduction must be none, sum or mean, got '" + reduction + "'");
  spec.has_ignore = info.node().HasAttribute("ignore_index");
  spec.ignore = info.Attr<int64_t>("ignore_index", 0);
  return spec;
}

// Checks the gradient of the loss, input 0 of the ops that take it back.
inline Status CheckLossGradient(const KernelInfo& info, const LossSpec& spec) {
  const Shape expected =
      spec.reduction == LossReduction::kNone ? info.InputShape(spec.label_input) : Shape{};
  if (info.InputShape(0) == expected) return {};
  return info.Invalid("dLoss of shape " + expected.ToString() + " expected, got " +
                      info.InputShape(0).ToString());
}

// Checks the inputs of SoftmaxCrossEntropyLossGrad (dLoss, scores, labels, weights?, lse), and
// gives the dtype that it writes.
inline Result<DType> CheckScoreGradient(const KernelInfo& info, const LossSpec& spec) {
  RETURN_IF_ERROR(CheckLossGradient(info, spec));
  const DType dtype = info.InputDType(1), sums = LogSumDType(dtype);
  if (info.InputDType(0) != dtype) return info.Invalid("dLoss and scores of one dtype expected");
  const Shape& samples = info.InputShape(spec.label_input);
  if (!info.IsTensor(4) || info.InputDType(4) != sums || info.InputShape(4) != samples) {
    return info.Invalid(
        std::string("lse: expected ") + DTypeName(sums) + samples.ToString() + ", got " +
        (info.IsTensor(4) ? DTypeName(info.InputDType(4)) + info.InputShape(4).ToString()
                          : "nothing"));
  }
  const auto written = static_cast<DType>(info.Attr<int64_t>("dtype", static_cast<int64_t>(dtype)));
  const bool is_half = written == DType::kFloat16 || written == DType::kBFloat16;
  if (written != dtype && !(dtype == DType::kFloat32 && is_half))
    return info.Invalid("dtype: expected float16 or bfloat16 for float32 scores");
  return written;
}

// Labels and weights of one call, with labels checked.
template <typename T>
class LossTargets {
 public:
  LossTargets(const LossSpec& spec, KernelContext& context)
      : spec_(spec),
        labels_(context.Input<void>(spec.label_input)),
        weights_(spec.weight_input < 0 ? nullptr : context.Input<T>(spec.weight_input)) {}

  int64_t Label(int64_t i) const {
    return spec_.label_type == DType::kInt32 ? static_cast<const int32_t*>(labels_)[i]
                                             : static_cast<const int64_t*>(labels_)[i];
  }
  // 0 for an ignored label. REQUIRES: Check() passed.
  Accumulator<T> Weight(int64_t label) const {
    if (IsIgnored(label)) return 0;
    assert(0 <= label && label < spec_.classes);
    return weights_ == nullptr ? Accumulator<T>(1) : static_cast<Accumulator<T>>(weights_[label]);
  }
  bool IsIgnored(int64_t label) const { return spec_.has_ignore && label == spec_.ignore; }

  Status Check() const {
    for (int64_t i = 0; i < spec_.samples(); ++i) {
      const int64_t label = Label(i);
      if ((label >= 0 && label < spec_.classes) || IsIgnored(label)) continue;
      return InvalidArgument(spec_.node + " label " + std::to_string(label) + " is outside [0, " +
                             std::to_string(spec_.classes) + ")");
    }
    return {};
  }

  // The sum of all samples' weights, by which a mean divides.
  double TotalWeight() const {
    if (weights_ == nullptr && !spec_.has_ignore) return static_cast<double>(spec_.samples());
    double sum = 0;
    for (int64_t i = 0; i < spec_.samples(); ++i) sum += Weight(Label(i));
    return sum;
  }

 private:
  const LossSpec& spec_;
  const void* labels_;
  const T* weights_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_LOSS_LOSS_SPEC_H_
