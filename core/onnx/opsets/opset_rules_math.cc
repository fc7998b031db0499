// SPDX-License-Identifier: Apache-2.0
// Rules for arithmetic, normalisation and recurrent ops.
#include <array>
#include <cmath>
#include <limits>

#include "core/onnx/opsets/opset_rewrite.h"

namespace caesura {

bool DropConsumedInputs(NodeRewrite& r) {
  r.DropAttribute("consumed_inputs");
  return true;
}

bool LegacyBroadcast(NodeRewrite& r) {
  // B's axes were laid over A's from `axis` on; numpy's rule lays them over the last ones.
  const Node& node = r.node();
  if (node.Attr<int64_t>("broadcast", 0) != 0 && node.HasAttribute("axis")) {
    const auto a = r.Rank(0), b = r.Rank(1);
    if (!a || !b) return false;
    int64_t axis = node.Attr<int64_t>("axis", 0);
    if (axis < 0) axis += *a;
    const int64_t trailing = *a - axis - *b;
    if (trailing < 0) return false;
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < trailing; ++i) axes.push_back(*b + i);
    if (!axes.empty()) r.SetInput(1, r.Op("Unsqueeze", {node.input(1), r.Ints("axes", axes)}));
  }
  r.DropAttribute("axis");
  r.DropAttribute("broadcast");
  return true;
}

bool PReluSlope(NodeRewrite& r) {
  // One slope per channel (axis 1) was a plain list.
  const auto x = r.Rank(0), slope = r.Rank(1);
  if (!x || !slope) return false;
  if (*slope != 1 || *x <= 2 || r.StaticDim(1, 0) == 1) return true;
  std::vector<int64_t> axes;
  for (int i = 1; i < *x - 1; ++i) axes.push_back(i);
  r.SetInput(1, r.Op("Unsqueeze", {r.node().input(1), r.Ints("axes", axes)}));
  return true;
}

bool CastTarget(NodeRewrite& r) {
  const auto* name = r.node().FindAttr<std::string>("to");
  if (name == nullptr) return true;
  static constexpr std::array<const char*, 17> kNames = {
      "UNDEFINED", "FLOAT",  "UINT8",     "INT8",       "UINT16",  "INT16",
      "INT32",     "INT64",  "STRING",    "BOOL",       "FLOAT16", "DOUBLE",
      "UINT32",    "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16"};
  for (size_t i = 1; i < kNames.size(); ++i) {
    if (*name != kNames[i]) continue;
    r.SetAttribute("to", static_cast<int64_t>(i));
    return true;
  }
  return false;
}

bool ClipToInputs(NodeRewrite& r) {
  const Node& node = r.node();
  const auto* low = node.FindAttr<float>("min");
  const auto* high = node.FindAttr<float>("max");
  if ((low != nullptr || high != nullptr) && !IsDifferentiable(r.InputDType(0))) return false;
  if (low != nullptr) r.SetInput(1, r.Float("min", *low, r.InputDType(0)));
  if (high != nullptr) r.SetInput(2, r.Float("max", *high, r.InputDType(0)));
  r.DropAttribute("min");
  r.DropAttribute("max");
  return true;
}

bool GemmBroadcast(NodeRewrite& r) {
  r.DropAttribute("broadcast");
  return true;
}

bool SeluDefaults(NodeRewrite& r) {
  if (!r.node().HasAttribute("alpha")) r.SetAttribute("alpha", 1.6732f);
  if (!r.node().HasAttribute("gamma")) r.SetAttribute("gamma", 1.0507f);
  return true;
}

