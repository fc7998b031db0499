// SPDX-License-Identifier: Apache-2.0
// The gradients of pools in ONNX's operators: maxima by their places, means and norms by windows
// that go back to where they came from.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ops/op_bodies.h"
#include "core/ops/ops_window_body.h"

namespace caesura::gradient {
namespace {

// Every image by itself: [N C, 1, spatial...].
Expr Images(Expr x) { return Reshape(x, Concat({Ints({-1, 1}, x), ShapeOf(x, 2)}, 0)); }

Expr Ones(const BodyWindow& w, Expr like) {
  std::vector<int64_t> shape = {1, 1};
  shape.insert(shape.end(), w.kernel.begin(), w.kernel.end());
  return Filled(1, Ints(shape, like), like);
}

// Each element of a window gets what the window has, of x's shape.
Expr SpreadOverWindows(Expr each, const BodyWindow& w, Expr x) {
  Expr images = Images(each);
  // Its sizes are those of `each`, which are asked for.
  ValueType type = each.value()->type();
  if (type.shape) {
    (*type.shape)[0] = Dim{};
    (*type.shape)[1] = Dim{1, ""};
    images.value()->set_type(type);
  }
  return ReshapeLike(SpreadWindows(images, Ones(w, x), 1, w, x), x);
}

// 1 / the elements of each window, those in the padding only with include_pad (pool_window.h).
Tensor Reciprocals(const BodyWindow& w, const std::vector<int64_t>& inputs,
                   const std::vector<int64_t>& outputs, bool include_pad) {
  Tensor out = Tensor::Zeros(DType::kFloat32, Shape(outputs));
  for (int64_t o = 0; o < out.elements(); ++o) {
    int64_t rest = o, count = 1;
    for (int a = w.axes() - 1; a >= 0; --a) {
      const int64_t start = rest % outputs[a] * w.strides[a] - w.begin[a];
      rest /= outputs[a];
      const int64_t low = include_pad ? -w.begin[a] : 0;
      const int64_t high = include_pad ? inputs[a] + w.end[a] : inputs[a];
      int64_t own = 0;
      for (int64_t k = 0; k < w.kernel[a]; ++k) {
        const int64_t at = start + k * w.dilations[a];
        own += at >= low && at < high;
      }
      count *= own;
    }
    out.data<float>()[o] = count == 0 ? 0.0f : 1.0f / static_cast<float>(count);
  }
  return out;
}

bool HaveSameWindows(const Node& a, const Node& b) {
  using Numbers = std::vector<int64_t>;
  const auto same = [&](const char* name) {
    return a.Attr<Numbers>(name, {}) == b.Attr<Numbers>(name, {});
  };
  return same("kernel_shape") && same("strides") && same("pads") && same("dilations") &&
         a.Attr<std::string>("auto_pad", "NOTSET") == b.Attr<std::string>("auto_pad", "NOTSET") &&
         a.Attr<int64_t>("ceil_mode", 0) == b.Attr<int64_t>("ceil_mode", 0);
}

// The number of elements, as a shape of one dim.
Expr CountOf(Expr x) {
  const std::optional<Shape> shape = x.value()->type().ConcreteShape();
  return shape ? Ints({shape->elements()}, x) : Unsqueeze(Op("Size", {x}), {0});
}

// The places of the maxima of X. The forward's MaxPool gives them too, unless X was written since.
Expr PlacesOfMaxima(OpBody& b) {
  Value* x = b.input(1).value();
  for (const Value::Use& use : x->uses()) {
    Node* node = use.node;
    if (!node->Is("MaxPool") || node->graph() != &b.writer().graph() ||
        !HaveSameWindows(*node, b.node()) || node->Attr<int64_t>("storage_order", 0) != 0)
      continue;
    if (node->output(1) == nullptr)
      node->SetOutput(1, b.writer().FreshValue("places", ValueType::Tensor(DType::kInt64)));
    return b.Wrap(node->output(1));
  }
  AttributeMap attributes = b.attributes();
  attributes.erase("storage_order");
  return Ops("MaxPool", {b.input(1)}, 2, attributes)[1];
}

}  // namespace

void MaxPoolGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1), row = Ints({-1}, x);
  const Expr places = PlacesOfMaxima(b);
  places.value()->set_type(ValueType::Tensor(DType::kInt64));
  const Expr sums =
      Op("ScatterElements", {Filled(0, CountOf(x), dy), Reshape(places, row), Reshape(dy, row)},
         {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  b.SetOutput(0, ReshapeLike(sums, x));
}

void AveragePoolGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1);
  const auto w = ReadBodyWindow(b, x);
  if (!w) return;
  const std::vector<int64_t> inputs = SpatialSizes(x), outputs = SpatialSizes(dy);
  const auto is_known = [](int64_t size) { return size >= 0; };
  if (outputs.size() != inputs.size() || !std::all_of(inputs.begin(), inputs.end(), is_known) ||
      !std::all_of(outputs.begin(), outputs.end(), is_known))
    return b.Refuse("counts the elements of windows by the size of its input, which is unknown");
  const Tensor shares = Reciprocals(*w, inputs, outputs, b.IntAttr("count_include_pad", 0) != 0);
  const float *first = shares.data<float>(), *last = first + shares.elements();
  const bool all_alike = std::all_of(first, last, [&](float share) { return share == *first; });
  const Expr share =
      all_alike && first != last
          ? Number(*first, dy)
          : Cast(b.Wrap(b.writer().graph().AddInitializer("shares", shares)), dy.dtype());
  b.SetOutput(0, SpreadOverWindows(Shaped(dy * share, dy), *w, x));
}

void LpPoolGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1), y = b.input(2), zero = Number(0, y);
  const auto w = ReadBodyWindow(b, x);
  if (!w) return;
  const double power = static_cast<double>(b.IntAttr("p", 2) - 1);
  const Expr is_zero = Equal(y, zero);
  const Expr each =
      Shaped(Where(is_zero, zero, dy / Pow(Where(is_zero, Number(1, y), y), power)), y);
  b.SetOutput(0, SpreadOverWindows(each, *w, x) * Sign(x) * Pow(Abs(x), power));
}

void GlobalMaxPoolGradBody(OpBody& b) {
  const Expr x = b.input(1);
  const Expr rows = Op("Reshape", {x, Ints({0, 0, -1}, x)});
  const Expr place = Op("ArgMax", {rows}, {{"axis", int64_t{2}}});
  place.value()->set_type(ValueType::Tensor(DType::kInt64));
  const Expr dy = Op("Reshape", {b.input(0), Ints({0, 0, 1}, x)});
  const Expr sums = Op("ScatterElements", {ZerosLike(rows), place, dy}, {{"axis", int64_t{2}}});
  b.SetOutput(0, ReshapeLike(sums, x));
}

}  // namespace caesura::gradient
