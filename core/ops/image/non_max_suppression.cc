// SPDX-License-Identifier: Apache-2.0
// NonMaxSuppression, as ONNX has it.
#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

struct Box {
  float top, left, bottom, right;
  float area() const { return (bottom - top) * (right - left); }

  static Box Of(const float* b, bool center) {
    if (center) return {b[1] - b[3] / 2, b[0] - b[2] / 2, b[1] + b[3] / 2, b[0] + b[2] / 2};
    return {std::min(b[0], b[2]), std::min(b[1], b[3]), std::max(b[0], b[2]), std::max(b[1], b[3])};
  }
};

// True if intersection over union is beyond the limit; boxes without an area overlap with nothing.
bool Overlaps(const Box& a, const Box& b, float limit) {
  const float height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  const float width = std::min(a.right, b.right) - std::max(a.left, b.left);
  if (height <= 0 || width <= 0) return false;
  const float common = height * width, either = a.area() + b.area() - common;
  if (a.area() <= 0 || b.area() <= 0 || either <= 0) return false;
  return common / either > limit;
}

struct SuppressionSpec {
  int64_t batches, classes, boxes;
  bool center;
  bool has_most, has_overlap, has_score;  // which limits are given as inputs
};

struct SuppressionLimits {
  int64_t most = 0;
  float overlap = 0;
  float score = 0;
};

// Appends the boxes that stay, best first; equal scores in order of their numbers.
void SelectBoxes(const SuppressionSpec& spec, const SuppressionLimits& limits, const float* boxes,
                 const float* scores, std::vector<int64_t>& selected) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < spec.boxes; ++i) {
    if (!spec.has_score || scores[i] > limits.score) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return scores[i] > scores[j]; });
  std::vector<Box> kept;
  for (int64_t i : order) {
    if (static_cast<int64_t>(kept.size()) >= limits.most) break;
    const Box box = Box::Of(boxes + i * 4, spec.center);
    const bool stays = std::none_of(kept.begin(), kept.end(), [&](const Box& other) {
      return Overlaps(box, other, limits.overlap);
    });
    if (!stays) continue;
    kept.push_back(box);
    selected.push_back(i);
  }
}

SuppressionLimits ReadLimits(const SuppressionSpec& spec, KernelContext& context) {
  SuppressionLimits limits;
  if (spec.has_most) limits.most = std::max<int64_t>(0, *context.Input<int64_t>(2));
  if (spec.has_overlap) limits.overlap = *context.Input<float>(3);
  if (spec.has_score) limits.score = *context.Input<float>(4);
  return limits;
}

Status RunSuppression(const SuppressionSpec& spec, KernelContext& context) {
  const SuppressionLimits limits = ReadLimits(spec, context);
  const float* boxes = context.Input<float>(0);
  const float* scores = context.Input<float>(1);
  std::vector<int64_t> rows, selected;
  for (int64_t b = 0; b < spec.batches && spec.boxes > 0 && spec.classes > 0; ++b) {
    for (int64_t c = 0; c < spec.classes; ++c) {
      selected.clear();
      SelectBoxes(spec, limits, boxes + b * spec.boxes * 4,
                  scores + (b * spec.classes + c) * spec.boxes, selected);
      for (int64_t box : selected) rows.insert(rows.end(), {b, c, box});
    }
  }
  ASSIGN_OR_RETURN(
      Tensor out,
      context.AllocateOutput(0, DType::kInt64, Shape{static_cast<int64_t>(rows.size()) / 3, 3}));
  std::copy(rows.begin(), rows.end(), out.data<int64_t>());
  return {};
}

Status CreateNonMaxSuppression(KernelInfo& info) {
  const Shape &boxes = info.InputShape(0), &scores = info.InputShape(1);
  if (boxes.rank() != 3 || boxes[2] != 4 || scores.rank() != 3 || scores[0] != boxes[0] ||
      scores[2] != boxes[1]) {
    return info.Invalid("boxes " + boxes.ToString() + " do not go with scores " +
                        scores.ToString());
  }
  const DTypeSet expected[] = {
      {DType::kFloat32}, {DType::kFloat32}, {DType::kInt64}, {DType::kFloat32}, {DType::kFloat32}};
  for (int i = 0; i < 5; ++i) {
    if (!info.HasInput(i)) continue;
    RETURN_IF_ERROR(CheckDType(info, i, expected[i]));
    if (i >= 2 && info.InputShape(i).elements() != 1)
      return info.Invalid("limits: expected one number each");
  }
  const bool center = info.Attr<int64_t>("center_point_box", 0) != 0;
  const SuppressionSpec spec = {boxes[0],         scores[1],        boxes[1],        center,
                                info.HasInput(2), info.HasInput(3), info.HasInput(4)};
  info.SetOutputSizedInCompute(0);
  info.SetCompute([spec](KernelContext& context) { return RunSuppression(spec, context); });
  return {};
}

}  // namespace

void RegisterNonMaxSuppression(KernelRegistry& registry) {
  registry.Add({.op_type = "NonMaxSuppression", .create = CreateNonMaxSuppression});
}

}  // namespace caesura
