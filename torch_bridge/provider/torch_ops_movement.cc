// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "torch_bridge/provider/torch_ops.h"

namespace caesura::torch {
namespace {

using Ints = std::vector<int64_t>;

int64_t Axis(const KernelInfo& info, int64_t fallback) {
  return info.Attr<int64_t>("axis", fallback);
}

TorchRun Reshape(const KernelInfo& info) {
  Ints to = info.HostInts(1);
  const bool zero_is_zero = info.Attr<int64_t>("allowzero", 0) != 0;
  for (size_t i = 0; i < to.size() && !zero_is_zero; ++i) {
    if (to[i] == 0) to[i] = info.InputShape(0)[static_cast<int>(i)];
  }
  return [to](const Tensors& x) { return Tensors{at::reshape(x[0], to)}; };
}

TorchRun Transpose(const KernelInfo& info) {
  const int rank = info.InputShape(0).rank();
  Ints reversed;
  for (int d = rank - 1; d >= 0; --d) reversed.push_back(d);
  const Ints order = info.Attr<Ints>("perm", reversed);
  return [order](const Tensors& x) { return Tensors{at::permute(x[0], order)}; };
}

TorchRun Expand(const KernelInfo& info) {
  const auto to = BroadcastShape(info.InputShape(0), Shape(info.HostInts(1)));
  if (!to.ok()) return nullptr;
  return [dims = to->dims()](const Tensors& x) { return Tensors{x[0].expand(dims)}; };
}

TorchRun Tile(const KernelInfo& info) {
  const Ints repeats = info.HostInts(1);
  return [repeats](const Tensors& x) { return Tensors{x[0].repeat(repeats)}; };
}

TorchRun Squeeze(const KernelInfo& info) {
  const Ints axes = info.HostInts(1);
  if (!info.HasInput(1)) return [](const Tensors& x) { return Tensors{at::squeeze(x[0])}; };
  for (int64_t axis : axes) {
    const int rank = info.InputShape(0).rank();
    const auto d = NormalizeAxis(axis, rank);
    if (!d.ok() || info.InputShape(0)[*d] != 1)
      return nullptr;  // an error that the next kernel puts into words
  }
  return [axes](const Tensors& x) { return Tensors{at::squeeze(x[0], axes)}; };
}

TorchRun Unsqueeze(const KernelInfo& info) {
  Ints axes = info.HostInts(1);
  const int rank = info.InputShape(0).rank() + static_cast<int>(axes.size());
  for (int64_t& axis : axes) axis += axis < 0 ? rank : 0;
  std::sort(axes.begin(), axes.end());
  return [axes](const Tensors& x) {
    at::Tensor y = x[0];
    for (int64_t axis : axes) y = at::unsqueeze(y, axis);
    return Tensors{y};
  };
}

TorchRun Flatten(const KernelInfo& info) {
  const int rank = info.InputShape(0).rank();
  const int64_t axis = Axis(info, 1) < 0 ? Axis(info, 1) + rank : Axis(info, 1);
  const Ints to = {info.InputShape(0).Elements(0, static_cast<int>(axis)),
                   info.InputShape(0).Elements(static_cast<int>(axis), rank)};
  return [to](const Tensors& x) { return Tensors{at::reshape(x[0], to)}; };
}

TorchRun Concat(const KernelInfo& info) {
  for (int i = 1; i < info.input_count(); ++i) {
    if (info.InputShape(i).rank() != info.InputShape(0).rank())
      return nullptr;  // PyTorch lets some of these pass
  }
  return [axis = Axis(info, 0)](const Tensors& x) { return Tensors{at::cat(x, axis)}; };
}

TorchRun Split(const KernelInfo& info) {
  const int64_t axis = Axis(info, 0);
  Ints sizes = info.HostInts(1);
  if (!info.HasInput(1)) {
    const auto d = NormalizeAxis(axis, info.InputShape(0).rank());
    if (!d.ok()) return nullptr;
    const int64_t dim = info.InputShape(0)[*d],
                  parts = info.Attr<int64_t>("num_outputs", info.output_count());
    const int64_t part = (dim + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i)
      sizes.push_back(std::min(part, std::max<int64_t>(dim - i * part, 0)));
  }
  return [=](const Tensors& x) { return at::split_with_sizes(x[0], sizes, axis); };
}

TorchRun Slice(const KernelInfo& info) {
  const Ints starts = info.HostInts(1), ends = info.HostInts(2);
  Ints axes = info.HostInts(3), steps = info.HostInts(4);
  for (size_t i = axes.size(); i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  steps.resize(starts.size(), 1);
  if (std::any_of(steps.begin(), steps.end(), [](int64_t step) { return step < 1; }))
    return nullptr;
  return [=](const Tensors& x) {
    at::Tensor y = x[0];
    for (size_t i = 0; i < starts.size(); ++i)
      y = at::slice(y, axes[i], starts[i], ends[i], steps[i]);
    return Tensors{y};
  };
}

// Negative indices count from the end.
at::Tensor Positive(const at::Tensor& indices, int64_t dim) {
  return at::where(indices < 0, indices + dim, indices);
}

TorchRun Gather(const KernelInfo& info) {
  const auto axis = NormalizeAxis(Axis(info, 0), info.InputShape(0).rank());
  if (!axis.ok()) return nullptr;
  Ints to(info.InputShape(0).begin(), info.InputShape(0).begin() + *axis);
  to.insert(to.end(), info.InputShape(1).begin(), info.InputShape(1).end());
  to.insert(to.end(), info.InputShape(0).begin() + *axis + 1, info.InputShape(0).end());
  return [=, axis = *axis](const Tensors& x) {
    return Tensors{
        at::index_select(x[0], axis, Positive(x[1], x[0].size(axis)).flatten()).reshape(to)};
  };
}

TorchRun GatherElements(const KernelInfo& info) {
  return [axis = Axis(info, 0)](const Tensors& x) {
    return Tensors{at::gather(x[0], axis, Positive(x[1], x[0].size(axis)).to(at::kLong))};
  };
}

TorchRun ScatterElements(const KernelInfo& info) {
  const auto reduction = info.Attr<std::string>("reduction", "none");
  const std::string name = reduction == "add"   ? "sum"
                           : reduction == "mul" ? "prod"
                           : reduction == "max" ? "amax"
                                                : "amin";
  return [=, axis = Axis(info, 0)](const Tensors& x) {
    const at::Tensor indices = Positive(x[1], x[0].size(axis)).to(at::kLong);
    return Tensors{reduction == "none" ? at::scatter(x[0], axis, indices, x[2])
                                       : at::scatter_reduce(x[0], axis, indices, x[2], name)};
  };
}

TorchRun Pad(const KernelInfo& info) {
  const Ints pads = info.HostInts(1);
  if (info.Attr<std::string>("mode", "constant") != "constant") return nullptr;
  Ints axes = info.HostInts(3);
  const int rank = info.InputShape(0).rank();
  for (int d = 0; d < rank && !info.HasInput(3); ++d) axes.push_back(d);
  Ints reversed(2 * static_cast<size_t>(rank), 0);  // PyTorch counts from the last dim
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t d = static_cast<size_t>(axes[i] < 0 ? axes[i] + rank : axes[i]);
    reversed[2 * (rank - 1 - d)] = pads[i];
    reversed[2 * (rank - 1 - d) + 1] = pads[i + axes.size()];
  }
  return [=](const Tensors& x) {
    const bool given = x.size() > 2 && x[2].defined() && !x[2].is_meta();
    return Tensors{at::constant_pad_nd(x[0], reversed, given ? x[2].item() : at::Scalar(0))};
  };
}

TorchRun Trilu(const KernelInfo& info) {
  const Ints given = info.HostInts(1);
  const int64_t k = given.empty() ? 0 : given[0];
  const bool upper = info.Attr<int64_t>("upper", 1) != 0;
  return [=](const Tensors& x) { return Tensors{upper ? at::triu(x[0], k) : at::tril(x[0], k)}; };
}

}  // namespace

std::vector<TorchOp> MovementTorchOps() {
  return {
      {"Reshape", Reshape, kTorchTypes, 5, {1}},
      {"Transpose", Transpose, kTorchTypes},
      {"Expand", Expand, kTorchTypes, 8, {1}},
      {"Tile", Tile, kTorchTypes, 6, {1}},
      {"Squeeze", Squeeze, kTorchTypes, 13, {1}},
      {"Unsqueeze", Unsqueeze, kTorchTypes, 13, {1}},
      {"Flatten", Flatten, kTorchTypes},
      {"Concat", Concat, kTorchTypes, 4},
      {"Split", Split, kTorchTypes, 13, {1}},
      {"Slice", Slice, kTorchTypes, 10, {1, 2, 3, 4}},
      {"Gather", Gather, kTorchTypes},
      {"GatherElements", GatherElements, kTorchTypes},
      {"ScatterElements", ScatterElements, kTorchNumbers},
      {"Pad", Pad, kTorchNumbers, 11, {1, 3}},
      {"Trilu", Trilu, kTorchTypes, 1, {1}},
  };
}

}  // namespace caesura::torch
