// SPDX-License-Identifier: Apache-2.0
// cuDNN's graphs of operations, and the plans that cuDNN makes of them.
//
// A graph is described once, tensor by tensor and operation by operation. Its plan is made for a
// device that is there (a handle), or for one that is described (JSON, as cuDNN tells of a device):
// so a graph can be checked against cuDNN itself without a GPU.
#ifndef CAESURA_CORE_CUDA_DNN_GRAPH_H_
#define CAESURA_CORE_CUDA_DNN_GRAPH_H_

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/cuda/cudnn.h"

namespace caesura {

// One of cuDNN's descriptors, destroyed with its owner. A call that cuDNN refuses makes it void:
// later ones do nothing, and status() tells the first refusal.
class DnnDescriptor {
 public:
  DnnDescriptor(const cudnn::Functions& calls, cudnn::DescriptorType type);
  DnnDescriptor(DnnDescriptor&& other) noexcept
      : calls_(other.calls_),
        descriptor_(std::exchange(other.descriptor_, nullptr)),
        status_(other.status_) {}
  DnnDescriptor& operator=(DnnDescriptor&&) = delete;
  ~DnnDescriptor();

  template <typename T>
  void Set(cudnn::Attribute attribute, const T& value) {
    SetAll(attribute, &value, 1);
  }
  template <typename T>
  void Set(cudnn::Attribute attribute, const std::vector<T>& values) {
    SetAll(attribute, values.data(), static_cast<int64_t>(values.size()));
  }
  template <typename T>
  void SetAll(cudnn::Attribute attribute, const T* values, int64_t count);
  void Finalize();
  // The attribute's elements, at most `most`; how many there are.
  int64_t Get(cudnn::Attribute attribute, cudnn::AttributeType type, int64_t most, void* to) const;

  cudnn::Descriptor get() const { return descriptor_; }
  cudnn::Status status() const { return status_; }

 private:
  const cudnn::Functions* calls_;
  cudnn::Descriptor descriptor_ = nullptr;
  mutable cudnn::Status status_ = cudnn::kSuccess;
};

// A graph that cuDNN has decided how to run.
// Thread safety: Run from any thread, with one handle from one thread at a time.
class DnnPlan {
 public:
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Puts the plan on the handle's stream. `tensors`: the addresses of the graph's tensors in
  // memory, in the order in which they were added.
  Status Run(cudnn::Handle handle, const std::vector<void*>& tensors, void* workspace) const;

 private:
  friend class DnnGraph;
  DnnPlan(const cudnn::Functions& calls, DnnDescriptor plan)
      : calls_(&calls), plan_(std::move(plan)) {}

  const cudnn::Functions* calls_;
  DnnDescriptor plan_;
  size_t workspace_bytes_ = 0;
  std::vector<int64_t> ids_;  // of tensors in memory, then of numbers
  std::vector<float> numbers_;
};

// The device that a plan is for.
struct DnnTarget {
  const cudnn::Functions& calls;
  cudnn::Handle handle = nullptr;  // null: for the device of `properties`, and not to be run
  std::string properties = {};
};

// Thread safety: none. Calls that cuDNN refuses are told by Plan.
class DnnGraph {
 public:
  using Id = int64_t;  // of a tensor
  using Dims = std::vector<int64_t>;

  explicit DnnGraph(const cudnn::Functions& calls) : calls_(calls) {}

  // A tensor in memory, given to Run. Strides in elements; addresses are multiples of kAlignment.
  Id Tensor(cudnn::DataType type, const Dims& dims, const Dims& strides);
  // A tensor between operations, dense unless it has strides.
  Id Virtual(cudnn::DataType type, const Dims& dims, const Dims& strides = {});
  // A number that the plan holds, to be used with tensors of `rank` dims.
  Id Number(float value, int rank);

  // Each operation writes `y`; sums are float32.
  void Pointwise(cudnn::PointwiseMode mode, const std::vector<Id>& inputs, Id y,
                 cudnn::DataType math = cudnn::kFloat);
  // The position of each of x's elements along `axis`.
  void Index(Id x, int64_t axis, Id y);
  // `b` may have fewer matrices along a batch dim: then consecutive ones of `a` share one.
  void Matmul(Id a, Id b, Id y);
  void Reduce(cudnn::ReductionMode mode, Id x, Id y);
  // y is x's memory with other dims and strides.
  void Reshape(Id x, Id y);
  // x [batch, channels, spatial...], w [outputs, channels / groups, spatial...], y as x. The kind
  // (kConvolutionForward, kConvolutionBackwardFilter, kConvolutionBackwardData) says which of them
  // is written: y, w or x.
  struct Window {
    Dims strides, dilations, before, after;  // one for each spatial dim
  };
  void Convolution(cudnn::DescriptorType kind, const Window& window, Id x, Id w, Id y);

  // A plan that always gives the same bits, of inputs as they are (no TF32). kUnsupported where
  // cuDNN has none.
  Result<DnnPlan> Plan(const DnnTarget& target) const;

  static constexpr int64_t kAlignment = 16;  // in bytes

 private:
  DnnDescriptor& AddTensor(cudnn::DataType type, const Dims& dims, const Dims& strides);
  Id Finish();  // the last tensor
  DnnDescriptor& Describe(cudnn::DescriptorType type);
  DnnDescriptor& Operation(
      cudnn::DescriptorType type,
      const std::vector<std::pair<cudnn::Attribute, cudnn::Descriptor>>& attributes);
  cudnn::Descriptor At(Id id) const { return tensors_[static_cast<size_t>(id)].get(); }
  Status Refusal(const char* what, cudnn::Status status) const;

  const cudnn::Functions& calls_;
  std::vector<DnnDescriptor> tensors_, descriptions_, operations_;
  std::vector<Id> in_memory_, number_ids_;
  std::vector<float> numbers_;
  bool has_halves_ = false;
};

}  // namespace caesura

#endif  // CAESURA_CORE_CUDA_DNN_GRAPH_H_
