// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/windows/conv_geometry.h"

#include <algorithm>
#include <string>

#include "core/base/status_macros.h"
#include "core/kernels/capped_product.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// An attribute with one number a spatial axis, of at least `least` (attribute_limits.h keeps them
// so small that products of two stay far from overflow); `fallback` for all when it is absent.
Result<std::vector<int64_t>> AxisNumbers(const KernelInfo& info, const char* name, size_t count,
                                         int64_t least, int64_t fallback) {
  const auto* given = info.node().FindAttr<std::vector<int64_t>>(name);
  if (given == nullptr || given->empty()) return std::vector<int64_t>(count, fallback);
  if (given->size() != count) {
    return info.Invalid(std::string(name) + " needs " + std::to_string(count) + " numbers, got " +
                        std::to_string(given->size()));
  }
  for (int64_t v : *given) {
    if (v < least)
      return info.Invalid(std::string(name) + " has a bad number: " + std::to_string(v));
  }
  return *given;
}

// Padding in front and after that makes up `total`; the odd one goes after for SAME_UPPER.
void SplitPadding(int64_t total, bool upper, int64_t* begin, int64_t* end) {
  const int64_t small = total / 2;
  *begin = upper ? small : total - small;
  *end = total - *begin;
}

Status ReadPads(const KernelInfo& info, const std::string& auto_pad, WindowGeometry& g) {
  const size_t rank = g.input.size();
  g.pads_begin.assign(rank, 0);
  g.pads_end.assign(rank, 0);
  if (auto_pad == "NOTSET") {
    ASSIGN_OR_RETURN(const std::vector<int64_t> pads, AxisNumbers(info, "pads", 2 * rank, 0, 0));
    g.pads_begin.assign(pads.begin(), pads.begin() + rank);
    g.pads_end.assign(pads.begin() + rank, pads.end());
  } else if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
    for (size_t a = 0; a < rank; ++a) {
      const int64_t output = (g.input[a] + g.strides[a] - 1) / g.strides[a];
      const int64_t total =
          std::max<int64_t>(0, (output - 1) * g.strides[a] + g.Extent(a) - g.input[a]);
      SplitPadding(total, auto_pad == "SAME_UPPER", &g.pads_begin[a], &g.pads_end[a]);
    }
  } else if (auto_pad != "VALID") {
    return info.Invalid("auto_pad has a bad value '" + auto_pad + "'");
  }
  return {};
}

// Sizes and steps, without pads and output.
Result<WindowGeometry> ReadWindow(const KernelInfo& info, const Shape& x,
                                  std::vector<int64_t> kernel) {
  if (x.rank() < 3) return info.Invalid("X of rank 3 or more expected, got " + x.ToString());
  WindowGeometry g;
  g.input.assign(x.begin() + 2, x.end());
  const size_t rank = g.input.size();
  ASSIGN_OR_RETURN(g.kernel, AxisNumbers(info, "kernel_shape", rank, 1, 0));
  if (kernel.empty() ? g.kernel[0] == 0
                     : info.node().HasAttribute("kernel_shape") && g.kernel != kernel) {
    return info.Invalid("kernel_shape is missing or is not that of the weights");
  }
  if (!kernel.empty()) g.kernel = std::move(kernel);
  ASSIGN_OR_RETURN(g.strides, AxisNumbers(info, "strides", rank, 1, 1));
  ASSIGN_OR_RETURN(g.dilations, AxisNumbers(info, "dilations", rank, 1, 1));
  return g;
}

}  // namespace

int64_t WindowGeometry::Product(const std::vector<int64_t>& dims) {
  int64_t out = 1;
  for (int64_t d : dims) out *= d;
  return out;
}

WindowGeometry WithoutUnseen(WindowGeometry g) {
  for (int a = 0; a < g.rank(); ++a) {
    const int64_t step = g.dilations[a],
                  furthest = g.pads_begin[a] - (g.output[a] - 1) * g.strides[a];
    const int64_t last =
        std::clamp<int64_t>((g.pads_begin[a] + g.input[a] - 1) / step, 0, g.kernel[a] - 1);
    const int64_t first = std::clamp<int64_t>((furthest + step - 1) / step, 0, last);
    g.kernel[a] = last - first + 1;
    g.pads_begin[a] -= first * step;
    g.pads_end[a] = (g.output[a] - 1) * g.strides[a] + g.Extent(a) - g.input[a] - g.pads_begin[a];
  }
  return g;
}

int64_t ConvGeometry::multiply_adds() const {
  std::vector<int64_t> factors = {batch, outputs, channels / groups};
  for (const auto* dims : {&window.output, &window.kernel})
    factors.insert(factors.end(), dims->begin(), dims->end());
  return CappedProduct(factors);
}

