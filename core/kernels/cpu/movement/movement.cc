// SPDX-License-Identifier: Apache-2.0
// Ops that are one strided copy, or one per tensor: Transpose, Expand, Tile, DepthToSpace,
// SpaceToDepth, Concat, Split.
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/movement/kernel_list.h"
#include "core/kernels/cpu/movement/strided_copy.h"
#include "core/kernels/cpu/simd/parallel.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/factory_checks.h"

namespace caesura {
namespace {

// Books the box as the whole of the kernel: output 0 is input 0, moved.
Status CopyInto(KernelInfo& info, Shape out, StridedBox box) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(StridedCopy copy, StridedCopy::Make(info, dtype, std::move(box)));
  info.SetOutput(0, dtype, std::move(out));
  info.SetCompute([copy = std::move(copy)](KernelContext& context) {
    copy.Run(context.Input<void>(0), context.Output<void>(0));
  });
  return {};
}

Status CreateTranspose(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  std::vector<int64_t> perm(shape.rank());
  std::iota(perm.rbegin(), perm.rend(), 0);
  perm = info.Attr<std::vector<int64_t>>("perm", perm);
  std::vector<bool> seen(shape.rank(), false);
  bool valid = static_cast<int>(perm.size()) == shape.rank();
  for (size_t i = 0; valid && i < perm.size(); ++i) {
    valid = perm[i] >= 0 && perm[i] < shape.rank() && !seen[perm[i]];
    if (valid) seen[perm[i]] = true;
  }
  if (!valid)
    return info.Invalid("perm: expected a permutation of the axes of " + shape.ToString());
  Shape out = shape;
  for (size_t i = 0; i < perm.size(); ++i)
    out[static_cast<int>(i)] = shape[static_cast<int>(perm[i])];
  Layout layout = Permuted(shape, info.input(0).layout, perm);
  StridedBox box{out.dims(), std::move(layout.strides), out.Strides(), layout.offset, 0};
  RETURN_IF_ERROR(CopyInto(info, std::move(out), std::move(box)));
  info.SetPermutedView(std::move(perm));
  return {};
}

Status CreateExpand(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const Shape target, CheckDims(info, info.HostInts(1), info.InputDType(0)));
  Result<Shape> out = BroadcastShape(shape, target);
  if (!out.ok()) return info.Invalid(out.status().message());
  ASSIGN_OR_RETURN(const Shape checked, CheckDims(info, out->dims(), info.InputDType(0)));
  StridedBox box;
  box.extents = checked.dims();
  box.dst_strides = checked.Strides();
  box.src_strides.assign(checked.rank(), 0);
  const std::vector<int64_t> strides = shape.Strides();
  const int lead = checked.rank() - shape.rank();
  for (int a = 0; a < shape.rank(); ++a) {
    if (shape[a] != 1) box.src_strides[lead + a] = strides[a];
  }
  return CopyInto(info, checked, std::move(box));
}

Status CreateTile(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const std::vector<int64_t> repeats = info.HostInts(1);
  if (static_cast<int>(repeats.size()) != shape.rank()) {
    return info.Invalid("repeats: expected " + std::to_string(shape.rank()) + " values, got " +
                        std::to_string(repeats.size()));
  }
  std::vector<int64_t> dims(shape.rank());
  for (int a = 0; a < shape.rank(); ++a) {
    if (repeats[a] < 0 || __builtin_mul_overflow(shape[a], repeats[a], &dims[a])) {
      return info.Invalid("repeats: cannot repeat an axis " + std::to_string(repeats[a]) +
                          " times");
    }
  }
  ASSIGN_OR_RETURN(const Shape out, CheckDims(info, std::move(dims), info.InputDType(0)));
  // Each axis is a pair in the box: the copy's number, then the place within the copy.
  const std::vector<int64_t> from = shape.Strides(), to = out.Strides();
  StridedBox box;
  for (int a = 0; a < shape.rank(); ++a) {
    box.extents.insert(box.extents.end(), {repeats[a], shape[a]});
    box.src_strides.insert(box.src_strides.end(), {0, from[a]});
    box.dst_strides.insert(box.dst_strides.end(), {to[a] * shape[a], to[a]});
  }
  return CopyInto(info, out, std::move(box));
}

// The checked 4-D shape, blocksize and order of DepthToSpace and SpaceToDepth.
struct BlockSpec {
  int64_t block;
  bool depth_first;  // mode DCR
};

