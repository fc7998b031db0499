// SPDX-License-Identifier: Apache-2.0
// Col2Im over any number of spatial axes.
#include <algorithm>
#include <string>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/odometer.h"

namespace caesura {
namespace {

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

}  // namespace

void RegisterCol2Im(KernelRegistry& registry) {
  registry.Add({.op_type = "Col2Im", .host_inputs = {1, 2}, .create = CreateCol2Im});
}

}  // namespace caesura
