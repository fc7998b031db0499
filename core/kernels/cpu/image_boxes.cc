// SPDX-License-Identifier: Apache-2.0
// NonMaxSuppression, Col2Im, and ImageDecoder, which is refused: no image codec is linked.
#include <algorithm>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/factory_checks.h"
#include "core/kernels/cpu/kernel_list.h"
#include "core/kernels/cpu/odometer.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/kernel_context.h"

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

// Whether intersection over union is beyond the limit; boxes without an area overlap with nothing.
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

// Col2Im over any number of spatial axes.
struct FoldSpec {
  int64_t planes;  // batches * channels
  std::vector<int64_t> image, block,
      positions;  // per axis: extent, kernel extent, places of the kernel
  std::vector<int64_t> strides, pads, dilations;
  int64_t image_size, block_size, position_count;
  int threads;
};

// Adds the column of one kernel element into a plane: rows along the last axis, clipped to the
// image.
template <typename T>
void FoldColumn(const FoldSpec& at, const int64_t* origin, const T* column, Accumulator<T>* plane) {
  const size_t last = at.image.size() - 1;
  int64_t place[kMaxWalkAxes];
  const int64_t rows = at.position_count / at.positions[last];
  for (int64_t r = 0; r < rows; ++r, column += at.positions[last]) {
    int64_t offset = 0, rest = r;
    bool inside = true;
    for (size_t a = last; a-- > 0;) {
      place[a] = origin[a] + rest % at.positions[a] * at.strides[a];
      rest /= at.positions[a];
      inside = inside && place[a] >= 0 && place[a] < at.image[a];
    }
    for (size_t a = 0; a < last; ++a) offset = (offset + place[a]) * at.image[a + 1];
    if (!inside) continue;
    for (int64_t p = 0; p < at.positions[last]; ++p) {
      const int64_t x = origin[last] + p * at.strides[last];
      if (x >= 0 && x < at.image[last]) plane[offset + x] += static_cast<Accumulator<T>>(column[p]);
    }
  }
}

template <typename T>
void Fold(const FoldSpec& at, const T* x, Accumulator<T>* sums, T* y) {
  ParallelFor(at.threads, at.planes, 1, [&](int64_t first, int64_t last) {
    int64_t origin[kMaxWalkAxes];
    for (int64_t n = first; n < last; ++n) {
      Accumulator<T>* plane = sums + n * at.image_size;
      std::fill(plane, plane + at.image_size, Accumulator<T>(0));
      for (int64_t k = 0; k < at.block_size && at.position_count > 0; ++k) {
        int64_t rest = k;
        for (size_t a = at.image.size(); a-- > 0;) {
          origin[a] = rest % at.block[a] * at.dilations[a] - at.pads[a];
          rest /= at.block[a];
        }
        FoldColumn(at, origin, x + (n * at.block_size + k) * at.position_count, plane);
      }
      if constexpr (!std::is_same_v<T, Accumulator<T>>) {
        for (int64_t i = 0; i < at.image_size; ++i)
          y[n * at.image_size + i] = static_cast<T>(plane[i]);
      }
    }
  });
}

Result<FoldSpec> ReadFold(const KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  FoldSpec spec;
  spec.image = info.HostInts(1);
  spec.block = info.HostInts(2);
  const size_t rank = spec.image.size();
  spec.strides = info.Attr<std::vector<int64_t>>("strides", std::vector<int64_t>(rank, 1));
  spec.dilations = info.Attr<std::vector<int64_t>>("dilations", std::vector<int64_t>(rank, 1));
  spec.pads = info.Attr<std::vector<int64_t>>("pads", std::vector<int64_t>(2 * rank, 0));
  spec.threads = info.threads();
  bool fits = x.rank() == 3 && rank > 0 && rank <= static_cast<size_t>(kMaxWalkAxes) &&
              spec.block.size() == rank && spec.strides.size() == rank &&
              spec.dilations.size() == rank && spec.pads.size() == 2 * rank;
  spec.image_size = spec.block_size = spec.position_count = 1;
  for (size_t a = 0; fits && a < rank; ++a) {
    fits = spec.image[a] >= 0 && spec.block[a] > 0 && spec.strides[a] > 0 && spec.dilations[a] > 0;
    if (!fits) break;
    const int64_t reach = spec.image[a] + spec.pads[a] + spec.pads[rank + a] -
                          spec.dilations[a] * (spec.block[a] - 1);
    spec.positions.push_back(reach < 1 ? 0 : (reach - 1) / spec.strides[a] + 1);
    fits = !__builtin_mul_overflow(spec.image_size, spec.image[a], &spec.image_size) &&
           !__builtin_mul_overflow(spec.block_size, spec.block[a], &spec.block_size) &&
           !__builtin_mul_overflow(spec.position_count, spec.positions[a], &spec.position_count);
  }
  if (!fits || x[1] % spec.block_size != 0 || x[2] != spec.position_count) {
    return info.Invalid("input " + x.ToString() + " does not go with image " +
                        Shape(spec.image).ToString() + " and block " +
                        Shape(spec.block).ToString());
  }
  spec.planes = x[0] * (x[1] / spec.block_size);
  return spec;
}

Status CreateCol2Im(KernelInfo& info) {
  ASSIGN_OR_RETURN(const FoldSpec spec, ReadFold(info));
  const Shape& x = info.InputShape(0);
  std::vector<int64_t> dims = {x[0], x[1] / spec.block_size};
  dims.insert(dims.end(), spec.image.begin(), spec.image.end());
  ASSIGN_OR_RETURN(const Shape out, CheckDims(info, std::move(dims), info.InputDType(0)));
  info.SetOutput(0, info.InputDType(0), out);
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr bool kDirect = std::is_same_v<T, Accumulator<T>>;
    const size_t scratch = kDirect ? 0 : info.BookScratch(out.elements() * sizeof(Accumulator<T>));
    info.SetCompute([spec, scratch](KernelContext& context) {
      T* y = context.Output<T>(0);
      if constexpr (kDirect) {
        Fold(spec, context.Input<T>(0), y, y);
      } else {
        Fold(spec, context.Input<T>(0), context.Scratch<Accumulator<T>>(scratch), y);
      }
    });
  });
  return known ? Status()
               : info.Refuse(std::string("does not add ") + DTypeName(info.InputDType(0)));
}

Status CreateImageDecoder(KernelInfo& info) {
  return info.Refuse("is not done: no image codec is linked; decode images before they are fed");
}

}  // namespace

void RegisterBoxKernels(KernelRegistry& registry) {
  registry.Add({.op_type = "NonMaxSuppression", .create = CreateNonMaxSuppression});
  registry.Add({.op_type = "Col2Im", .host_inputs = {1, 2}, .create = CreateCol2Im});
  registry.Add({.op_type = "ImageDecoder", .create = CreateImageDecoder});
}

}  // namespace caesura
