// SPDX-License-Identifier: Apache-2.0
// DynamicQuantizeLSTM (com.microsoft, as onnxruntime's quantize_dynamic writes it): an LSTM whose W
// and R are 8-bit. X (all steps up to the longest sample's end at once) and H' (all samples that
// have the step at once) are quantized to uint8 by their range before each product. Gates, cells
// and states are float32. The op leaves open of which rows of H' the range is taken: onnxruntime
// cuts a batch into a part a thread, and groups samples of different lengths in another way.
#include "core/base/status_macros.h"

#include "core/kernels/kernel_registry.h"
#include "core/kernels/range_quantizer.h"
#include "core/kernels/gemm/gemm.h"
#include "core/ops/recurrent/recurrent_cell.h"

namespace caesura {
namespace {

constexpr DTypeSet kByteTypes = {DType::kInt8, DType::kUInt8};

// C += A Q, where A [m, k] is float32 and Q [k, n] one direction's 8-bit weights.
class QuantizedProduct {
 public:
  // weights: input W or R; its scale and zero point are inputs `scale` and scale + 1, of one
  // element a direction, or one a column of each direction.
  static Result<QuantizedProduct> Make(KernelInfo& info, const RecurrentSpec& s, int weights,
                                       int scale, int64_t m, int64_t k) {
    QuantizedProduct out;
    out.m_ = m;
    out.k_ = k;
    out.n_ = s.gate_width();
    out.weights_ = weights;
    out.scale_ = scale;
    out.dtype_ = info.InputDType(weights);
    if (!kByteTypes.Contains(out.dtype_)) return info.Invalid("W and R must be int8 or uint8");
    if (!info.HasInput(scale) || !info.HasInput(scale + 1) ||
        info.InputDType(scale) != DType::kFloat32 || info.InputDType(scale + 1) != out.dtype_) {
      return info.Invalid(
          "expected a float32 scale and a zero point of the weights' dtype at inputs " +
          std::to_string(scale) + " and " + std::to_string(scale + 1));
    }
    const int64_t columns = s.directions * out.n_;
    for (int input : {scale, scale + 1}) {
      const int64_t count = info.InputShape(input).elements();
      if (count != s.directions && count != columns) {
        return info.Invalid("input " + std::to_string(input) + ": expected " +
                            std::to_string(s.directions) + " or " + std::to_string(columns) +
                            " elements, got " + std::to_string(count));
      }
    }
    out.scale_count_ = info.InputShape(scale).elements();
    out.zero_count_ = info.InputShape(scale + 1).elements();
    out.directions_ = s.directions;
    out.wide_a_ = info.BookScratch(static_cast<size_t>(m * k) * sizeof(int32_t));
    out.wide_b_ = info.BookScratch(static_cast<size_t>(k * out.n_) * sizeof(int32_t));
    out.sums_ = info.BookScratch(static_cast<size_t>(m * out.n_) * sizeof(int32_t));
    ASSIGN_OR_RETURN(out.gemm_, Gemm::Create(info, {.dtype = DType::kInt32,
                                                    .m = m,
                                                    .n = out.n_,
                                                    .k = k,
                                                    .a = RowMajor(k),
                                                    .b = RowMajor(out.n_),
                                                    .c = RowMajor(out.n_)}));
    return out;
  }

  // For direction `d`, in the call of `context`; the range is that of the first `rows` rows of A.
  QuantizedProduct Bound(KernelContext& context, int64_t d, int64_t rows) const {
    QuantizedProduct out = *this;
    out.direction_ = d;
    out.range_rows_ = rows;
    if (dtype_ == DType::kInt8) WidenWeights<int8_t>(context, d);
    else WidenWeights<uint8_t>(context, d);
    return out;
  }

  // REQUIRES: Bound made it. `weights` are not looked at: they are bound.
  Status Run(KernelContext& context, const float* a, const float* /*weights*/, float* c) const {
    const auto quantizer = RangeQuantizer::Of(a, range_rows_ * k_);
    int32_t *wide = context.Scratch<int32_t>(wide_a_), *sums = context.Scratch<int32_t>(sums_);
    for (int64_t i = 0; i < m_ * k_; ++i)
      wide[i] = static_cast<int32_t>(quantizer(a[i]) - quantizer.zero);
    RETURN_IF_ERROR(gemm_.Run(context, wide, context.Scratch<int32_t>(wide_b_), sums));
    const float* scales = context.Input<float>(scale_);
    for (int64_t row = 0; row < m_; ++row, c += n_, sums += n_) {
      for (int64_t i = 0; i < n_; ++i) {
        c[i] += static_cast<float>(sums[i]) *
                (quantizer.scale * scales[ParameterAt(scale_count_, direction_, i)]);
      }
    }
    return {};
  }