Result<BlockSpec> ReadBlockSpec(const KernelInfo& info) {
  const std::string mode = info.Attr<std::string>("mode", "DCR");
  const int64_t block = info.Attr<int64_t>("blocksize", 0);
  if (info.InputShape(0).rank() != 4) {
    return info.Invalid("input: expected rank 4, got " + info.InputShape(0).ToString());
  }
  if (block <= 0 || block > (int64_t{1} << 30))
    return info.Invalid("blocksize: expected a positive number");
  if (mode != "DCR" && mode != "CRD") return info.Invalid("mode: expected DCR or CRD, got " + mode);
  return BlockSpec{block, mode == "DCR"};
}

Status CreateDepthToSpace(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BlockSpec spec, ReadBlockSpec(info));
  const Shape& x = info.InputShape(0);
  const int64_t b = spec.block, depth = x[1] / (b * b);
  if (x[1] % (b * b) != 0)
    return info.Invalid("input: depth is no multiple of blocksize squared: " + x.ToString());
  const Shape split = spec.depth_first ? Shape{x[0], b, b, depth, x[2], x[3]}
                                       : Shape{x[0], depth, b, b, x[2], x[3]};
  const std::vector<int64_t> perm = spec.depth_first ? std::vector<int64_t>{0, 3, 4, 1, 5, 2}
                                                     : std::vector<int64_t>{0, 1, 4, 2, 5, 3};
  return CopyInto(info, Shape{x[0], depth, x[2] * b, x[3] * b}, PermutingBox(split, perm));
}

Status CreateSpaceToDepth(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BlockSpec spec, ReadBlockSpec(info));
  const Shape& x = info.InputShape(0);
  const int64_t b = spec.block;
  if (x[2] % b != 0 || x[3] % b != 0) {
    return info.Invalid("input: height or width is no multiple of blocksize: " + x.ToString());
  }
  const Shape split = {x[0], x[1], x[2] / b, b, x[3] / b, b};
  const std::vector<int64_t> perm = spec.depth_first ? std::vector<int64_t>{0, 3, 5, 1, 2, 4}
                                                     : std::vector<int64_t>{0, 1, 3, 5, 2, 4};
  return CopyInto(info, Shape{x[0], x[1] * b * b, x[2] / b, x[3] / b}, PermutingBox(split, perm));
}

// All of a tensor of this shape, from one layout to another.
StridedBox WholeBox(const Shape& shape, const Layout& from, const Layout& to) {
  return {shape.dims(), StridesOf(shape, from), StridesOf(shape, to), from.offset, to.offset};
}

// The concatenated shape; every input must agree with the first on dtype and on all other dims.
Result<Shape> ConcatShape(const KernelInfo& info, int axis) {
  Shape out = info.InputShape(0);
  for (int i = 1; i < info.input_count(); ++i) {
    const Shape& shape = info.InputShape(i);
    bool fits = info.InputDType(i) == info.InputDType(0) && shape.rank() == out.rank();
    for (int a = 0; fits && a < shape.rank(); ++a) fits = a == axis || shape[a] == out[a];
    if (!fits) {
      return info.Invalid("input " + std::to_string(i) + ": " + DTypeName(info.InputDType(i)) +
                          shape.ToString() + " does not go with " + DTypeName(info.InputDType(0)) +
                          info.InputShape(0).ToString() + " along axis " + std::to_string(axis));
    }
    out[axis] += shape[axis];
  }
  return CheckDims(info, out.dims(), info.InputDType(0));
}

