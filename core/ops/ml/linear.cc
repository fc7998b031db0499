// SPDX-License-Identifier: Apache-2.0
// LinearClassifier and LinearRegressor (domain ai.onnx.ml): X * coefficients^T + intercepts,
// transformed.
#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/ml/scores.h"

namespace caesura {
namespace {

struct LinearModel {
  FeatureRows x;
  int64_t targets = 0;
  std::vector<float> coefficients;  // [targets, columns]
  std::vector<float> intercepts;    // [targets]
  PostTransform transform = PostTransform::kNone;

  void Score(const double* features, float* scores) const {
    for (int64_t t = 0; t < targets; ++t) {
      double sum = intercepts[t];
      for (int64_t c = 0; c < x.columns; ++c) sum += features[c] * coefficients[t * x.columns + c];
      scores[t] = static_cast<float>(sum);
    }
  }
};

// `targets` 0: as many as the coefficients make.
Result<LinearModel> ReadLinear(const KernelInfo& info, int64_t targets) {
  LinearModel model;
  ASSIGN_OR_RETURN(model.x, FeatureRowsOf(info, 0));
  ASSIGN_OR_RETURN(model.transform, ParsePostTransform(info));
  model.coefficients = info.Attr<std::vector<float>>("coefficients", {});
  model.intercepts = info.Attr<std::vector<float>>("intercepts", {});
  const int64_t count = static_cast<int64_t>(model.coefficients.size());
  if (model.x.columns == 0 || count % model.x.columns != 0 || count == 0) {
    return info.Invalid("has " + std::to_string(count) + " coefficients for " +
                        std::to_string(model.x.columns) + " features");
  }
  model.targets = count / model.x.columns;
  if (targets != 0 && targets != model.targets) {
    return info.Invalid("has coefficients for " + std::to_string(model.targets) +
                        " targets, not for " + std::to_string(targets));
  }
  if (model.intercepts.empty()) model.intercepts.assign(model.targets, 0.0f);
  if (static_cast<int64_t>(model.intercepts.size()) != model.targets) {
    return info.Invalid("needs an intercept for each of " + std::to_string(model.targets) +
                        " targets");
  }
  return model;
}

Status CreateLinearRegressor(KernelInfo& info) {
  const int64_t targets = info.Attr<int64_t>("targets", 1);
  if (targets < 1) return info.Invalid("targets must be positive");
  ASSIGN_OR_RETURN(const LinearModel model, ReadLinear(info, targets));
  info.SetOutput(0, DType::kFloat32, Shape{model.x.rows, targets});
  info.SetCompute([model, threads = info.threads()](KernelContext& context) {
    float* y = context.Output<float>(0);
    ForEachRow(model.x, context, threads, model.targets * model.x.columns,
               [&](int64_t r, const double* features) {
                 model.Score(features, y + r * model.targets);
                 ApplyPostTransform(model.transform, y + r * model.targets, model.targets);
               });
  });
  return {};
}

// One score: of two classes it speaks for the second one; of a single class, for it.
Status CreateLinearClassifier(KernelInfo& info) {
  ASSIGN_OR_RETURN(const LinearModel model, ReadLinear(info, 0));
  ASSIGN_OR_RETURN(const ClassLabels labels,
                   ClassLabels::Of(info, "classlabels_ints", "classlabels_strings"));
  const bool binary = model.targets == 1 && labels.size() == 2;
  const int64_t width = binary ? 2 : model.targets;
  if (width != labels.size()) {
    return info.Invalid("has " + std::to_string(model.targets) + " scores and " +
                        std::to_string(labels.size()) + " labels");
  }
  info.SetOutput(0, labels.dtype(), Shape{model.x.rows});
  info.SetOutput(1, DType::kFloat32, Shape{model.x.rows, width});
  const bool has_labels = info.HasOutput(0), has_scores = info.HasOutput(1);
  info.SetCompute([=, threads = info.threads()](KernelContext& context) {
    ForEachRow(model.x, context, threads, model.targets * model.x.columns,
               [&](int64_t r, const double* features) {
                 std::vector<float> own(has_scores ? 0 : width);
                 float* scores = has_scores ? context.Output<float>(1) + r * width : own.data();
                 model.Score(features, scores);
                 if (binary) {
                   scores[1] = scores[0];
                   scores[0] = -scores[1];
                 }
                 ApplyPostTransform(model.transform, scores, width);
                 if (!has_labels) return;
                 const float threshold = model.transform == PostTransform::kNone ? 0.0f : 0.5f;
                 const int64_t only = scores[0] >= threshold ? 0 : -1;
                 labels.Write(context, r, width > 1 ? ArgMax(scores, width) : only);
               });
  });
  return {};
}

}  // namespace

void RegisterLinearModel(KernelRegistry& registry) {
  registry.Add({.op_type = "LinearClassifier",
                .domain = kMlDomain,
                .types = kMlFeatureTypes,
                .create = CreateLinearClassifier});
  registry.Add({.op_type = "LinearRegressor",
                .domain = kMlDomain,
                .types = kMlFeatureTypes,
                .create = CreateLinearRegressor});
}

}  // namespace caesura
