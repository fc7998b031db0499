// SPDX-License-Identifier: Apache-2.0
// SVMClassifier and SVMRegressor (domain ai.onnx.ml), with libsvm's layout of support vectors and
// coefficients.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/ml/scores.h"

namespace caesura {
namespace {

// k(a, b) of the specification's four kinds.
struct SvmKernel {
  enum class Kind { kLinear, kPoly, kRbf, kSigmoid };
  Kind kind = Kind::kLinear;
  double gamma = 0, coef0 = 0, degree = 0;

  static Result<SvmKernel> Of(const KernelInfo& info) {
    SvmKernel out;
    const std::string name = info.Attr<std::string>("kernel_type", "LINEAR");
    const auto parameters = info.Attr<std::vector<float>>("kernel_params", {});
    if (name == "POLY") out.kind = Kind::kPoly;
    else if (name == "RBF") out.kind = Kind::kRbf;
    else if (name == "SIGMOID") out.kind = Kind::kSigmoid;
    else if (name != "LINEAR") return info.Invalid("unknown kernel_type " + name);
    if (!parameters.empty() && parameters.size() != 3)
      return info.Invalid("kernel_params must have 3 entries");
    if (parameters.empty()) return out;
    out.gamma = parameters[0];
    out.coef0 = parameters[1];
    out.degree = parameters[2];
    return out;
  }