 private:
  // The position of column `i`'s scale or zero point among `count` of them.
  int64_t ParameterAt(int64_t count, int64_t d, int64_t i) const {
    return count == directions_ ? d : d * n_ + i;
  }

  // The direction's weights less their zero points.
  template <typename T>
  void WidenWeights(KernelContext& context, int64_t d) const {
    const T *q = context.Input<T>(weights_) + d * k_ * n_, *zeros = context.Input<T>(scale_ + 1);
    int32_t* wide = context.Scratch<int32_t>(wide_b_);
    for (int64_t row = 0; row < k_; ++row) {
      for (int64_t i = 0; i < n_; ++i)
        *wide++ = int32_t{*q++} - int32_t{zeros[ParameterAt(zero_count_, d, i)]};
    }
  }

  Gemm gemm_;
  int64_t m_ = 0, n_ = 0, k_ = 0, directions_ = 1, scale_count_ = 1, zero_count_ = 1;
  int weights_ = 0, scale_ = 0;
  DType dtype_ = DType::kInt8;
  size_t wide_a_ = 0, wide_b_ = 0, sums_ = 0;
  int64_t direction_ = 0, range_rows_ = 0;
};

struct QuantizedProducts {
  QuantizedProduct input, recurrent;
};

// Steps that some sample has.
int64_t StepsInUse(const RecurrentSpec& s, const int32_t* lens) {
  if (lens == nullptr || s.batch == 0) return s.steps;
  return std::clamp<int64_t>(*std::max_element(lens, lens + s.batch), 0, s.steps);
}

Status CreateDynamicQuantizeLstm(KernelInfo& info) {
  if (info.node().HasAttribute("layout")) return info.Invalid("has no attribute layout");
  ASSIGN_OR_RETURN(const RecurrentSpec spec,
                   MakeRecurrentSpec(info, RecurrentKind::kLstm, 0, /*quantized=*/true));
  QuantizedProducts products;
  ASSIGN_OR_RETURN(products.input,
                   QuantizedProduct::Make(info, spec, 1, 8, spec.rows(), spec.input));
  ASSIGN_OR_RETURN(products.recurrent,
                   QuantizedProduct::Make(info, spec, 2, 10, spec.batch, spec.hidden));
  info.SetOutput(0, DType::kFloat32, spec.OutputShape());
  info.SetOutput(1, DType::kFloat32, spec.StateShape());
  info.SetOutput(2, DType::kFloat32, spec.StateShape());
  const int64_t trace_count = RecurrentTrace<float>::Count(spec),
                state_count = spec.batch * spec.hidden;
  const size_t scratch =
      info.BookScratch(static_cast<size_t>(2 * state_count + trace_count) * sizeof(float));
  const bool has_y = info.HasOutput(0), has_h = info.HasOutput(1), has_c = info.HasOutput(2);
  info.SetCompute([=, threads = info.threads()](KernelContext& context) -> Status {
    if (state_count == 0) return {};  // no output has an element, whatever the other dims
    float *state = context.Scratch<float>(scratch), *cell_state = state + state_count;
    const auto trace = RecurrentTrace<float>::At(spec, cell_state + state_count);
    const int64_t width = spec.gate_width(), states = state_count;
    for (int64_t d = 0; d < spec.directions; ++d) {
      RecurrentInputs<float> in{};
      in.x = context.Input<float>(0);
      if (spec.has_bias) in.bias = context.Input<float>(3) + d * 2 * width;
      if (spec.has_lens) in.lens = context.Input<int32_t>(4);
      if (spec.has_h) in.h = context.Input<float>(5);
      if (spec.has_c) in.c = context.Input<float>(6);
      if (spec.has_peepholes) in.peepholes = context.Input<float>(7) + d * 3 * spec.hidden;
      const QuantizedProducts bound{
          products.input.Bound(context, d, StepsInUse(spec, in.lens) * spec.batch),
          products.recurrent.Bound(context, d, spec.batch)};
      RecurrentDirection<float> direction(spec, d, threads, in, trace, state, cell_state);
      RETURN_IF_ERROR(direction.Run(bound, context, has_y ? context.Output<float>(0) : nullptr));
      if (has_h) std::copy_n(state, states, context.Output<float>(1) + d * states);
      if (has_c) std::copy_n(cell_state, states, context.Output<float>(2) + d * states);
    }
    return {};
  });
  return {};
}

}  // namespace

void RegisterRecurrentQuantized(KernelRegistry& registry) {
  registry.Add({.op_type = "DynamicQuantizeLSTM",
                .domain = kContribDomain,
                .types = {DType::kFloat32},
                .create = CreateDynamicQuantizeLstm});
}

}  // namespace caesura
