// SPDX-License-Identifier: Apache-2.0
#include "core/ops/ops_window_body.h"

#include <algorithm>
#include <string>
#include <utility>

namespace caesura::gradient {
namespace {

bool AreKnown(const std::vector<int64_t>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; });
}

}  // namespace

std::vector<int64_t> BodyWindow::Pads() const {
  std::vector<int64_t> pads = begin;
  pads.insert(pads.end(), end.begin(), end.end());
  return pads;
}

std::vector<int64_t> SpatialSizes(Expr x) {
  std::vector<int64_t> sizes;
  const auto& shape = x.value()->type().shape;
  for (size_t i = 2; shape && i < shape->size(); ++i) sizes.push_back((*shape)[i].value);
  return sizes;
}

std::optional<BodyWindow> ReadBodyWindow(OpBody& b, Expr x, std::vector<int64_t> kernel) {
  using Numbers = std::vector<int64_t>;
  BodyWindow w;
  const Numbers sizes = SpatialSizes(x);
  const size_t axes = sizes.size();
  w.kernel = kernel.empty() ? b.Attr<Numbers>("kernel_shape", {}) : std::move(kernel);
  if (axes == 0 || w.kernel.size() != axes || !AreKnown(w.kernel)) {
    b.Refuse("has a window, or an input, of unknown rank or size");
    return std::nullopt;
  }
  w.strides = b.Attr<Numbers>("strides", Numbers(axes, 1));
  w.dilations = b.Attr<Numbers>("dilations", Numbers(axes, 1));
  const std::string auto_pad = b.Attr<std::string>("auto_pad", "NOTSET");
  Numbers pads(2 * axes, 0);
  if (auto_pad == "NOTSET") pads = b.Attr<Numbers>("pads", pads);
  w.begin.assign(pads.begin(), pads.begin() + axes);
  w.end.assign(pads.begin() + axes, pads.end());
  if (auto_pad != "SAME_UPPER" && auto_pad != "SAME_LOWER") return w;
  if (!AreKnown(sizes)) {
    b.Refuse("pads by the size of its input, which is unknown");
    return std::nullopt;
  }
  for (size_t a = 0; a < axes; ++a) {
    const int64_t outputs = (sizes[a] + w.strides[a] - 1) / w.strides[a];
    const int64_t total = std::max<int64_t>(
        0, (outputs - 1) * w.strides[a] + w.Extent(static_cast<int>(a)) - sizes[a]);
    w.begin[a] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    w.end[a] = total - w.begin[a];
  }
  return w;
}

Expr SpreadWindows(Expr dy, Expr weights, int64_t groups, const BodyWindow& w, Expr x) {
  const std::vector<int64_t> inputs = SpatialSizes(x), outputs = SpatialSizes(dy);
  const bool are_known = AreKnown(inputs) && AreKnown(outputs) && !outputs.empty();
  std::vector<int64_t> end(w.axes(), 0), more(w.axes(), 0);
  for (int a = 0; a < w.axes(); ++a) {
    if (are_known) {
      const int64_t reach = (outputs[a] - 1) * w.strides[a] + w.Extent(a);
      const int64_t surplus = reach - w.begin[a] - inputs[a];
      end[a] = std::max<int64_t>(0, surplus);
      more[a] = std::max<int64_t>(0, -surplus);
    } else {
      more[a] = w.strides[a] - 1;  // as many as a window can have left out
    }
  }
  std::vector<int64_t> pads = w.begin;
  pads.insert(pads.end(), end.begin(), end.end());
  AttributeMap attributes = {{"strides", w.strides},
                             {"dilations", w.dilations},
                             {"kernel_shape", w.kernel},
                             {"pads", pads},
                             {"group", groups}};
  if (std::any_of(more.begin(), more.end(), [](int64_t m) { return m > 0; }))
    attributes["output_padding"] = more;
  const Expr all = Op("ConvTranspose", {dy, weights}, attributes);
  if (are_known) return all;
  std::vector<int64_t> axes, zeros(w.axes(), 0);
  for (int a = 0; a < w.axes(); ++a) axes.push_back(2 + a);
  return Op("Slice", {all, Ints(zeros, x), ShapeOf(x, 2), Ints(axes, x)});
}

}  // namespace caesura::gradient
