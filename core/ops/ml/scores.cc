// SPDX-License-Identifier: Apache-2.0
#include "core/ops/ml/scores.h"

#include <cmath>

namespace caesura {
namespace {

float Logistic(float x) {
  const float positive = 1.0f / (1.0f + std::exp(-std::fabs(x)));
  return x < 0 ? 1.0f - positive : positive;
}

// sqrt(2) * erfinv(2x - 1), with Winitzki's approximation of erfinv (a = 0.147), which ONNX's
// reference uses too.
float Probit(float score) {
  const float x = 2.0f * score - 1.0f;
  const float squares = (1.0f - x) * (1.0f + x);
  if (squares == 0.0f) return 0.0f;
  const float log = std::log(squares);
  const float a = 2.0f / (3.14159265f * 0.147f) + 0.5f * log;
  const float inverse = std::sqrt(std::sqrt(a * a - log / 0.147f) - a);
  return 1.41421356f * (x < 0 ? -inverse : inverse);
}

// `zero`: scores that are (nearly) zero stay zero.
void Softmax(float* scores, int64_t count, bool zero) {
  const float largest = *std::max_element(scores, scores + count);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool is_zero = zero && std::fabs(scores[i]) <= 1e-7f;
    scores[i] = is_zero ? scores[i] * std::exp(-largest) : std::exp(scores[i] - largest);
    sum += scores[i];
  }
  for (int64_t i = 0; i < count; ++i) scores[i] = sum == 0.0f ? 0.5f : scores[i] / sum;
}

}  // namespace

Result<PostTransform> ParsePostTransform(const KernelInfo& info) {
  const std::string name = info.Attr<std::string>("post_transform", "NONE");
  if (name == "NONE") return PostTransform::kNone;
  if (name == "SOFTMAX") return PostTransform::kSoftmax;
  if (name == "LOGISTIC") return PostTransform::kLogistic;
  if (name == "SOFTMAX_ZERO") return PostTransform::kSoftmaxZero;
  if (name == "PROBIT") return PostTransform::kProbit;
  return info.Invalid("unknown post_transform " + name);
}

void ApplyPostTransform(PostTransform transform, float* scores, int64_t count) {
  if (count == 0) return;
  switch (transform) {
    case PostTransform::kNone: return;
    case PostTransform::kSoftmax: return Softmax(scores, count, false);
    case PostTransform::kSoftmaxZero: return Softmax(scores, count, true);
    case PostTransform::kLogistic: std::transform(scores, scores + count, scores, Logistic); return;
    case PostTransform::kProbit: std::transform(scores, scores + count, scores, Probit); return;
  }
}

Result<FeatureRows> FeatureRowsOf(const KernelInfo& info, int input) {
  if (!info.HasInput(input) || !info.input(input).is_tensor)
    return info.Invalid("needs a tensor of features");
  const Shape& shape = info.InputShape(input);
  if (shape.rank() != 1 && shape.rank() != 2) {
    return info.Invalid("features must have shape [N, C] or [C], got " + shape.ToString());
  }
  const int64_t rows = shape.rank() == 2 ? shape[0] : 1;
  return FeatureRows{input, info.InputDType(input), rows, shape[shape.rank() - 1]};
}

Result<ClassLabels> ClassLabels::Of(const KernelInfo& info, const char* ints_name,
                                    const char* strings_name) {
  ClassLabels labels{info.Attr<std::vector<int64_t>>(ints_name, {}),
                     info.Attr<std::vector<std::string>>(strings_name, {})};
  if (labels.ints.empty() == labels.strings.empty()) {
    return info.Invalid(std::string("needs either ") + ints_name + " or " + strings_name);
  }
  return labels;
}

}  // namespace caesura
