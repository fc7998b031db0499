// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "torch_bridge/provider/torch_ops.h"

namespace caesura::torch {
namespace {

using Ints = std::vector<int64_t>;
constexpr DTypeSet kWide = {DType::kFloat32,
                            DType::kFloat64};  // half types round elsewhere in PyTorch

// --- products ---

TorchRun Gemm(const KernelInfo& info) {
  const double alpha = info.Attr<float>("alpha", 1), beta = info.Attr<float>("beta", 1);
  const bool turn_a = info.Attr<int64_t>("transA", 0) != 0,
             turn_b = info.Attr<int64_t>("transB", 0) != 0;
  return [=](const Tensors& x) {
    const at::Tensor a = turn_a ? x[0].t() : x[0], b = turn_b ? x[1].t() : x[1];
    if (x.size() > 2 && x[2].defined()) return Tensors{at::addmm(x[2], a, b, beta, alpha)};
    return Tensors{alpha == 1 ? at::mm(a, b) : at::mm(a, b) * alpha};
  };
}

TorchRun MatMul(const KernelInfo&) {
  return [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; };
}

TorchRun Einsum(const KernelInfo& info) {
  const auto equation = info.Attr<std::string>("equation", "");
  return [equation](const Tensors& x) { return Tensors{at::einsum(equation, x)}; };
}

// --- along axes ---

// f(x, axes, keepdims)
template <typename F>
TorchOp Reduce(const char* op_type, F f, DTypeSet types = kWide) {
  return {op_type,
          [f](const KernelInfo& info) -> TorchRun {
            Ints axes = info.HostInts(1);
            if (axes.empty() && info.Attr<int64_t>("noop_with_empty_axes", 0) != 0) return nullptr;
            const bool all = axes.empty();
            for (int d = 0; all && d < info.InputShape(0).rank(); ++d) axes.push_back(d);
            const bool keep = info.Attr<int64_t>("keepdims", 1) != 0;
            return [=](const Tensors& x) { return Tensors{f(x[0], axes, keep)}; };
          },
          types,
          13,
          {1}};
}
using X = const at::Tensor&;

template <typename F>
TorchOp ArgReduce(const char* op_type, F f) {
  return {op_type, [f](const KernelInfo& info) -> TorchRun {
            if (info.Attr<int64_t>("select_last_index", 0) != 0 || info.InputShape(0).rank() == 0)
              return nullptr;
            const int64_t axis = info.Attr<int64_t>("axis", 0);
            const bool keep = info.Attr<int64_t>("keepdims", 1) != 0;
            return [=](const Tensors& x) { return Tensors{f(x[0], axis, keep)}; };
          }};
}

template <typename F>
TorchOp Softmax(const char* op_type, F f) {
  return {op_type,
          [f](const KernelInfo& info) -> TorchRun {
            return [f, axis = info.Attr<int64_t>("axis", -1)](const Tensors& x) {
              return Tensors{f(x[0], axis)};
            };
          },
          kWide, 13};
}

TorchRun CumSum(const KernelInfo& info) {
  const Ints axis = info.HostInts(1);
  if (info.Attr<int64_t>("exclusive", 0) != 0 || info.Attr<int64_t>("reverse", 0) != 0 ||
      axis.empty())
    return nullptr;
  return [axis = axis[0]](const Tensors& x) {
    return Tensors{at::cumsum(x[0], axis, x[0].scalar_type())};
  };
}

// --- windows ---

struct Window {
  Ints strides, pads, dilations;  // the same pads on both sides
};

// False for pads that PyTorch's kernels do not take.
bool ReadWindow(const KernelInfo& info, Window* window) {
  const size_t spatial = static_cast<size_t>(info.InputShape(0).rank()) - 2;
  const auto auto_pad = info.Attr<std::string>("auto_pad", "NOTSET");
  const Ints both = info.Attr<Ints>("pads", Ints(2 * spatial, 0));
  *window = {info.Attr<Ints>("strides", Ints(spatial, 1)),
             Ints(both.begin(), both.begin() + spatial),
             info.Attr<Ints>("dilations", Ints(spatial, 1))};
  return spatial >= 1 && spatial <= 3 && (auto_pad == "NOTSET" || auto_pad == "VALID") &&
         std::equal(window->pads.begin(), window->pads.end(), both.begin() + spatial);
}

TorchRun Conv(const KernelInfo& info) {
  Window w;
  if (!ReadWindow(info, &w)) return nullptr;
  return [w, groups = info.Attr<int64_t>("group", 1)](const Tensors& x) {
    const auto bias =
        x.size() > 2 && x[2].defined() ? std::optional<at::Tensor>(x[2]) : std::nullopt;
    const Ints none(w.pads.size(), 0);
    return Tensors{
        at::convolution(x[0], x[1], bias, w.strides, w.pads, w.dilations, false, none, groups)};
  };
}

TorchRun ConvTranspose(const KernelInfo& info) {
  Window w;
  if (!ReadWindow(info, &w) || info.node().HasAttribute("output_shape")) return nullptr;
  const Ints more = info.Attr<Ints>("output_padding", Ints(w.pads.size(), 0));
  return [=, groups = info.Attr<int64_t>("group", 1)](const Tensors& x) {
    const auto bias =
        x.size() > 2 && x[2].defined() ? std::optional<at::Tensor>(x[2]) : std::nullopt;
    return Tensors{
        at::convolution(x[0], x[1], bias, w.strides, w.pads, w.dilations, true, more, groups)};
  };
}

TorchRun MaxPool(const KernelInfo& info) {
  Window w;
  if (!ReadWindow(info, &w) || info.HasOutput(1) || info.Attr<int64_t>("ceil_mode", 0) != 0)
    return nullptr;
  return [w, kernel = info.Attr<Ints>("kernel_shape", {})](const Tensors& x) {
    switch (kernel.size()) {
      case 1: return Tensors{at::max_pool1d(x[0], kernel, w.strides, w.pads, w.dilations)};
      case 2: return Tensors{at::max_pool2d(x[0], kernel, w.strides, w.pads, w.dilations)};
      default: return Tensors{at::max_pool3d(x[0], kernel, w.strides, w.pads, w.dilations)};
    }
  };
}

TorchRun AveragePool(const KernelInfo& info) {
  Window w;
  const bool plain = ReadWindow(info, &w) && info.Attr<int64_t>("ceil_mode", 0) == 0;
  if (!plain ||
      std::any_of(w.dilations.begin(), w.dilations.end(), [](int64_t d) { return d != 1; }))
    return nullptr;
  return [w, pads = info.Attr<int64_t>("count_include_pad", 0) != 0,
          kernel = info.Attr<Ints>("kernel_shape", {})](const Tensors& x) {
    switch (kernel.size()) {
      case 1: return Tensors{at::avg_pool1d(x[0], kernel, w.strides, w.pads, false, pads)};
      case 2: return Tensors{at::avg_pool2d(x[0], kernel, w.strides, w.pads, false, pads)};
      default: return Tensors{at::avg_pool3d(x[0], kernel, w.strides, w.pads, false, pads)};
    }
  };
}

Ints SpatialAxes(const at::Tensor& x) {
  Ints axes;
  for (int64_t d = 2; d < x.dim(); ++d) axes.push_back(d);
  return axes;
}

// --- normalization ---

TorchRun BatchNormalization(const KernelInfo& info) {
  if (info.Attr<int64_t>("training_mode", 0) != 0 || info.HasOutput(1)) return nullptr;
  return [epsilon = info.Attr<float>("epsilon", 1e-5f)](const Tensors& x) {
    return Tensors{at::batch_norm(x[0], x[1], x[2], x[3], x[4], false, 0, epsilon, false)};
  };
}

TorchRun LayerNormalization(const KernelInfo& info) {
  const auto axis = NormalizeAxis(info.Attr<int64_t>("axis", -1), info.InputShape(0).rank());
  if (!axis.ok()) return nullptr;
  const Ints shape(info.InputShape(0).begin() + *axis, info.InputShape(0).end());
  const bool fits = info.InputShape(1).dims() == shape &&
                    (!info.HasInput(2) || info.InputShape(2).dims() == shape);
  if (!fits || info.InputDType(0) != DType::kFloat32)
    return nullptr;  // float64: statistics are float32 in ONNX
  return [shape, epsilon = info.Attr<float>("epsilon", 1e-5f)](const Tensors& x) {
    const auto bias =
        x.size() > 2 && x[2].defined() ? std::optional<at::Tensor>(x[2]) : std::nullopt;
    const auto [y, mean, inv_std] = at::native_layer_norm(x[0], shape, x[1], bias, epsilon);
    return Tensors{y, mean, inv_std};
  };
}

TorchRun InstanceNormalization(const KernelInfo& info) {
  return [epsilon = info.Attr<float>("epsilon", 1e-5f)](const Tensors& x) {
    return Tensors{at::instance_norm(x[0], x[1], x[2], {}, {}, true, 0, epsilon, false)};
  };
}

TorchRun GroupNormalization(const KernelInfo& info) {
  return [groups = info.Attr<int64_t>("num_groups", 1),
          epsilon = info.Attr<float>("epsilon", 1e-5f)](const Tensors& x) {
    return Tensors{at::group_norm(x[0], groups, x[1], x[2], epsilon)};
  };
}

}  // namespace

std::vector<TorchOp> NnTorchOps() {
  return {
      {"Gemm", Gemm, kWide},
      {"MatMul", MatMul, kWide},
      {"Einsum", Einsum, kWide},
      Reduce("ReduceL1",
             [](X x, const Ints& axes, bool keep) { return at::sum(at::abs(x), axes, keep); }),
      Reduce("ReduceL2",
             [](X x, const Ints& axes, bool keep) { return at::sqrt(at::sum(x * x, axes, keep)); }),
      Reduce("ReduceLogSum",
             [](X x, const Ints& axes, bool keep) { return at::log(at::sum(x, axes, keep)); }),
      Reduce("ReduceLogSumExp",
             [](X x, const Ints& axes, bool keep) { return at::logsumexp(x, axes, keep); }),
      Reduce(
          "ReduceMax", [](X x, const Ints& axes, bool keep) { return at::amax(x, axes, keep); },
          kTorchNumbers),
      Reduce("ReduceMean",
             [](X x, const Ints& axes, bool keep) { return at::mean(x, axes, keep); }),
      Reduce(
          "ReduceMin", [](X x, const Ints& axes, bool keep) { return at::amin(x, axes, keep); },
          kTorchNumbers),
      Reduce("ReduceSum", [](X x, const Ints& axes, bool keep) { return at::sum(x, axes, keep); }),
      Reduce("ReduceSumSquare",
             [](X x, const Ints& axes, bool keep) { return at::sum(x * x, axes, keep); }),
      ArgReduce("ArgMax", [](X x, int64_t axis, bool keep) { return at::argmax(x, axis, keep); }),
      ArgReduce("ArgMin", [](X x, int64_t axis, bool keep) { return at::argmin(x, axis, keep); }),
      Softmax("Softmax", [](X x, int64_t axis) { return at::softmax(x, axis); }),
      Softmax("LogSoftmax", [](X x, int64_t axis) { return at::log_softmax(x, axis); }),
      {"CumSum", CumSum, kTorchNumbers, 1, {1}},
      {"Conv", Conv, kWide},
      {"ConvTranspose", ConvTranspose, kWide},
      {"MaxPool", MaxPool, kWide},
      {"AveragePool", AveragePool, kWide},
      {"GlobalAveragePool",
       [](const KernelInfo&) -> TorchRun {
         return [](const Tensors& x) { return Tensors{at::mean(x[0], SpatialAxes(x[0]), true)}; };
       },
       kWide},
      {"GlobalMaxPool",
       [](const KernelInfo&) -> TorchRun {
         return [](const Tensors& x) { return Tensors{at::amax(x[0], SpatialAxes(x[0]), true)}; };
       },
       kWide},
      {"BatchNormalization", BatchNormalization, kWide, 14},
      {"LayerNormalization", LayerNormalization, kWide},
      {"InstanceNormalization", InstanceNormalization, kWide},
      {"GroupNormalization", GroupNormalization, kWide, 21},
  };
}

}  // namespace caesura::torch
