// SPDX-License-Identifier: Apache-2.0
// Preparation of features (domain ai.onnx.ml): ArrayFeatureExtractor, Binarizer, FeatureVectorizer,
// Imputer, Normalizer, Scaler.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/ml/scores.h"

namespace caesura {
namespace {

// Z[..., j] = X[..., Y[j]]; a vector is one row.
Status CreateArrayFeatureExtractor(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  if (shape.rank() < 1) return info.Invalid("takes rank 1 or more");
  if (!info.HasInput(1) || info.InputDType(1) != DType::kInt64)
    return info.Invalid("indices must be int64");
  const int64_t columns = shape[shape.rank() - 1];
  const int64_t rows = shape.Elements(0, shape.rank() - 1);
  const int64_t picked = info.InputShape(1).elements();
  std::vector<int64_t> dims(shape.begin(), shape.end() - 1);
  if (dims.empty()) dims.push_back(1);
  dims.push_back(picked);
  const DType dtype = info.InputDType(0);
  auto out = CheckedShape(std::move(dims), dtype);
  if (!out.ok()) return info.Invalid(out.status().message());
  info.SetOutput(0, dtype, *out);
  info.SetCompute([=, label = info.node().Label()](KernelContext& context) -> Status {
    const int64_t* indices = context.Input<int64_t>(1);
    for (int64_t j = 0; j < picked; ++j) {
      if (indices[j] >= 0 && indices[j] < columns) continue;
      return InvalidArgument(label + " index " + std::to_string(indices[j]) +
                             " is outside of [0, " + std::to_string(columns) + ")");
    }
    DispatchStorage(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* x = context.Input<T>(0);
      T* z = context.Output<T>(0);
      for (int64_t r = 0; r < rows && picked > 0; ++r, x += columns) {
        for (int64_t j = 0; j < picked; ++j) *z++ = x[indices[j]];
      }
    });
    return {};
  });
  return {};
}

Status CreateBinarizer(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  const float threshold = info.Attr<float>("threshold", 0.0f);
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  DispatchDType<float, double, int64_t, int32_t>(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([count, threshold, threads = info.threads()](KernelContext& context) {
      const T* x = context.Input<T>(0);
      T* y = context.Output<T>(0);
      ParallelFor(threads, count, kParallelGrain, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
          y[i] = static_cast<T>(static_cast<double>(x[i]) > threshold);
      });
    });
  });
  return {};
}

// Attribute `name` must have one entry, one a feature, or (when `optional`) none, which leaves
// `fallback`.
Result<std::vector<float>> PerFeature(const KernelInfo& info, const char* name, int64_t columns,
                                      float fallback) {
  auto values = info.Attr<std::vector<float>>(name, {});
  if (values.empty()) values.push_back(fallback);
  if (values.size() == 1) values.assign(columns, values[0]);
  if (static_cast<int64_t>(values.size()) != columns) {
    return info.Invalid(std::string(name) + " must have 1 or " + std::to_string(columns) +
                        " entries, has " + std::to_string(values.size()));
  }
  return values;
}

// The last axis holds the features, whatever the rank.
FeatureRows LastAxisRows(const KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const int64_t columns = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  return {0, info.InputDType(0), columns == 0 ? 0 : shape.elements() / columns, columns};
}

// Y = (X - offset) * scale
Status CreateScaler(KernelInfo& info) {
  const FeatureRows x = LastAxisRows(info);
  ASSIGN_OR_RETURN(const auto offset, PerFeature(info, "offset", x.columns, 0.0f));
  ASSIGN_OR_RETURN(const auto scale, PerFeature(info, "scale", x.columns, 1.0f));
  info.SetOutput(0, DType::kFloat32, info.InputShape(0));
  info.SetCompute([x, offset, scale, threads = info.threads()](KernelContext& context) {
    float* y = context.Output<float>(0);
    ForEachRow(x, context, threads, x.columns, [&](int64_t r, const double* features) {
      float* out = y + r * x.columns;
      for (int64_t c = 0; c < x.columns; ++c)
        out[c] = static_cast<float>((features[c] - offset[c]) * scale[c]);
    });
  });
  return {};
}

// Each row divided by its largest magnitude, the sum of magnitudes, or the root of the sum of
// squares; a row of zeros stays. (The specification writes max(X) and sum(X); its reference takes
// magnitudes, as scikit-learn does.)
Status CreateNormalizer(KernelInfo& info) {
  ASSIGN_OR_RETURN(const FeatureRows x, FeatureRowsOf(info, 0));
  const std::string norm = info.Attr<std::string>("norm", "MAX");
  if (norm != "MAX" && norm != "L1" && norm != "L2")
    return info.Invalid("norm must be MAX, L1 or L2, is " + norm);
  info.SetOutput(0, DType::kFloat32, info.InputShape(0));
  info.SetCompute([x, norm, threads = info.threads()](KernelContext& context) {
    float* y = context.Output<float>(0);
    const bool max = norm == "MAX", squares = norm == "L2";
    ForEachRow(x, context, threads, 2 * x.columns, [&](int64_t r, const double* features) {
      // By the text, the largest element, whatever its sign. Its "sum(X)" for L1 is that of
      // magnitudes, as onnxruntime has it.
      double divisor = max && x.columns > 0 ? features[0] : 0;
      for (int64_t c = 0; c < x.columns; ++c) {
        if (max) divisor = std::max(divisor, features[c]);
        else divisor += squares ? features[c] * features[c] : std::fabs(features[c]);
      }
      if (squares) divisor = std::sqrt(divisor);
      if (divisor == 0) divisor = 1;
      for (int64_t c = 0; c < x.columns; ++c)
        y[r * x.columns + c] = static_cast<float>(features[c] / divisor);
    });
  });
  return {};
}

