// SPDX-License-Identifier: Apache-2.0
// Rules for ops that move elements or change shapes.
#include <algorithm>
#include <limits>

#include "core/onnx/opsets/opset_rewrite.h"

namespace caesura {

bool AxesToInput(NodeRewrite& r) {
  r.MoveIntsToInput("axes", 1);
  return true;
}

bool PaddingsToPads(NodeRewrite& r) {
  if (auto* paddings = r.node().FindAttr<std::vector<int64_t>>("paddings")) {
    r.SetAttribute("pads", *paddings);
    r.DropAttribute("paddings");
  }
  return true;
}

bool PadToInputs(NodeRewrite& r) {
  const auto* value = r.node().FindAttr<float>("value");
  if (value != nullptr && *value != 0 && !IsDifferentiable(r.InputDType(0))) return false;
  if (value != nullptr && *value != 0) r.SetInput(2, r.Float("value", *value, r.InputDType(0)));
  r.DropAttribute("value");
  r.MoveIntsToInput("pads", 1);
  return true;
}

bool ReshapeToInput(NodeRewrite& r) {
  if (!r.node().HasAttribute("shape")) r.SetAttribute("shape", std::vector<int64_t>());
  r.MoveIntsToInput("shape", 1);
  return true;
}

bool SliceToInputs(NodeRewrite& r) {
  r.MoveIntsToInput("starts", 1);
  r.MoveIntsToInput("ends", 2);
  r.MoveIntsToInput("axes", 3);
  return true;
}

bool SplitToInput(NodeRewrite& r) {
  r.MoveIntsToInput("split", 1);
  return true;
}

bool SplitCount(NodeRewrite& r) {
  // Equal parts, as many as there are outputs.
  if (r.node().input(1) == nullptr)
    r.SetAttribute("num_outputs", static_cast<int64_t>(r.node().outputs().size()));
  return true;
}

bool TileToRepeats(NodeRewrite& r) {
  // tiles and axis were scalars: one axis was repeated.
  const auto tiles = r.ConstantInts(1), axis = r.ConstantInts(2);
  const auto rank = r.Rank(0);
  if (!tiles || !axis || !rank || tiles->size() != 1 || axis->size() != 1) return false;
  if ((*axis)[0] < 0 || (*axis)[0] >= *rank) return false;
  std::vector<int64_t> repeats(static_cast<size_t>(*rank), 1);
  repeats[static_cast<size_t>((*axis)[0])] = (*tiles)[0];
  r.SetInput(1, r.Ints("repeats", repeats));
  r.node().TruncateInputs(2);
  return true;
}

bool TopKToInput(NodeRewrite& r) {
  r.SetInput(1, r.Ints("k", {r.node().Attr<int64_t>("k", 1)}));
  r.DropAttribute("k");
  return true;
}

bool ConcatAxis(NodeRewrite& r) {
  if (!r.node().HasAttribute("axis")) r.SetAttribute("axis", int64_t{1});
  return true;
}

bool ScatterToElements(NodeRewrite& r) {
  r.Replace("ScatterElements", r.node().inputs(), r.node().attributes(), 1);
  return true;
}

bool UpsampleToResize(NodeRewrite& r) {
  const Node& node = r.node();
  Value* scales = node.input(1);  // since version 9
  if (auto* list = node.FindAttr<std::vector<float>>("scales")) scales = r.Floats("scales", *list);
  if (node.HasAttribute("height_scale") || node.HasAttribute("width_scale")) {
    scales = r.Floats(
        "scales", {1, 1, node.Attr<float>("height_scale", 1), node.Attr<float>("width_scale", 1)});
  }
  if (scales == nullptr) return false;
  const std::string mode =
      node.Attr<std::string>("mode", "nearest") == "nearest" ? "nearest" : "linear";
  r.Replace("Resize", {node.input(0), nullptr, scales},
            {{"mode", mode},
             {"coordinate_transformation_mode", std::string("asymmetric")},
             {"nearest_mode", std::string("floor")}},
            1);
  return true;
}

bool ResizeInputs(NodeRewrite& r) {
  // Version 10 had X and scales, and one way to map coordinates. Its text does not say how the
  // nearest element is found: ONNX's node tests and onnxruntime round down where an axis grows, and
  // up where it shrinks. So do two nodes, of which each leaves the other's axes alone.
  Value* scales = r.node().input(1);
  Value* x = r.node().input(0);
  r.SetAttribute("coordinate_transformation_mode", std::string("asymmetric"));
  const bool is_nearest = r.node().Attr<std::string>("mode", "nearest") == "nearest";
  const auto known = r.ConstantFloats(1);
  const auto all = [&](auto fits) {
    return known && std::all_of(known->begin(), known->end(), fits);
  };
  const bool grows = all([](float scale) { return scale >= 1; });
  const bool shrinks = all([](float scale) { return scale <= 1; });
  if (is_nearest && !grows && !shrinks) {
    const auto bounded = [&](const char* op, float (*bound)(float)) {
      if (!known) return r.Op(op, {r.node().input(1), r.Floats("one", {1})});
      std::vector<float> values = *known;
      for (float& value : values) value = bound(value);
      return r.Floats(op, values);
    };
    AttributeMap attributes = r.node().attributes();
    attributes["nearest_mode"] = std::string("floor");
    Value* up = bounded("Max", [](float scale) { return std::max(scale, 1.0f); });
    scales = bounded("Min", [](float scale) { return std::min(scale, 1.0f); });
    x = r.Op("Resize", {x, nullptr, up}, std::move(attributes));
  }
  r.SetInput(0, x);
  r.SetInput(1, nullptr);
  r.SetInput(2, scales);
  r.SetAttribute("nearest_mode", std::string(is_nearest && !grows ? "ceil" : "floor"));
  return true;
}

bool OneHotCountsFromTheEnd(NodeRewrite& r) {
  // A negative index was a row of the off value, as those beyond the depth are.
  const DType dtype = r.InputDType(0);
  if (kUnsignedTypes.Contains(dtype)) return true;
  Value* indices = r.Op("Cast", {r.node().input(0)}, {{"to", static_cast<int64_t>(DType::kInt64)}});
  Value* is_negative = r.Op("Less", {indices, r.Int("zero", 0)});
  Value* beyond = r.Int("beyond", std::numeric_limits<int64_t>::max());
  r.SetInput(0, r.Op("Where", {is_negative, beyond, indices}));
  return true;
}

bool ResizeEmptyInputs(NodeRewrite& r) {
  // An empty tensor used to stand for an absent input; exporters still write it.
  for (int i : {1, 2}) {
    if (r.StaticDim(i, 0) == 0) r.SetInput(i, nullptr);
  }
  return true;
}

bool RoiAlignMode(NodeRewrite& r) {
  r.SetAttribute("coordinate_transformation_mode", std::string("output_half_pixel"));
  return true;
}

bool GridSampleMode(NodeRewrite& r) {
  const std::string mode = r.node().Attr<std::string>("mode", "bilinear");
  if (mode == "bilinear") r.SetAttribute("mode", std::string("linear"));
  if (mode == "bicubic") r.SetAttribute("mode", std::string("cubic"));
  return true;
}

bool ConstantValue(NodeRewrite& r) {
  const Node& node = r.node();
  Tensor value;
  const char* from = nullptr;
  auto take = [&](const char* name, Tensor tensor) {
    from = name;
    value = std::move(tensor);
  };
  if (auto* i = node.FindAttr<int64_t>("value_int")) take("value_int", Tensor::Scalar(*i));
  if (auto* f = node.FindAttr<float>("value_float")) take("value_float", Tensor::Scalar(*f));
  if (auto* s = node.FindAttr<std::string>("value_string"))
    take("value_string", Tensor::Scalar(*s));
  auto take_list = [&](const char* name, auto* list) {
    if (list == nullptr) return;
    using T = typename std::decay_t<decltype(*list)>::value_type;
    take(name, Tensor::Of<T>({static_cast<int64_t>(list->size())}, *list));
  };
  take_list("value_ints", node.FindAttr<std::vector<int64_t>>("value_ints"));
  take_list("value_floats", node.FindAttr<std::vector<float>>("value_floats"));
  take_list("value_strings", node.FindAttr<std::vector<std::string>>("value_strings"));
  if (from == nullptr) return true;
  r.DropAttribute(from);
  r.SetAttribute("value", std::move(value));
  return true;
}

}  // namespace caesura
