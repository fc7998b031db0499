// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/walks/moves.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/status_macros.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/slice_spec.h"

namespace caesura {
namespace {

// Output 0 is input 0, moved.
Moves MoveInto(KernelInfo& info, Shape out, StridedBox box) {
  info.SetOutput(0, info.InputDType(0), std::move(out));
  return {{0, 0, std::move(box)}};
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

// The output is the input under another shape of as many elements.
Result<Moves> ViewAs(KernelInfo& info, std::vector<int64_t> dims) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(Shape out, CheckDims(info, std::move(dims), info.InputDType(0)));
  if (out.elements() != shape.elements())
    return info.Invalid("cannot make " + out.ToString() + " of " + shape.ToString());
  info.SetOutput(0, info.InputDType(0), std::move(out));
  info.SetReshapedView();
  return Moves{{0, 0, WholeBox(shape, info.input(0).layout, {})}};
}

}  // namespace

StridedBox PermutingBox(const Shape& shape, const std::vector<int64_t>& perm) {
  const std::vector<int64_t> strides = shape.Strides();
  StridedBox box;
  box.extents.reserve(perm.size());
  box.src_strides.reserve(perm.size());
  for (int64_t axis : perm) {
    box.extents.push_back(shape[static_cast<int>(axis)]);
    box.src_strides.push_back(strides[axis]);
  }
  box.dst_strides = Shape(box.extents).Strides();
  return box;
}

Result<Moves> TransposeMoves(KernelInfo& info) {
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
  Moves moves = MoveInto(info, std::move(out), std::move(box));
  info.SetPermutedView(std::move(perm));
  return moves;
}

Result<Moves> ExpandMoves(KernelInfo& info) {
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
  return MoveInto(info, checked, std::move(box));
}

Result<Moves> TileMoves(KernelInfo& info) {
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
  return MoveInto(info, out, std::move(box));
}

Result<Moves> DepthToSpaceMoves(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BlockSpec spec, ReadBlockSpec(info));
  const Shape& x = info.InputShape(0);
  const int64_t b = spec.block, depth = x[1] / (b * b);
  if (x[1] % (b * b) != 0)
    return info.Invalid("input: depth is no multiple of blocksize squared: " + x.ToString());
  const Shape split = spec.depth_first ? Shape{x[0], b, b, depth, x[2], x[3]}
                                       : Shape{x[0], depth, b, b, x[2], x[3]};
  const std::vector<int64_t> perm = spec.depth_first ? std::vector<int64_t>{0, 3, 4, 1, 5, 2}
                                                     : std::vector<int64_t>{0, 1, 4, 2, 5, 3};
  return MoveInto(info, Shape{x[0], depth, x[2] * b, x[3] * b}, PermutingBox(split, perm));
}

Result<Moves> SpaceToDepthMoves(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BlockSpec spec, ReadBlockSpec(info));
  const Shape& x = info.InputShape(0);
  const int64_t b = spec.block;
  if (x[2] % b != 0 || x[3] % b != 0) {
    return info.Invalid("input: height or width is no multiple of blocksize: " + x.ToString());
  }
  const Shape split = {x[0], x[1], x[2] / b, b, x[3] / b, b};
  const std::vector<int64_t> perm = spec.depth_first ? std::vector<int64_t>{0, 3, 5, 1, 2, 4}
                                                     : std::vector<int64_t>{0, 1, 3, 5, 2, 4};
  return MoveInto(info, Shape{x[0], x[1] * b * b, x[2] / b, x[3] / b}, PermutingBox(split, perm));
}

Result<int> SetConcatOutput(KernelInfo& info) {
  ASSIGN_OR_RETURN(const int axis,
                   CheckAxis(info, info.Attr<int64_t>("axis", 1), info.InputShape(0).rank()));
  ASSIGN_OR_RETURN(Shape out, ConcatShape(info, axis));
  info.SetOutput(0, info.InputDType(0), std::move(out));
  info.SetConcat(axis);
  return axis;
}

Result<Moves> ConcatMoves(KernelInfo& info) {
  ASSIGN_OR_RETURN(const int axis, SetConcatOutput(info));
  Layout part{info.outputs()[0].shape.Strides(), 0};
  Moves moves;
  for (int i = 0; i < info.input_count(); ++i) {
    const Shape& shape = info.InputShape(i);
    moves.push_back({i, 0, WholeBox(shape, info.input(i).layout, part)});
    part.offset += shape[axis] * part.strides[axis];
  }
  return moves;
}

