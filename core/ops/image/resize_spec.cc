// SPDX-License-Identifier: Apache-2.0
// The formulas are those of ONNX's Resize-19 (schema text and reference implementation); all in
// double.
#include "core/ops/image/resize_spec.h"

#include <cmath>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

constexpr int64_t kLongestAxis = int64_t{1} << 28;  // taps are built while planning

struct ResizeOptions {
  std::string mode, coordinates, nearest, policy;
  bool antialias, exclude_outside;
  double cubic_a;
};

// One axis: its extents, its scale as given or computed, and its part of the region of interest.
struct ResizeAxis {
  int64_t in = 0, out = 0;
  double scale = 1;
  double roi_start = 0, roi_end = 1;
};

bool IsOneOf(const std::string& value, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (value == name) return true;
  }
  return false;
}

Result<ResizeOptions> ReadOptions(const KernelInfo& info) {
  const int version = info.node().since_version();
  const bool old =
      info.node().Is("Upsample") || (info.node().Is("Resize") && version > 0 && version < 11);
  ResizeOptions out;
  out.mode = info.Attr<std::string>("mode", "nearest");
  out.coordinates =
      info.Attr<std::string>("coordinate_transformation_mode", old ? "asymmetric" : "half_pixel");
  out.nearest = info.Attr<std::string>("nearest_mode", old ? "floor" : "round_prefer_floor");
  out.policy = info.Attr<std::string>("keep_aspect_ratio_policy", "stretch");
  out.antialias = info.Attr<int64_t>("antialias", 0) != 0;
  out.exclude_outside = info.Attr<int64_t>("exclude_outside", 0) != 0;
  out.cubic_a = info.Attr<float>("cubic_coeff_a", -0.75f);
  if (out.mode == "bilinear" || out.mode == "trilinear") out.mode = "linear";  // Upsample-1
  const bool known =
      IsOneOf(out.mode, {"nearest", "linear", "cubic"}) &&
      IsOneOf(out.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}) &&
      IsOneOf(out.policy, {"stretch", "not_larger", "not_smaller"}) &&
      IsOneOf(out.coordinates,
              {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
               "asymmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn"});
  if (!known)
    return info.Invalid("mode, nearest_mode, coordinate_transformation_mode: no such value");
  if (out.antialias && out.mode == "nearest")
    return info.Invalid("antialias: not defined for mode nearest");
  return out;
}

// Where output index x lies on the input's axis.
double OriginalCoordinate(const ResizeOptions& options, const ResizeAxis& axis, double x) {
  const double width =
      axis.scale * static_cast<double>(axis.in);  // of the output, fraction included
  const double last = static_cast<double>(axis.in - 1);
  if (options.coordinates == "align_corners") return width == 1 ? 0 : x * last / (width - 1);
  if (options.coordinates == "asymmetric") return x / axis.scale;
  if (options.coordinates == "tf_crop_and_resize") {
    const double span = axis.roi_end - axis.roi_start;
    const double place = width == 1 ? span * last / 2 : x * span * last / (width - 1);
    return place + axis.roi_start * last;
  }
  if (options.coordinates == "pytorch_half_pixel" && axis.out <= 1) return 0;
  if (options.coordinates == "tf_half_pixel_for_nn") return (x + 0.5) / axis.scale;
  const double half_pixel = (x + 0.5) / axis.scale - 0.5;
  if (options.coordinates != "half_pixel_symmetric") return half_pixel;
  const double adjustment = static_cast<double>(axis.out) / width;
  return static_cast<double>(axis.in) / 2 * (1 - adjustment) + half_pixel;
}

int64_t NearestIndex(const std::string& rounding, double x) {
  const double low = std::floor(x), part = x - low;
  bool up = part > 0.5;
  if (rounding == "round_prefer_ceil") up = part >= 0.5;
  if (rounding == "floor") up = false;
  if (rounding == "ceil") up = part > 0;
  return static_cast<int64_t>(low) + (up ? 1 : 0);
}

