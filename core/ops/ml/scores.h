// SPDX-License-Identifier: Apache-2.0
// What the models of ai.onnx.ml share: rows of features, scores after a transform, class labels.
#ifndef CAESURA_CORE_OPS_ML_SCORES_H_
#define CAESURA_CORE_OPS_ML_SCORES_H_

#include <string>
#include <vector>

#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"

namespace caesura {

inline constexpr char kMlDomain[] = "ai.onnx.ml";
// The element types of most of these ops.
inline constexpr DTypeSet kMlFeatureTypes = {DType::kFloat32, DType::kFloat64, DType::kInt64,
                                             DType::kInt32};

enum class PostTransform { kNone, kSoftmax, kLogistic, kSoftmaxZero, kProbit };
// The string attribute post_transform.
Result<PostTransform> ParsePostTransform(const KernelInfo& info);
void ApplyPostTransform(PostTransform transform, float* scores, int64_t count);

// An input of shape [N, C], or [C] for one row.
struct FeatureRows {
  int input = 0;
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0;
};
Result<FeatureRows> FeatureRowsOf(const KernelInfo& info, int input);

// Calls fn(row number, features) for every row; `work` is about the operations that a row takes.
template <typename Fn>
void ForEachRow(const FeatureRows& x, const KernelContext& context, int threads, int64_t work,
                Fn&& fn) {
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, work));
  ParallelFor(threads, x.rows, grain, [&](int64_t first, int64_t last) {
    std::vector<double> features(x.columns);
    DispatchDType<float, double, Float16, int64_t, int32_t>(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* data = context.Input<T>(x.input) + first * x.columns;
      for (int64_t r = first; r < last; ++r, data += x.columns) {
        for (int64_t c = 0; c < x.columns; ++c) features[c] = static_cast<double>(data[c]);
        fn(r, features.data());
      }
    });
  });
}

// The names of the classes: strings or integers.
struct ClassLabels {
  std::vector<int64_t> ints;
  std::vector<std::string> strings;

  // Exactly one of the two attributes must be there.
  static Result<ClassLabels> Of(const KernelInfo& info, const char* ints_name,
                                const char* strings_name);
  int64_t size() const { return static_cast<int64_t>(std::max(ints.size(), strings.size())); }
  DType dtype() const { return strings.empty() ? DType::kInt64 : DType::kString; }
  // Puts the label of class `index` into element `row` of output 0; index -1: 0 or the empty
  // string.
  void Write(const KernelContext& context, int64_t row, int64_t index) const {
    if (strings.empty()) context.Output<int64_t>(0)[row] = index < 0 ? 0 : ints[index];
    else context.Output<std::string>(0)[row] = index < 0 ? std::string() : strings[index];
  }
};

// The index of the first largest entry.
inline int64_t ArgMax(const float* values, int64_t count) {
  return std::max_element(values, values + count) - values;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ML_SCORES_H_