Result<Moves> SplitMoves(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), shape.rank()));
  const int64_t declared = info.Attr<int64_t>("num_outputs", info.output_count());
  if (declared != info.output_count()) {
    return info.Invalid("num_outputs: the node has " + std::to_string(info.output_count()) +
                        " outputs, got " + std::to_string(declared));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> extents, SplitExtents(info, shape[axis]));
  Layout layout{StridesOf(shape, info.input(0).layout), info.input(0).layout.offset};
  Moves moves;
  std::vector<Layout> layouts;
  for (int i = 0; i < info.output_count(); ++i) {
    Shape part = shape;
    part[axis] = extents[i];
    moves.push_back({0, i, WholeBox(part, layout, {})});
    layouts.push_back(layout);
    layout.offset += extents[i] * layout.strides[axis];
    info.SetOutput(i, info.InputDType(0), std::move(part));
  }
  info.SetViews(std::move(layouts));
  return moves;
}

Result<Moves> SliceMoves(KernelInfo& info) {
  ASSIGN_OR_RETURN(SliceSpec spec, ResolveSlice(info, info.InputShape(0), 1));
  StridedBox box;
  box.extents = spec.shape.dims();
  box.src_strides = spec.strides;
  box.dst_strides = spec.shape.Strides();
  box.src_offset = spec.offset;
  return MoveInto(info, std::move(spec.shape), std::move(box));
}

Result<Moves> ReshapeMoves(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  std::vector<int64_t> dims = info.HostInts(1);
  const bool keep_zero = info.Attr<int64_t>("allowzero", 0) != 0;
  // A dim of -1 takes what is left. Dims that a 0 copies stand on both sides and cancel, so that
  // empty tensors work.
  int64_t unknown = -1, known = 1, left = 1;
  std::vector<bool> copied(std::max<size_t>(dims.size(), shape.rank()), false);
  for (size_t i = 0; i < dims.size(); ++i) {
    copied[i] = dims[i] == 0 && !keep_zero;
    const bool bad = dims[i] < 0 ? dims[i] != -1 || unknown >= 0
                                 : copied[i] && static_cast<int>(i) >= shape.rank();
    if (bad || (dims[i] > 0 && __builtin_mul_overflow(known, dims[i], &known))) {
      return info.Invalid("shape: " + Shape(dims).ToString() + " does not fit " + shape.ToString());
    }
    if (dims[i] == 0 && keep_zero) known = 0;
    if (dims[i] == -1) unknown = static_cast<int64_t>(i);
    if (copied[i]) dims[i] = shape[static_cast<int>(i)];
  }
  for (int a = 0; a < shape.rank(); ++a) left *= copied[a] ? 1 : shape[a];
  if (unknown >= 0) {
    if (known == 0 || left % known != 0) {
      return info.Invalid("shape: " + Shape(dims).ToString() + " leaves no dim for -1, given " +
                          shape.ToString());
    }
    dims[unknown] = left / known;
  }
  return ViewAs(info, std::move(dims));
}

Result<Moves> FlattenMoves(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  int64_t axis = info.Attr<int64_t>("axis", 1);
  if (axis < 0) axis += shape.rank();
  if (axis < 0 || axis > shape.rank())
    return info.Invalid("axis: out of range for " + shape.ToString());
  const int split = static_cast<int>(axis);
  return ViewAs(info, {shape.Elements(0, split), shape.Elements(split, shape.rank())});
}

Result<Moves> DetachMoves(KernelInfo& info) { return ViewAs(info, info.InputShape(0).dims()); }

Result<Moves> SqueezeMoves(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  std::vector<bool> drops(shape.rank(), false);
  if (info.HasInput(1)) {
    ASSIGN_OR_RETURN(const std::vector<int> axes, CheckAxes(info, info.HostInts(1), shape.rank()));
    for (int axis : axes) {
      if (shape[axis] != 1) {
        return info.Invalid("axes: axis " + std::to_string(axis) + " of " + shape.ToString() +
                            " is not 1");
      }
      drops[axis] = true;
    }
  } else {
    for (int a = 0; a < shape.rank(); ++a) drops[a] = shape[a] == 1;
  }
  std::vector<int64_t> dims;
  for (int a = 0; a < shape.rank(); ++a) {
    if (!drops[a]) dims.push_back(shape[a]);
  }
  return ViewAs(info, std::move(dims));
}

Result<Moves> UnsqueezeMoves(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const std::vector<int64_t> listed = info.HostInts(1);
  const int rank = shape.rank() + static_cast<int>(listed.size());
  ASSIGN_OR_RETURN(const std::vector<int> axes, CheckAxes(info, listed, rank));
  std::vector<int64_t> dims(rank, -1);
  for (int axis : axes) dims[axis] = 1;
  auto next = shape.begin();
  for (int64_t& dim : dims) {
    if (dim < 0) dim = *next++;
  }
  return ViewAs(info, std::move(dims));
}

}  // namespace caesura