// Elements that equal `replaced` (NaN equals NaN) become `imputed` of their feature.
template <typename T, typename A>
Status CreateTypedImputer(KernelInfo& info, const char* imputed_name, const char* replaced_name) {
  const FeatureRows x = LastAxisRows(info);
  auto imputed = info.Attr<std::vector<A>>(imputed_name, {});
  if (imputed.size() == 1) imputed.assign(x.columns, imputed[0]);
  if (static_cast<int64_t>(imputed.size()) != x.columns) {
    return info.Invalid(std::string(imputed_name) + " must have 1 or " + std::to_string(x.columns) +
                        " entries");
  }
  const T replaced = static_cast<T>(info.Attr<A>(replaced_name, A{0}));
  info.SetOutput(0, info.InputDType(0), info.InputShape(0));
  info.SetCompute([x, imputed, replaced](KernelContext& context) {
    const T* in = context.Input<T>(0);
    T* out = context.Output<T>(0);
    const bool nan = replaced != replaced;
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t c = 0; c < x.columns; ++c, ++in, ++out) {
        const bool hit = nan ? *in != *in : *in == replaced;
        *out = hit ? static_cast<T>(imputed[c]) : *in;
      }
    }
  });
  return {};
}

Status CreateImputer(KernelInfo& info) {
  const char* floats[] = {"imputed_value_floats", "replaced_value_float"};
  const char* ints[] = {"imputed_value_int64s", "replaced_value_int64"};
  switch (info.InputDType(0)) {
    case DType::kFloat32: return CreateTypedImputer<float, float>(info, floats[0], floats[1]);
    case DType::kFloat64: return CreateTypedImputer<double, float>(info, floats[0], floats[1]);
    case DType::kInt64: return CreateTypedImputer<int64_t, int64_t>(info, ints[0], ints[1]);
    default: return CreateTypedImputer<int32_t, int64_t>(info, ints[0], ints[1]);
  }
}

// Concatenates rows; input i is cut or filled with zeros to inputdimensions[i] columns.
Status CreateFeatureVectorizer(KernelInfo& info) {
  const int count = static_cast<int>(info.node().inputs().size());
  const auto widths = info.Attr<std::vector<int64_t>>("inputdimensions", {});
  if (!widths.empty() && static_cast<int>(widths.size()) != count) {
    return info.Invalid("inputdimensions must have an entry for each input");
  }
  std::vector<FeatureRows> parts;
  std::vector<int64_t> starts = {0};
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const FeatureRows part, FeatureRowsOf(info, i));
    if (!kMlFeatureTypes.Contains(part.dtype)) {
      return info.Invalid("inputs must be of " + kMlFeatureTypes.ToString());
    }
    parts.push_back(part);
    const int64_t width = widths.empty() ? part.columns : widths[i];
    if (part.rows != parts[0].rows) return info.Invalid("inputs differ in the number of rows");
    if (width < 0 || width > (int64_t{1} << 32))
      return info.Invalid("inputdimensions is out of range");
    starts.push_back(starts.back() + width);
  }
  const int64_t total = starts.back();
  auto shape = CheckedShape({count == 0 ? 0 : parts[0].rows, total}, DType::kFloat32);
  if (!shape.ok()) return info.Invalid(shape.status().message());
  info.SetOutput(0, DType::kFloat32, *shape);
  info.SetCompute([parts, starts, total, threads = info.threads()](KernelContext& context) {
    float* y = context.Output<float>(0);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t width = starts[i + 1] - starts[i];
      const int64_t taken = std::min(parts[i].columns, width);
      ForEachRow(parts[i], context, threads, width, [&](int64_t r, const double* features) {
        float* out = y + r * total + starts[i];
        for (int64_t c = 0; c < taken; ++c) out[c] = static_cast<float>(features[c]);
        std::fill(out + taken, out + width, 0.0f);
      });
    }
  });
  return {};
}

}  // namespace

void RegisterFeatures(KernelRegistry& registry) {
  const struct {
    const char* op_type;
    DTypeSet types;
    KernelFactory create;
  } kernels[] = {
      {"ArrayFeatureExtractor", kMlFeatureTypes | DTypeSet{DType::kString},
       CreateArrayFeatureExtractor},
      {"Binarizer", kMlFeatureTypes, CreateBinarizer},
      {"FeatureVectorizer", kMlFeatureTypes, CreateFeatureVectorizer},
      {"Imputer", kMlFeatureTypes, CreateImputer},
      {"Normalizer", kMlFeatureTypes, CreateNormalizer},
      {"Scaler", kMlFeatureTypes, CreateScaler},
  };
  for (const auto& kernel : kernels) {
    registry.Add({.op_type = kernel.op_type,
                  .domain = kMlDomain,
                  .types = kernel.types,
                  .create = kernel.create});
  }
}

}  // namespace caesura
