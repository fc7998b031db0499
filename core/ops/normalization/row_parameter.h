// SPDX-License-Identifier: Apache-2.0
// What row-wise normalisations and their gradients share: the rows, and scale or bias as one number
// for each element of a row, broadcast where it has fewer.
#ifndef CAESURA_CORE_OPS_NORMALIZATION_ROW_PARAMETER_H_
#define CAESURA_CORE_OPS_NORMALIZATION_ROW_PARAMETER_H_

#include <cstdint>
#include <vector>

#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {

// X as rows of the axes from the attribute `axis` on.
struct NormRows {
  int64_t count, size;
  Shape stats;  // X's shape with ones from `axis` on

  static Result<NormRows> Make(const KernelInfo& info, const Shape& x) {
    Result<int> axis = CheckAxis(info, info.Attr<int64_t>("axis", -1), x.rank());
    if (!axis.ok()) return axis.status();
    NormRows rows{x.Elements(0, *axis), x.Elements(*axis, x.rank()), x};
    for (int d = *axis; d < x.rank(); ++d) rows.stats[d] = 1;
    return rows;
  }
};

class RowParameter {
 public:
  RowParameter() = default;  // absent: Row gives null

  // Input `input` against an X whose rows are the axes where `stats` has ones. Refuses parameters
  // that differ from row to row.
  static Result<RowParameter> Make(KernelInfo& info, int input, const Shape& x,
                                   const Shape& stats) {
    const Shape& own = info.InputShape(input);
    const std::string shapes = own.ToString() + " against " + x.ToString();
    if (own.rank() > x.rank())
      return info.Invalid("a parameter must broadcast to X, got " + shapes);
    RowParameter out;
    out.input_ = input;
    std::vector<int64_t> strides(x.rank(), 0);
    int64_t stride = 1, row_size = 1;
    for (int d = x.rank() - 1, o = own.rank() - 1; d >= 0; --d, --o) {
      const int64_t dim = o < 0 ? 1 : own[o];
      if (dim != 1 && dim != x[d])
        return info.Invalid("a parameter must broadcast to X, got " + shapes);
      if (dim != 1 && stats[d] != 1)
        return info.Refuse("a parameter that differs from row to row: " + shapes);
      if (dim != 1) strides[d] = stride;
      stride *= dim;
      if (stats[d] == 1) row_size *= x[d];
    }
    if (stride == row_size) return out;
    out.Expand(x, stats, strides, row_size);
    out.scratch_ = info.BookScratch(row_size * DTypeSize(info.InputDType(input)));
    return out;
  }

  // The parameter for each element of a row. Writes scratch: call once, before threads start.
  template <typename T>
  const T* Row(KernelContext& context) const {
    if (input_ < 0) return nullptr;
    const T* own = context.Input<T>(input_);
    if (source_.empty()) return own;
    T* row = context.Scratch<T>(scratch_);
    for (size_t i = 0; i < source_.size(); ++i) row[i] = own[source_[i]];
    return row;
  }

  // The parameter's gradient from that of a whole row: sums what was broadcast.
  template <typename Acc, typename T>
  void Fold(const Acc* row, int64_t row_size, int64_t own_size, T* out) const {
    if (source_.empty()) {
      for (int64_t i = 0; i < row_size; ++i) out[i] = T(row[i]);
      return;
    }
    for (int64_t o = 0; o < own_size; ++o) {
      Acc sum = 0;
      for (int64_t i = 0; i < row_size; ++i) sum += source_[i] == o ? row[i] : Acc(0);
      out[o] = T(sum);
    }
  }

 private:
  // source_[i] = where element i of a row finds its parameter.
  void Expand(const Shape& x, const Shape& stats, const std::vector<int64_t>& strides,
              int64_t row_size) {
    source_.assign(row_size, 0);
    int64_t run = 1;
    for (int d = x.rank() - 1; d >= 0; --d) {
      if (stats[d] != 1) continue;
      for (int64_t i = 0; i < row_size; ++i) source_[i] += i / run % x[d] * strides[d];
      run *= x[d];
    }
  }

  int input_ = -1;
  size_t scratch_ = 0;
  std::vector<int64_t> source_;  // empty: the parameter is as long as a row
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_NORMALIZATION_ROW_PARAMETER_H_
