// SPDX-License-Identifier: Apache-2.0
// ConvInteger and QLinearConv: 8-bit operands are shifted by their zero points into int32 and
// convolved; the latter scales and rounds the sums back to 8 bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/status_macros.h"
#include "core/ops/conv/conv_engine.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/range_quantizer.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

constexpr DTypeSet kByteTypes = {DType::kInt8, DType::kUInt8};

// An 8-bit operand as [lines, size] and its zero points: none, one, or one a line.
struct Operand {
  int input, zero_input;  // the latter is -1 where there is none
  int64_t lines, size, zero_step;
  DType dtype;
  size_t wide;  // scratch
};

Result<Operand> MakeOperand(KernelInfo& info, int input, int zero_input, int64_t lines) {
  const Shape& shape = info.InputShape(input);
  Operand out{
      input, -1, lines, lines == 0 ? 0 : shape.elements() / lines, 0, info.InputDType(input), 0};
  RETURN_IF_ERROR(CheckDType(info, input, kByteTypes));
  if (info.HasInput(zero_input)) {
    out.zero_input = zero_input;
    const int64_t zeros = info.InputShape(zero_input).elements();
    if (info.InputDType(zero_input) != out.dtype || (zeros != 1 && zeros != lines)) {
      return info.Invalid("a zero point must have its operand's dtype and 1 or " +
                          std::to_string(lines) + " elements");
    }
    out.zero_step = zeros == 1 ? 0 : 1;
  }
  out.wide = info.BookScratch(shape.elements() * sizeof(int32_t));
  return out;
}

template <typename T>
void WidenAs(const Operand& o, KernelContext& context, int32_t* wide) {
  const T* x = context.Input<T>(o.input);
  const T* zero = o.zero_input < 0 ? nullptr : context.Input<T>(o.zero_input);
  if (o.size == 0) return;  // there may be any number of lines without elements
  for (int64_t line = 0; line < o.lines; ++line) {
    const int32_t shift = zero == nullptr ? 0 : zero[line * o.zero_step];
    for (int64_t i = 0; i < o.size; ++i) *wide++ = int32_t{*x++} - shift;
  }
}

const int32_t* Widen(const Operand& o, KernelContext& context) {
  int32_t* wide = context.Scratch<int32_t>(o.wide);
  if (o.dtype == DType::kInt8) {
    WidenAs<int8_t>(o, context, wide);
  } else {
    WidenAs<uint8_t>(o, context, wide);
  }
  return wide;
}

Status CreateConvInteger(KernelInfo& info) {
  ASSIGN_OR_RETURN(const ConvGeometry g,
                   MakeConvGeometry(info, info.InputShape(0), info.InputShape(1)));
  ASSIGN_OR_RETURN(const Operand x, MakeOperand(info, 0, 2, 1));
  ASSIGN_OR_RETURN(const Operand w, MakeOperand(info, 1, 3, g.outputs));
  ASSIGN_OR_RETURN(const Shape y, CheckDims(info, g.Dst().dims(), DType::kInt32));
  info.SetOutput(0, DType::kInt32, y);
  ASSIGN_OR_RETURN(ConvEngine engine,
                   ConvEngine::Make(info, DType::kInt32, ConvDirection::kForward, g));
  info.SetCompute([=, engine = std::move(engine)](KernelContext& context) {
    return engine.Run(context, Widen(x, context), Widen(w, context), nullptr,
                      context.Output<void>(0));
  });
  return {};
}

// Scales sums [batch, outputs, positions] back to 8 bits.
template <typename T>
void Quantize(const ConvGeometry& g, int64_t scale_step, const int32_t* sums,
              KernelContext& context) {
  const float x_scale = *context.Input<float>(1), y_scale = *context.Input<float>(6);
  const float* w_scale = context.Input<float>(4);
  const float zero = *context.Input<T>(7);
  const int64_t positions = g.window.OutputCount();
  T* y = context.Output<T>(0);
  for (int64_t row = 0; row < g.batch * g.outputs; ++row) {
    const float scale = x_scale * w_scale[row % g.outputs * scale_step] / y_scale;
    for (int64_t i = 0; i < positions; ++i) {
      const float value = std::nearbyintf(scale * static_cast<float>(*sums++)) + zero;
      *y++ = Saturate<T>(value);
    }
  }
}

Status CreateQLinearConv(KernelInfo& info) {
  ASSIGN_OR_RETURN(const ConvGeometry g,
                   MakeConvGeometry(info, info.InputShape(0), info.InputShape(3)));
  ASSIGN_OR_RETURN(const Operand x, MakeOperand(info, 0, 2, 1));
  ASSIGN_OR_RETURN(const Operand w, MakeOperand(info, 3, 5, g.outputs));
  const DType y_type = info.InputDType(7);
  RETURN_IF_ERROR(CheckDType(info, 7, kByteTypes));
  const bool bias = info.HasInput(8);
  if (bias && (info.InputShape(8) != Shape{g.outputs} || info.InputDType(8) != DType::kInt32)) {
    return info.Invalid("one int32 bias an output channel expected, got " +
                        info.InputShape(8).ToString());
  }
  const int64_t w_scales = info.InputShape(4).elements();
  if (info.InputShape(1).elements() != 1 || info.InputShape(6).elements() != 1 ||
      info.InputShape(7).elements() != 1 || (w_scales != 1 && w_scales != g.outputs)) {
    return info.Invalid(
        "scales must have one element, the weights' may have one an output channel");
  }
  for (int i : {1, 4, 6}) RETURN_IF_ERROR(CheckDType(info, i, {DType::kFloat32}));
  ASSIGN_OR_RETURN(const Shape y, CheckDims(info, g.Dst().dims(), DType::kInt32));
  info.SetOutput(0, y_type, y);
  const size_t sums = info.BookScratch(y.elements() * sizeof(int32_t));
  ASSIGN_OR_RETURN(ConvEngine engine,
                   ConvEngine::Make(info, DType::kInt32, ConvDirection::kForward, g, bias));
  info.SetCompute([=, engine = std::move(engine)](KernelContext& context) {
    int32_t* wide = context.Scratch<int32_t>(sums);
    RETURN_IF_ERROR(engine.Run(context, Widen(x, context), Widen(w, context),
                               bias ? context.Input<void>(8) : nullptr, wide));
    if (y_type == DType::kInt8) {
      Quantize<int8_t>(g, w_scales == 1 ? 0 : 1, wide, context);
    } else {
      Quantize<uint8_t>(g, w_scales == 1 ? 0 : 1, wide, context);
    }
    return Status();
  });
  return {};
}

}  // namespace

void RegisterConvInteger(KernelRegistry& registry) {
  registry.Add({.op_type = "ConvInteger", .types = kByteTypes, .create = CreateConvInteger});
  registry.Add({.op_type = "QLinearConv", .types = kByteTypes, .create = CreateQLinearConv});
}

}  // namespace caesura