Result<WindowGeometry> MakeWindowGeometry(const KernelInfo& info, const Shape& x,
                                          std::vector<int64_t> kernel) {
  ASSIGN_OR_RETURN(WindowGeometry g, ReadWindow(info, x, std::move(kernel)));
  const std::string auto_pad = info.Attr<std::string>("auto_pad", "NOTSET");
  RETURN_IF_ERROR(ReadPads(info, auto_pad, g));
  const bool ceil_mode = info.Attr<int64_t>("ceil_mode", 0) != 0 && auto_pad == "NOTSET";
  for (int a = 0; a < g.rank(); ++a) {
    const int64_t room = g.input[a] + g.pads_begin[a] + g.pads_end[a] - g.Extent(a);
    if (room < 0) return info.Invalid("the window is larger than the padded input " + x.ToString());
    int64_t output = room / g.strides[a] + 1;
    if (ceil_mode) {
      output = (room + g.strides[a] - 1) / g.strides[a] + 1;
      if ((output - 1) * g.strides[a] >= g.input[a] + g.pads_begin[a]) --output;
    }
    g.output.push_back(output);
  }
  return g;
}

Shape ConvGeometry::WithSpatial(std::vector<int64_t> dims, const std::vector<int64_t>& spatial) {
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return Shape(dims);
}

Result<ConvGeometry> MakeConvGeometry(const KernelInfo& info, const Shape& x, const Shape& w) {
  const std::string shapes = x.ToString() + " and weights " + w.ToString();
  if (w.rank() != x.rank() || x.rank() < 3)
    return info.Invalid("X and W of one rank >= 3 expected, got " + shapes);
  ConvGeometry g;
  g.batch = x[0];
  g.channels = x[1];
  g.outputs = w[0];
  g.groups = info.Attr<int64_t>("group", 1);
  if (w[1] * g.groups != g.channels || g.outputs % g.groups != 0) {
    return info.Invalid("group " + std::to_string(g.groups) + " does not fit X " + shapes);
  }
  const std::vector<int64_t> kernel(w.begin() + 2, w.end());
  if (WindowGeometry::Product(kernel) <= 0) return info.Invalid("an empty window: " + shapes);
  ASSIGN_OR_RETURN(g.window, MakeWindowGeometry(info, x, kernel));
  RETURN_IF_ERROR(CheckDims(info, g.Dst().dims(), DType::kFloat64).status());
  return g;
}

Result<ConvGeometry> MakeConvTransposeGeometry(const KernelInfo& info, const Shape& x,
                                               const Shape& w) {
  const std::string shapes = x.ToString() + " and weights " + w.ToString();
  if (w.rank() != x.rank() || x.rank() < 3)
    return info.Invalid("X and W of one rank >= 3 expected, got " + shapes);
  ConvGeometry g;
  g.batch = x[0];
  g.groups = info.Attr<int64_t>("group", 1);
  g.outputs = x[1];
  if (w[0] != x[1] || g.outputs % g.groups != 0) {
    return info.Invalid("group " + std::to_string(g.groups) + " does not fit X " + shapes);
  }
  g.channels = w[1] * g.groups;
  const std::vector<int64_t> kernel(w.begin() + 2, w.end());
  if (WindowGeometry::Product(kernel) <= 0) return info.Invalid("an empty window: " + shapes);
  ASSIGN_OR_RETURN(g.window, ReadWindow(info, x, kernel));
  WindowGeometry& v = g.window;
  const size_t rank = v.input.size();
  const std::string auto_pad = info.Attr<std::string>("auto_pad", "NOTSET");
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  ASSIGN_OR_RETURN(std::vector<int64_t> extra, AxisNumbers(info, "output_padding", rank, 0, 0));
  ASSIGN_OR_RETURN(std::vector<int64_t> wanted, AxisNumbers(info, "output_shape", rank, 1, 0));
  if (!same) RETURN_IF_ERROR(ReadPads(info, auto_pad, v));
  v.pads_begin.resize(rank);
  v.pads_end.resize(rank);
  v.output = v.input;  // the node's input is the convolution's result
  for (size_t a = 0; a < rank; ++a) {
    const int64_t full = v.strides[a] * (v.output[a] - 1) + extra[a] + v.Extent(a);
    if (same && wanted[a] == 0) wanted[a] = v.output[a] * v.strides[a];
    if (wanted[a] > 0) {
      SplitPadding(std::max<int64_t>(0, full - wanted[a]), auto_pad == "SAME_UPPER",
                   &v.pads_begin[a], &v.pads_end[a]);
      v.input[a] = wanted[a];
    } else {
      v.input[a] = full - v.pads_begin[a] - v.pads_end[a];
    }
    if (v.input[a] < 0) return info.Invalid("pads leave no output for X " + shapes);
    v.pads_end[a] = (v.output[a] - 1) * v.strides[a] + v.Extent(a) - v.input[a] - v.pads_begin[a];
  }
  RETURN_IF_ERROR(CheckDims(info, g.Src().dims(), DType::kFloat64).status());
  return g;
}

}  // namespace caesura
