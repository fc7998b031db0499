// SPDX-License-Identifier: Apache-2.0
// The norm of gradients of PyTorch's, and their scaling to one that is not larger than asked.
#include <cmath>

#include <omp.h>

#include "core/base/env.h"
#include "core/kernels/simd/best_isa.h"
#include "core/ops/optimizer/parameter_blocks.h"
#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// A gradient's elements, in the order of its memory.
struct Elements {
  void* first;
  int64_t count;
};

// True if the tensor's elements fill a range of memory, each once.
bool IsDense(const DLTensor& view) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride and size
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 0) return true;
    if (view.shape[i] > 1) dims.emplace_back(view.strides[i], view.shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t count = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != count) return false;
    count *= size;
  }
  return true;
}

// As torch.nn.utils.clip_grad_norm_ computes with scalars of the gradients' dtype. Returns the norm
// before. Nothing is written where all factors are 1, or where the norm is not finite and
// `leave_nonfinite`.
template <typename T>
T Clip(const std::vector<Elements>& gradients, T max_norm, bool leave_nonfinite) {
  const int threads = env::NumThreads() > 0 ? env::NumThreads() : omp_get_max_threads();
  ParameterBlocks blocks;
  for (size_t i = 0; i < gradients.size(); ++i)
    blocks.AddTensor(static_cast<int>(i), gradients[i].count);
  const auto elements = [&](const ParameterBlocks::Block& block) {
    return static_cast<T*>(gradients[block.tensor].first) + block.first;
  };
  std::vector<double> sums(blocks.blocks().size());
  blocks.ForEach(threads, 2, [&](size_t b) {
    const ParameterBlocks::Block& block = blocks.blocks()[b];
    OnBestIsa([&, x = elements(block)] { sums[b] = SumOfSquares(x, block.count); });
  });
  double sum = 0;
  for (double part : sums) sum += part;
  const T norm = static_cast<T>(std::sqrt(sum));
  const T scale = T{1} / (norm + static_cast<T>(1e-6)) * max_norm;
  if (scale >= 1 || (leave_nonfinite && !std::isfinite(norm))) return norm;
  blocks.ForEach(threads, 1, [&](size_t b) {
    const ParameterBlocks::Block& block = blocks.blocks()[b];
    T* const x = elements(block);
    for (int64_t i = 0; i < block.count; ++i) x[i] *= scale;
  });
  return norm;
}

// The norm as a tensor; None, with nothing done, where the gradients are not all dense tensors of
// float32, or all of float64, on the host.
nb::object ClipGradients(nb::list gradients, double max_norm, bool leave_nonfinite) {
  std::vector<Elements> all;
  int bits = 0;
  for (nb::handle gradient : gradients) {
    const DLTensor view = TorchView(gradient);
    if (bits == 0) bits = view.dtype.bits;
    if (view.device.device_type != kDLCPU || view.dtype.code != kDLFloat ||
        view.dtype.bits != bits || (bits != 32 && bits != 64) || !IsDense(view))
      return nb::none();
    Elements& elements = all.emplace_back();
    elements.first = static_cast<char*>(view.data) + view.byte_offset;
    elements.count = 1;
    for (int i = 0; i < view.ndim; ++i) elements.count *= view.shape[i];
  }
  return ToTorch(WithoutGil([&] {
    return bits == 32 ? Tensor::Scalar(Clip(all, static_cast<float>(max_norm), leave_nonfinite))
                      : Tensor::Scalar(Clip(all, max_norm, leave_nonfinite));
  }));
}

}  // namespace

void BindClip(nb::module_& m) {
  m.def("clip_gradients", &ClipGradients, nb::arg("gradients"), nb::arg("max_norm"),
        nb::arg("leave_nonfinite"));
}

}  // namespace caesura::python