Status CreateConcat(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const int axis,
                   CheckAxis(info, info.Attr<int64_t>("axis", 1), info.InputShape(0).rank()));
  ASSIGN_OR_RETURN(const Shape out, ConcatShape(info, axis));
  info.SetOutput(0, dtype, out);
  info.SetConcat(axis);
  bool in_rows =
      dtype != DType::kString && (info.threads() == 1 || out.elements() <= 8 * kParallelGrain);
  for (int i = 0; i < info.input_count(); ++i) in_rows = in_rows && info.input(i).layout.dense();
  if (in_rows) {  // without boxes, which take longer to make than such parts to copy
    std::vector<size_t> bytes(info.input_count());
    for (int i = 0; i < info.input_count(); ++i) {
      bytes[i] =
          static_cast<size_t>(info.InputShape(i).Elements(axis, out.rank())) * DTypeSize(dtype);
    }
    info.SetCompute(
        [rows = out.Elements(0, axis), bytes = std::move(bytes)](KernelContext& context) {
          char* to = context.Output<char>(0);
          for (int64_t row = 0; row < rows; ++row) {
            for (size_t i = 0; i < bytes.size(); ++i) {
              const size_t n = bytes[i];
              if (n != 0) std::memcpy(to, context.Input<char>(static_cast<int>(i)) + row * n, n);
              to += n;
            }
          }
        });
    return {};
  }
  Layout part{out.Strides(), 0};
  std::vector<StridedCopy> copies;
  copies.reserve(info.input_count());
  for (int i = 0; i < info.input_count(); ++i) {
    const Shape& shape = info.InputShape(i);
    ASSIGN_OR_RETURN(StridedCopy copy,
                     StridedCopy::Make(info, dtype, WholeBox(shape, info.input(i).layout, part)));
    copies.push_back(std::move(copy));
    part.offset += shape[axis] * part.strides[axis];
  }
  info.SetCompute([copies = std::move(copies)](KernelContext& context) {
    for (size_t i = 0; i < copies.size(); ++i) {
      copies[i].Run(context.Input<void>(static_cast<int>(i)), context.Output<void>(0));
    }
  });
  return {};
}

// The extents of the outputs along the axis, from input `split`, or equal shares (the last one
// takes what is left).
Result<std::vector<int64_t>> SplitExtents(const KernelInfo& info, int64_t dim) {
  const int count = info.output_count();
  std::vector<int64_t> extents = info.HostInts(1);
  if (!info.HasInput(1)) {
    const int64_t share = (dim + count - 1) / count;
    for (int i = 0; i < count; ++i)
      extents.push_back(std::max<int64_t>(0, std::min(share, dim - i * share)));
  }
  int64_t sum = 0;
  bool valid = static_cast<int>(extents.size()) == count;
  for (int64_t extent : extents) {
    valid = valid && extent >= 0 && extent <= dim;
    sum += valid ? extent : 0;
  }
  if (!valid || sum != dim) {
    return info.Invalid("split: expected " + std::to_string(count) + " extents that add up to " +
                        std::to_string(dim));
  }
  return extents;
}

Status CreateSplit(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), shape.rank()));
  const int64_t declared = info.Attr<int64_t>("num_outputs", info.output_count());
  if (declared != info.output_count()) {
    return info.Invalid("num_outputs: the node has " + std::to_string(info.output_count()) +
                        " outputs, got " + std::to_string(declared));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> extents, SplitExtents(info, shape[axis]));
  Layout layout{StridesOf(shape, info.input(0).layout), info.input(0).layout.offset};
  std::vector<StridedCopy> copies;
  std::vector<Layout> layouts;
  for (int i = 0; i < info.output_count(); ++i) {
    Shape part = shape;
    part[axis] = extents[i];
    ASSIGN_OR_RETURN(StridedCopy copy, StridedCopy::Make(info, dtype, WholeBox(part, layout, {})));
    copies.push_back(std::move(copy));
    layouts.push_back(layout);
    layout.offset += extents[i] * layout.strides[axis];
    info.SetOutput(i, dtype, std::move(part));
  }
  info.SetViews(std::move(layouts));
  info.SetCompute([copies = std::move(copies)](KernelContext& context) {
    for (size_t i = 0; i < copies.size(); ++i) {
      void* out = context.Output<void>(static_cast<int>(i));
      if (out != nullptr) copies[i].Run(context.Input<void>(0), out);
    }
  });
  return {};
}

}  // namespace

void RegisterMovement(KernelRegistry& registry) {
  registry.Add({.op_type = "Transpose", .strided_inputs = {0}, .create = CreateTranspose});
  registry.Add({.op_type = "Expand", .host_inputs = {1}, .create = CreateExpand});
  registry.Add({.op_type = "Tile", .host_inputs = {1}, .create = CreateTile});
  registry.Add({.op_type = "DepthToSpace", .create = CreateDepthToSpace});
  registry.Add({.op_type = "SpaceToDepth", .create = CreateSpaceToDepth});
  registry.Add({.op_type = "Concat", .strided_inputs = {-1}, .create = CreateConcat});
  registry.Add(
      {.op_type = "Split", .host_inputs = {1}, .strided_inputs = {0}, .create = CreateSplit});
}

}  // namespace caesura