bool FlattenedSoftmax(NodeRewrite& r) {
  // All axes from `axis` on were one; now only the axis itself is.
  const Node& node = r.node();
  const int64_t axis = node.Attr<int64_t>("axis", 1);
  const auto rank = r.Rank(0);
  const bool is_last = axis == -1 || (rank && (axis < 0 ? axis + *rank : axis) == *rank - 1);
  if (is_last) {
    r.SetAttribute("axis", int64_t{-1});
    return true;
  }
  if (!rank && !r.types_are_known()) return false;
  Value* x = node.input(0);
  Value* flat = r.Op("Flatten", {x}, {{"axis", axis}});
  Value* y = r.Op(node.op_type(), {flat}, {{"axis", int64_t{-1}}});
  r.Replace("Reshape", {y, r.Op("Shape", {x})}, {{"allowzero", int64_t{1}}}, 1);
  return true;
}

bool DftAxisToInput(NodeRewrite& r) {
  r.SetInput(2, r.Int("axis", r.node().Attr<int64_t>("axis", 1)));
  r.DropAttribute("axis");
  return true;
}

// The newest version lost the integer types.
bool FloatsOnly(NodeRewrite& r) { return IsDifferentiable(r.InputDType(0)); }

bool LpIntegerNorm(NodeRewrite& r) {
  const auto* p = r.node().FindAttr<float>("p");
  if (p == nullptr) return true;
  if (*p != std::floor(*p) || std::abs(*p) > 1024) return false;
  r.SetAttribute("p", static_cast<int64_t>(*p));
  return true;
}

bool DropIsTest(NodeRewrite& r) {
  r.DropAttribute("is_test");
  return true;
}

bool DropoutToInputs(NodeRewrite& r) {
  Value* ratio = r.Float("ratio", r.node().Attr<float>("ratio", 0.5f), DType::kFloat32);
  if (r.node().since_version() >= 10 || !r.ReadsOutputsFrom(1)) {
    r.SetInput(1, ratio);
    r.DropAttribute("ratio");
    return true;
  }
  // The mask had the data's type.
  Value* x = r.node().input(0);
  const std::vector<Value*> outputs = r.TakeOutputs();
  Value* mask = r.NewValue("bools");
  r.Write("Dropout", {x, ratio}, {outputs[0], mask});
  r.Write("CastLike", {mask, x}, {outputs[1]});
  return true;
}

bool BatchNormIsSpatial(NodeRewrite& r) {
  if (r.node().Attr<int64_t>("spatial", 1) == 0) return false;
  r.DropAttribute("spatial");
  return true;
}

bool BatchNormTrainingMode(NodeRewrite& r) {
  // More outputs than one meant training; the two saved ones were scratch for the gradient.
  const Node& node = r.node();
  if (node.outputs().size() <= 1) return true;
  if (r.ReadsOutputsFrom(3)) return false;
  AttributeMap attributes = node.attributes();
  attributes["training_mode"] = int64_t{1};
  r.Replace("BatchNormalization", node.inputs(), std::move(attributes), 3);
  return true;
}

bool GroupNormPerChannel(NodeRewrite& r) {
  // scale and bias had one element a group.
  const Node& node = r.node();
  const int64_t groups = node.Attr<int64_t>("num_groups", 0);
  if (groups <= 0) return false;
  Value* repeats = nullptr;
  const auto channels = r.StaticDim(0, 1);
  if (!channels && !r.types_are_known()) return false;
  if (channels) {
    repeats = r.Ints("repeats", {1, *channels / groups});
  } else {
    Value* count = r.Op("Shape", {node.input(0)}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
    Value* each = r.Op("Div", {count, r.Ints("groups", {groups})});
    repeats = r.Op("Concat", {r.Ints("one", {1}), each}, {{"axis", int64_t{0}}});
  }
  for (int i : {1, 2}) {
    Value* column = r.Op("Unsqueeze", {node.input(i), r.Ints("axes", {1})});
    Value* spread = r.Op("Expand", {column, repeats});
    r.SetInput(i, r.Op("Reshape", {spread, r.Ints("flat", {-1})}));
  }
  return true;
}

bool DropOutputSequence(NodeRewrite& r) {
  r.DropAttribute("output_sequence");
  return true;
}

}  // namespace caesura