// Keys' kernel (IEEE TASSP 1981, equation 4) and the triangle.
double CubicKernel(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

double LinearKernel(double x) { return std::max(0.0, 1 - std::abs(x)); }

// The taps of output o: the nearest input places around x, weighted by the kernel; with antialias
// the kernel is stretched by 1 / scale when scaling down.
void AppendTaps(const ResizeOptions& options, const ResizeAxis& axis, double x, AxisTaps& taps) {
  const bool cubic = options.mode == "cubic";
  const double squeeze = options.antialias ? std::min(axis.scale, 1.0) : 1.0;
  const double reach = cubic ? 2 : 1;
  const int64_t before =
      static_cast<int64_t>(std::floor(-reach / squeeze)) + 1;  // first tap, seen from floor(x)
  taps.taps = 2 - 2 * before;
  // On an integer the kernel is centred as if x lay at the right end of the interval before it.
  const double low = std::floor(x) == x ? x - 1 : std::floor(x);
  double sum = 0;
  std::vector<double> weights(taps.taps);
  for (int64_t k = 0; k < taps.taps; ++k) {
    const double distance = (static_cast<double>(before + k) - (x - low)) * squeeze;
    weights[k] = cubic ? CubicKernel(distance, options.cubic_a) : LinearKernel(distance);
    const int64_t index = static_cast<int64_t>(low) + before + k;
    if (options.exclude_outside && (index < 0 || index >= axis.in)) weights[k] = 0;
    taps.index.push_back(std::clamp<int64_t>(index, 0, axis.in - 1));
    sum += weights[k];
  }
  const bool normalizes = (options.antialias || options.exclude_outside) && sum != 0;
  for (double weight : weights) taps.weight.push_back(normalizes ? weight / sum : weight);
}

AxisTaps MakeAxisTaps(const ResizeOptions& options, const ResizeAxis& axis) {
  AxisTaps taps;
  taps.in = axis.in;
  taps.out = axis.out;
  const bool crops = options.coordinates == "tf_crop_and_resize";
  const bool whole = !crops || (axis.roi_start == 0 && axis.roi_end == 1);
  if (axis.in == axis.out && axis.scale == 1 && whole) return taps;
  taps.taps = 1;
  if (crops) taps.outside.resize(axis.out, 0);
  for (int64_t o = 0; o < axis.out; ++o) {
    const double x = OriginalCoordinate(options, axis, static_cast<double>(o));
    if (crops) taps.outside[o] = !(x >= 0 && x <= static_cast<double>(axis.in - 1));
    const double limit = static_cast<double>(kLongestAxis);
    const double safe = std::isnan(x) ? 0 : std::clamp(x, -limit, limit);
    if (options.mode == "nearest") {
      taps.index.push_back(
          std::clamp<int64_t>(NearestIndex(options.nearest, safe), 0, axis.in - 1));
      taps.weight.push_back(1);
    } else {
      AppendTaps(options, axis, safe, taps);
    }
  }
  return taps;
}

// Scales of the listed axes from input `sizes`, under the aspect ratio policy.
Status ScaleToSizes(const KernelInfo& info, const std::vector<int>& listed,
                    const std::vector<int64_t>& sizes, std::vector<ResizeAxis>& axes) {
  const std::string policy = info.Attr<std::string>("keep_aspect_ratio_policy", "stretch");
  double chosen = 0;
  for (size_t i = 0; i < listed.size(); ++i) {
    ResizeAxis& axis = axes[listed[i]];
    if (sizes[i] < 0 || sizes[i] > kLongestAxis) return info.Invalid("sizes: out of range");
    axis.out = sizes[i];
    axis.scale = axis.in == 0 ? 1 : static_cast<double>(axis.out) / static_cast<double>(axis.in);
    const bool better = policy == "not_larger" ? axis.scale < chosen : axis.scale > chosen;
    if (i == 0 || better) chosen = axis.scale;
  }
  if (policy == "stretch") return {};
  for (int a : listed) {
    const double extent = chosen * static_cast<double>(axes[a].in) + 0.5;
    if (extent > static_cast<double>(kLongestAxis))
      return info.Invalid("sizes: the aspect ratio makes an axis too large");
    axes[a].scale = chosen;
    axes[a].out = static_cast<int64_t>(extent);
  }
  return {};
}

// Fills in each axis from the inputs; the axes that are not listed keep their extent.
Status ReadAxes(const KernelInfo& info, ResizeInputs inputs, std::vector<ResizeAxis>& axes) {
  std::vector<int64_t> all(axes.size());
  std::iota(all.begin(), all.end(), 0);
  const auto given = info.Attr<std::vector<int64_t>>("axes", all);
  ASSIGN_OR_RETURN(const std::vector<int> listed,
                   CheckAxes(info, given, static_cast<int>(axes.size())));
  std::vector<double> scales =
      inputs.scales < 0 ? std::vector<double>() : HostDoubles(info, inputs.scales);
  if (inputs.scales < 0) {  // Upsample-7 has them as an attribute
    const auto attribute = info.Attr<std::vector<float>>("scales", {});
    scales.assign(attribute.begin(), attribute.end());
  }
  const std::vector<int64_t> sizes =
      inputs.sizes < 0 ? std::vector<int64_t>() : info.HostInts(inputs.sizes);
  const std::vector<double> roi =
      inputs.roi < 0 ? std::vector<double>() : HostDoubles(info, inputs.roi);
  const size_t count = listed.size();
  if (scales.empty() == sizes.empty() || (scales.empty() ? sizes.size() : scales.size()) != count) {
    return info.Invalid("expected either scales or sizes, one an axis");
  }
  if (!sizes.empty()) RETURN_IF_ERROR(ScaleToSizes(info, listed, sizes, axes));
  const bool crops =
      info.Attr<std::string>("coordinate_transformation_mode", "") == "tf_crop_and_resize";
  if (crops && roi.size() != 2 * count)
    return info.Invalid("roi: expected a start and an end for each axis");
  for (size_t i = 0; i < count; ++i) {
    ResizeAxis& axis = axes[listed[i]];
    if (crops) {
      axis.roi_start = roi[i];
      axis.roi_end = roi[count + i];
    }
    if (scales.empty()) continue;
    if (!(scales[i] > 0) || !std::isfinite(scales[i]))
      return info.Invalid("scales: expected positive numbers");
    // floor(input_dimension * scale): of the exact product, as ONNX's shape inference has it. In
    // float 10 times 0.7 would be 7.
    const double extent = std::floor(static_cast<double>(axis.in) * scales[i]);
    if (extent > static_cast<double>(kLongestAxis))
      return info.Invalid("scales: the result is too large");
    axis.scale = scales[i];
    axis.out = static_cast<int64_t>(extent);
  }
  return {};
}

}  // namespace

Result<ResizeSpec> MakeResizePlan(const KernelInfo& info, const Shape& shape, ResizeInputs inputs) {
  ASSIGN_OR_RETURN(const ResizeOptions options, ReadOptions(info));
  std::vector<ResizeAxis> axes(shape.rank());
  for (int a = 0; a < shape.rank(); ++a) axes[a].in = axes[a].out = shape[a];
  RETURN_IF_ERROR(ReadAxes(info, inputs, axes));
  std::vector<int64_t> dims;
  for (const ResizeAxis& axis : axes) {
    if (axis.in == 0 && axis.out != 0) return info.Invalid("cannot enlarge an axis of no elements");
    dims.push_back(axis.out);
  }
  ResizeSpec plan;
  ASSIGN_OR_RETURN(plan.out, CheckDims(info, std::move(dims), info.InputDType(0)));
  plan.nearest = options.mode == "nearest";
  plan.fill = info.Attr<float>("extrapolation_value", 0.0f);
  for (const ResizeAxis& axis : axes) plan.axes.push_back(MakeAxisTaps(options, axis));
  return plan;
}

}  // namespace caesura
