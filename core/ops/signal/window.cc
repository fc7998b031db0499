// SPDX-License-Identifier: Apache-2.0
// HannWindow, HammingWindow, BlackmanWindow and MelWeightMatrix: functions of numbers that are
// known before the run. They are computed in double when the kernel is made, and copied out by it.
#include <cmath>
#include <numbers>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// Output 0 is `values` in the type of the attribute output_datatype.
Status SettleConstant(KernelInfo& info, Shape shape, std::vector<double> values) {
  const int64_t asked =
      info.Attr<int64_t>("output_datatype", static_cast<int64_t>(DType::kFloat32));
  const DType dtype =
      asked > 0 && asked < kDTypeCount ? static_cast<DType>(asked) : DType::kUndefined;
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto converted = std::make_shared<std::vector<T>>(values.size());
    for (size_t i = 0; i < values.size(); ++i) (*converted)[i] = ConvertElement<T>(values[i]);
    info.SetOutput(0, dtype, std::move(shape));
    info.SetCompute([converted](KernelContext& context) {
      std::copy(converted->begin(), converted->end(), context.Output<T>(0));
    });
  };
  if (DispatchNumeric(dtype, set)) return {};
  return info.Refuse("does not make this output_datatype");
}

// The value of a host input that must be one number, at least `least`.
Result<int64_t> HostNumber(const KernelInfo& info, int input, const char* name, int64_t least) {
  const std::vector<int64_t> given = info.HostInts(input);
  if (given.size() != 1 || given[0] < least || given[0] > (int64_t{1} << 30)) {
    return info.Invalid(std::string(name) + ": expected a number of at least " +
                        std::to_string(least) +
                        (given.size() == 1 ? ", got " + std::to_string(given[0]) : ""));
  }
  return given[0];
}

// a0 - a1 cos(x) + a2 cos(2 x) with x = 2 pi n / N; N is the size, one less for a symmetric window.
// A symmetric window of size 1 is NaN, by 0 / 0: so compute the schema's function and onnxruntime.
Status SettleCosineWindow(KernelInfo& info, double a0, double a1, double a2) {
  ASSIGN_OR_RETURN(const int64_t size, HostNumber(info, 0, "size", 0));
  const int64_t period = info.Attr<int64_t>("periodic", 1) != 0 ? size : size - 1;
  std::vector<double> values(static_cast<size_t>(size));
  for (int64_t n = 0; n < size; ++n) {
    const double x = 2 * std::numbers::pi * static_cast<double>(n) / static_cast<double>(period);
    values[n] = a0 - a1 * std::cos(x) + a2 * std::cos(2 * x);
  }
  return SettleConstant(info, Shape{size}, std::move(values));
}

Status CreateHann(KernelInfo& info) { return SettleCosineWindow(info, 0.5, 0.5, 0); }
Status CreateHamming(KernelInfo& info) {
  return SettleCosineWindow(info, 25.0 / 46.0, 21.0 / 46.0, 0);
}
Status CreateBlackman(KernelInfo& info) { return SettleCosineWindow(info, 0.42, 0.5, 0.08); }

double Mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double Hertz(double mel) { return 700 * (std::pow(10.0, mel / 2595) - 1); }

// Where the edges of the triangles lie among the bins of the spectrum.
Result<std::vector<int64_t>> MelEdges(const KernelInfo& info, int64_t bands, int64_t dft_length) {
  ASSIGN_OR_RETURN(const int64_t rate, HostNumber(info, 2, "sample_rate", 1));
  const std::vector<double> lower = HostDoubles(info, 3), upper = HostDoubles(info, 4);
  if (lower.size() != 1 || upper.size() != 1) return info.Invalid("edges: expected two numbers");
  const double low = Mel(lower[0]), step = (Mel(upper[0]) - low) / static_cast<double>(bands + 2);
  std::vector<int64_t> edges(bands + 2);
  for (int64_t i = 0; i < bands + 2; ++i) {
    const double hertz = Hertz(low + step * static_cast<double>(i));
    const double bin =
        std::floor(static_cast<double>(dft_length + 1) * hertz / static_cast<double>(rate));
    if (!(bin >= 0 && bin <= static_cast<double>(dft_length / 2)) ||
        (i > 0 && bin < static_cast<double>(edges[i - 1]))) {
      return info.Invalid("edges: expected a rising range of frequencies within the spectrum");
    }
    edges[i] = static_cast<int64_t>(bin);
  }
  return edges;
}

Status CreateMelWeightMatrix(KernelInfo& info) {
  ASSIGN_OR_RETURN(const int64_t bands, HostNumber(info, 0, "num_mel_bins", 1));
  ASSIGN_OR_RETURN(const int64_t dft_length, HostNumber(info, 1, "dft_length", 1));
  ASSIGN_OR_RETURN(const std::vector<int64_t> edges, MelEdges(info, bands, dft_length));
  const int64_t bins = dft_length / 2 + 1;
  ASSIGN_OR_RETURN(const Shape shape, CheckDims(info, {bins, bands}, DType::kFloat64));
  if (shape.elements() > (int64_t{1} << 30)) return info.Invalid("the matrix would be too large");
  std::vector<double> weights(static_cast<size_t>(shape.elements()), 0.0);
  for (int64_t band = 0; band < bands; ++band) {
    const int64_t left = edges[band], centre = edges[band + 1], right = edges[band + 2];
    if (left == centre) weights[centre * bands + band] = 1;
    for (int64_t bin = left; bin <= centre && left < centre; ++bin) {
      weights[bin * bands + band] =
          static_cast<double>(bin - left) / static_cast<double>(centre - left);
    }
    for (int64_t bin = centre; bin < right; ++bin) {
      weights[bin * bands + band] =
          static_cast<double>(right - bin) / static_cast<double>(right - centre);
    }
  }
  return SettleConstant(info, shape, std::move(weights));
}

}  // namespace

void RegisterWindow(KernelRegistry& registry) {
  registry.Add({.op_type = "HannWindow", .host_inputs = {0}, .create = CreateHann});
  registry.Add({.op_type = "HammingWindow", .host_inputs = {0}, .create = CreateHamming});
  registry.Add({.op_type = "BlackmanWindow", .host_inputs = {0}, .create = CreateBlackman});
  registry.Add(
      {.op_type = "MelWeightMatrix", .host_inputs = {-1}, .create = CreateMelWeightMatrix});
}

}  // namespace caesura