  double operator()(const double* a, const float* b, int64_t count) const {
    double sum = 0;
    if (kind == Kind::kRbf) {
      for (int64_t i = 0; i < count; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
      return std::exp(-gamma * sum);
    }
    for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    if (kind == Kind::kPoly) return std::pow(gamma * sum + coef0, degree);
    if (kind == Kind::kSigmoid) return std::tanh(gamma * sum + coef0);
    return sum;
  }
};

struct SvmModel {
  FeatureRows x;
  SvmKernel kernel;
  PostTransform transform = PostTransform::kNone;
  std::vector<float> coefficients, vectors, rho;
  int64_t vector_count = 0;  // 0: linear, the coefficients are weights of features
};

Result<SvmModel> ReadSvm(const KernelInfo& info, int64_t vector_count) {
  SvmModel model;
  ASSIGN_OR_RETURN(model.x, FeatureRowsOf(info, 0));
  ASSIGN_OR_RETURN(model.kernel, SvmKernel::Of(info));
  ASSIGN_OR_RETURN(model.transform, ParsePostTransform(info));
  model.coefficients = info.Attr<std::vector<float>>("coefficients", {});
  model.vectors = info.Attr<std::vector<float>>("support_vectors", {});
  model.rho = info.Attr<std::vector<float>>("rho", {});
  model.vector_count = vector_count;
  const int64_t size = static_cast<int64_t>(model.vectors.size());
  const bool fits =
      vector_count <= size &&
      (vector_count == 0 || (size % vector_count == 0 && size / vector_count == model.x.columns));
  if (vector_count < 0 || !fits) {
    return info.Invalid("has " + std::to_string(size) + " numbers for " +
                        std::to_string(vector_count) + " support vectors of " +
                        std::to_string(model.x.columns) + " features");
  }
  if (model.rho.empty()) return info.Invalid("needs rho");
  return model;
}

// --- SVMRegressor: sum of coefficient * k(x, vector) + rho; one-class models give its sign ---

Status CreateSvmRegressor(KernelInfo& info) {
  ASSIGN_OR_RETURN(SvmModel model, ReadSvm(info, info.Attr<int64_t>("n_supports", 0)));
  if (model.vector_count == 0) model.kernel.kind = SvmKernel::Kind::kLinear;
  const int64_t needed = model.vector_count > 0 ? model.vector_count : model.x.columns;
  if (static_cast<int64_t>(model.coefficients.size()) != needed) {
    return info.Invalid("needs " + std::to_string(needed) + " coefficients");
  }
  const bool one_class = info.Attr<int64_t>("one_class", 0) != 0;
  info.SetOutput(0, DType::kFloat32, Shape{model.x.rows, 1});
  info.SetCompute([model, one_class, threads = info.threads()](KernelContext& context) {
    float* y = context.Output<float>(0);
    const int64_t width = model.x.columns;
    const int64_t work = width * std::max<int64_t>(1, model.vector_count);
    ForEachRow(model.x, context, threads, work, [&](int64_t r, const double* features) {
      double sum = model.rho[0];
      if (model.vector_count == 0) sum += model.kernel(features, model.coefficients.data(), width);
      for (int64_t v = 0; v < model.vector_count; ++v) {
        sum +=
            model.coefficients[v] * model.kernel(features, model.vectors.data() + v * width, width);
      }
      y[r] = one_class ? (sum > 0 ? 1.0f : -1.0f) : static_cast<float>(sum);
      ApplyPostTransform(model.transform, y + r, 1);
    });
  });
  return {};
}

// --- SVMClassifier ---

struct SvmClassifier : SvmModel {
  ClassLabels labels;
  int64_t classes = 0, pairs = 0;
  std::vector<int64_t> first;  // first[i]..first[i + 1]: the support vectors of class i
  std::vector<float> prob_a, prob_b;
  int64_t width = 0;  // of the scores
};

// One vote and one score for each pair of classes i < j.
void ScorePairs(const SvmClassifier& model, const double* features, std::vector<double>* scores,
                std::vector<int64_t>* votes) {
  std::vector<double> kernels(model.vector_count);
  for (int64_t v = 0; v < model.vector_count; ++v) {
    kernels[v] =
        model.kernel(features, model.vectors.data() + v * model.x.columns, model.x.columns);
  }
  size_t pair = 0;
  for (int64_t i = 0; i < model.classes; ++i) {
    for (int64_t j = i + 1; j < model.classes; ++j, ++pair) {
      const float* of_i = model.coefficients.data() + (j - 1) * model.vector_count;
      const float* of_j = model.coefficients.data() + i * model.vector_count;
      double sum = model.rho[pair];
      for (int64_t v = model.first[i]; v < model.first[i + 1]; ++v) sum += of_i[v] * kernels[v];
      for (int64_t v = model.first[j]; v < model.first[j + 1]; ++v) sum += of_j[v] * kernels[v];
      (*scores)[pair] = sum;
      ++(*votes)[sum > 0 ? i : j];
    }
  }
}

// Probabilities of k classes from those of the pairs, by the iteration of Wu, Lin and Weng (JMLR 5,
// 2004, second method), as libsvm does.
void CoupleProbabilities(int64_t k, const std::vector<double>& r, std::vector<double>* p) {
  std::vector<double> q(k * k), qp(k);
  for (int64_t t = 0; t < k; ++t) {
    (*p)[t] = 1.0 / static_cast<double>(k);
    for (int64_t j = 0; j < k; ++j) {
      if (j == t) continue;
      q[t * k + t] += r[j * k + t] * r[j * k + t];
      q[t * k + j] = -r[j * k + t] * r[t * k + j];
    }
  }
  const double tolerance = 0.005 / static_cast<double>(k);
  for (int64_t iteration = 0; iteration < std::max<int64_t>(100, k); ++iteration) {
    double pqp = 0, error = 0;
    for (int64_t t = 0; t < k; ++t) {
      qp[t] = 0;
      for (int64_t j = 0; j < k; ++j) qp[t] += q[t * k + j] * (*p)[j];
      pqp += (*p)[t] * qp[t];
    }
    for (int64_t t = 0; t < k; ++t) error = std::max(error, std::fabs(qp[t] - pqp));
    if (error < tolerance) return;
    for (int64_t t = 0; t < k; ++t) {
      const double step = (pqp - qp[t]) / q[t * k + t];
      (*p)[t] += step;
      pqp = (pqp + step * (step * q[t * k + t] + 2 * qp[t])) / ((1 + step) * (1 + step));
      for (int64_t j = 0; j < k; ++j) {
        qp[j] = (qp[j] + step * q[t * k + j]) / (1 + step);
        (*p)[j] /= 1 + step;
      }
    }
  }
}

// Platt's sigmoid of each pair's score, then coupled.
std::vector<double> Probabilities(const SvmClassifier& model, const std::vector<double>& scores) {
  const int64_t k = model.classes;
  std::vector<double> pairwise(k * k), out(k);
  size_t pair = 0;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = i + 1; j < k; ++j, ++pair) {
      const double sigmoid =
          1.0 / (1.0 + std::exp(scores[pair] * model.prob_a[pair] + model.prob_b[pair]));
      pairwise[i * k + j] = std::clamp(sigmoid, 1e-7, 1 - 1e-7);
      pairwise[j * k + i] = 1 - pairwise[i * k + j];
    }
  }
  CoupleProbabilities(k, pairwise, &out);
  return out;
}

// Fills the row of scores and returns the class, -1 for "not the only class".
int64_t Classify(const SvmClassifier& model, const double* features, float* out) {
  const bool linear = model.vector_count == 0;
  std::vector<double> scores(linear ? model.classes : model.pairs);
  std::vector<int64_t> votes(model.classes);
  if (linear) {
    for (int64_t i = 0; i < model.classes; ++i) {
      const float* weights = model.coefficients.data() + i * model.x.columns;
      scores[i] = model.rho[0] + SvmKernel()(features, weights, model.x.columns);
    }
  } else {
    ScorePairs(model, features, &scores, &votes);
  }
  int64_t winner = linear ? std::max_element(scores.begin(), scores.end()) - scores.begin()
                          : std::max_element(votes.begin(), votes.end()) - votes.begin();
  if (linear && model.classes == 1 && scores[0] <= 0) winner = -1;
  const bool probable = !linear && !model.prob_a.empty();
  if (probable) scores = Probabilities(model, scores);
  if (!linear && !probable && model.pairs == 1) scores = {-scores[0], scores[0]};
  for (int64_t i = 0; i < model.width; ++i) out[i] = static_cast<float>(scores[i]);
  ApplyPostTransform(model.transform, out, model.width);
  return winner;
}

Status CheckClassifier(const KernelInfo& info, SvmClassifier* model) {
  const int64_t k = model->classes;
  const bool linear = model->vector_count == 0;
  model->pairs = k * (k - 1) / 2;
  if (!linear && (static_cast<int64_t>(model->first.size()) != k + 1 || k < 2)) {
    return info.Invalid("vectors_per_class needs an entry for each of " + std::to_string(k) +
                        " classes, 2 at least");
  }
  const int64_t coefficients = linear ? k * model->x.columns : (k - 1) * model->vector_count;
  const int64_t offsets = linear ? 1 : model->pairs;
  if (static_cast<int64_t>(model->coefficients.size()) != coefficients ||
      static_cast<int64_t>(model->rho.size()) < offsets) {
    return info.Invalid("needs " + std::to_string(coefficients) + " coefficients and " +
                        std::to_string(offsets) + " entries of rho");
  }
  model->prob_a = info.Attr<std::vector<float>>("prob_a", {});
  model->prob_b = info.Attr<std::vector<float>>("prob_b", {});
  const size_t needed = model->prob_a.empty() ? 0 : static_cast<size_t>(model->pairs);
  if (!linear && (model->prob_a.size() != needed || model->prob_b.size() != needed)) {
    return info.Invalid("prob_a and prob_b must have an entry for each of " +
                        std::to_string(model->pairs) + " pairs");
  }
  model->width = linear || needed > 0 ? k : model->pairs == 1 ? 2 : model->pairs;
  return {};
}

Status CreateSvmClassifier(KernelInfo& info) {
  SvmClassifier model;
  model.first = {0};
  for (int64_t count : info.Attr<std::vector<int64_t>>("vectors_per_class", {})) {
    if (count < 0 || count > INT_MAX) return info.Invalid("vectors_per_class is out of range");
    model.first.push_back(model.first.back() + count);
  }
  ASSIGN_OR_RETURN(static_cast<SvmModel&>(model), ReadSvm(info, model.first.back()));
  ASSIGN_OR_RETURN(model.labels, ClassLabels::Of(info, "classlabels_ints", "classlabels_strings"));
  model.classes = model.labels.size();
  RETURN_IF_ERROR(CheckClassifier(info, &model));
  info.SetOutput(0, model.labels.dtype(), Shape{model.x.rows});
  info.SetOutput(1, DType::kFloat32, Shape{model.x.rows, model.width});
  const bool has_labels = info.HasOutput(0), has_scores = info.HasOutput(1);
  info.SetCompute(
      [model, has_labels, has_scores, threads = info.threads()](KernelContext& context) {
        const int64_t work = model.x.columns * std::max(model.classes, model.vector_count);
        ForEachRow(model.x, context, threads, work, [&](int64_t r, const double* features) {
          std::vector<float> own(has_scores ? 0 : model.width);
          float* scores = has_scores ? context.Output<float>(1) + r * model.width : own.data();
          const int64_t winner = Classify(model, features, scores);
          if (has_labels) model.labels.Write(context, r, winner);
        });
      });
  return {};
}

}  // namespace

void RegisterSvm(KernelRegistry& registry) {
  registry.Add({.op_type = "SVMClassifier",
                .domain = kMlDomain,
                .types = kMlFeatureTypes,
                .create = CreateSvmClassifier});
  registry.Add({.op_type = "SVMRegressor",
                .domain = kMlDomain,
                .types = kMlFeatureTypes,
                .create = CreateSvmRegressor});
}

}  // namespace caesura
