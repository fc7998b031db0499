// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/dnn_graph.h"

#include <algorithm>
#include <optional>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

using cudnn::AttributeType;

AttributeType TypeOf(const int64_t*) { return cudnn::kTypeInt64; }
AttributeType TypeOf(const bool*) { return cudnn::kTypeBoolean; }
AttributeType TypeOf(const char*) { return cudnn::kTypeChar; }
AttributeType TypeOf(const float*) { return cudnn::kTypeFloat; }
AttributeType TypeOf(void* const*) { return cudnn::kTypeVoidPointer; }
AttributeType TypeOf(const cudnn::Handle*) { return cudnn::kTypeHandle; }
AttributeType TypeOf(const cudnn::Descriptor*) { return cudnn::kTypeDescriptor; }
AttributeType TypeOf(const cudnn::DataType*) { return cudnn::kTypeDataType; }
AttributeType TypeOf(const cudnn::PointwiseMode*) { return cudnn::kTypePointwiseMode; }
AttributeType TypeOf(const cudnn::ReductionMode*) { return cudnn::kTypeReductionMode; }
AttributeType TypeOf(const cudnn::ConvolutionMode*) { return cudnn::kTypeConvolutionMode; }
AttributeType TypeOf(const cudnn::HeuristicMode*) { return cudnn::kTypeHeuristicMode; }

std::vector<cudnn::Descriptor> Addresses(const std::vector<DnnDescriptor>& of) {
  std::vector<cudnn::Descriptor> out;
  for (const DnnDescriptor& descriptor : of) out.push_back(descriptor.get());
  return out;
}

cudnn::Status FirstRefusal(const std::vector<DnnDescriptor>& of) {
  for (const DnnDescriptor& descriptor : of) {
    if (descriptor.status() != cudnn::kSuccess) return descriptor.status();
  }
  return cudnn::kSuccess;
}

// Ways to run the graph, the fastest first by cuDNN's guess.
std::vector<DnnDescriptor> ConfigsOf(const DnnTarget& target, const DnnDescriptor& graph,
                                     const DnnDescriptor* device, cudnn::HeuristicMode mode) {
  DnnDescriptor heuristic(target.calls, cudnn::kEngineHeuristic);
  heuristic.Set(cudnn::kHeuristicGraph, graph.get());
  heuristic.Set(cudnn::kHeuristicModeAttribute, mode);
  if (device != nullptr) heuristic.Set(cudnn::kHeuristicDeviceProperties, device->get());
  heuristic.Finalize();
  const int64_t count = heuristic.Get(cudnn::kHeuristicResults, cudnn::kTypeDescriptor, 0, nullptr);
  std::vector<DnnDescriptor> out;
  for (int64_t i = 0; i < count; ++i) out.emplace_back(target.calls, cudnn::kEngineConfig);
  std::vector<cudnn::Descriptor> addresses = Addresses(out);
  const int64_t given =
      heuristic.Get(cudnn::kHeuristicResults, cudnn::kTypeDescriptor, count, addresses.data());
  while (static_cast<int64_t>(out.size()) > given) out.pop_back();
  return out;
}

// True if the engine has none of these notes.
bool HasNone(const DnnTarget& target, const DnnDescriptor& config,
             const std::vector<cudnn::NumericalNote>& unwanted) {
  DnnDescriptor engine(target.calls, cudnn::kEngine);
  cudnn::Descriptor address = engine.get();
  if (config.Get(cudnn::kEngineConfigEngine, cudnn::kTypeDescriptor, 1, &address) != 1)
    return false;
  cudnn::NumericalNote notes[cudnn::kNoteCount];
  const int64_t count =
      engine.Get(cudnn::kEngineNumericalNote, cudnn::kTypeNumericalNote, cudnn::kNoteCount, notes);
  return engine.status() == cudnn::kSuccess &&
         std::find_first_of(notes, notes + count, unwanted.begin(), unwanted.end()) ==
             notes + count;
}

}  // namespace

DnnDescriptor::DnnDescriptor(const cudnn::Functions& calls, cudnn::DescriptorType type)
    : calls_(&calls) {
  status_ = calls.BackendCreateDescriptor(type, &descriptor_);
}

DnnDescriptor::~DnnDescriptor() {
  if (descriptor_ != nullptr) calls_->BackendDestroyDescriptor(descriptor_);
}

template <typename T>
void DnnDescriptor::SetAll(cudnn::Attribute attribute, const T* values, int64_t count) {
  if (status_ != cudnn::kSuccess) return;
  status_ = calls_->BackendSetAttribute(descriptor_, attribute, TypeOf(values), count, values);
}

void DnnDescriptor::Finalize() {
  if (status_ == cudnn::kSuccess) status_ = calls_->BackendFinalize(descriptor_);
}

int64_t DnnDescriptor::Get(cudnn::Attribute attribute, AttributeType type, int64_t most,
                           void* to) const {
  int64_t count = 0;
  if (status_ == cudnn::kSuccess)
    status_ = calls_->BackendGetAttribute(descriptor_, attribute, type, most, &count, to);
  return status_ == cudnn::kSuccess ? count : 0;
}

DnnDescriptor& DnnGraph::AddTensor(cudnn::DataType type, const Dims& dims, const Dims& strides) {
  const auto id = static_cast<Id>(tensors_.size());
  has_halves_ |= type == cudnn::kHalf || type == cudnn::kBFloat16;
  DnnDescriptor& out = tensors_.emplace_back(calls_, cudnn::kTensor);
  out.Set(cudnn::kTensorDataType, type);
  out.Set(cudnn::kTensorDimensions, dims);
  out.Set(cudnn::kTensorStrides, strides);
  out.Set(cudnn::kTensorUniqueId, id);
  out.Set(cudnn::kTensorByteAlignment, kAlignment);
  return out;
}

DnnGraph::Id DnnGraph::Finish() {
  tensors_.back().Finalize();
  return static_cast<Id>(tensors_.size()) - 1;
}

DnnGraph::Id DnnGraph::Tensor(cudnn::DataType type, const Dims& dims, const Dims& strides) {
  AddTensor(type, dims, strides);
  return in_memory_.emplace_back(Finish());
}

DnnGraph::Id DnnGraph::Virtual(cudnn::DataType type, const Dims& dims, const Dims& strides) {
  Dims dense(dims.size(), 1);
  for (size_t d = dims.size() - 1; d-- > 0;) dense[d] = dense[d + 1] * dims[d + 1];
  AddTensor(type, dims, strides.empty() ? dense : strides).Set(cudnn::kTensorIsVirtual, true);
  return Finish();
}

DnnGraph::Id DnnGraph::Number(float value, int rank) {
  const Dims ones(static_cast<size_t>(rank), 1);
  AddTensor(cudnn::kFloat, ones, ones).Set(cudnn::kTensorIsByValue, true);
  numbers_.push_back(value);
  return number_ids_.emplace_back(Finish());
}

DnnDescriptor& DnnGraph::Describe(cudnn::DescriptorType type) {
  return descriptions_.emplace_back(calls_, type);
}

DnnDescriptor& DnnGraph::Operation(
    cudnn::DescriptorType type,
    const std::vector<std::pair<cudnn::Attribute, cudnn::Descriptor>>& attributes) {
  DnnDescriptor& out = operations_.emplace_back(calls_, type);
  for (const auto& [attribute, descriptor] : attributes) out.Set(attribute, descriptor);
  return out;
}

void DnnGraph::Pointwise(cudnn::PointwiseMode mode, const std::vector<Id>& inputs, Id y,
                         cudnn::DataType math) {
  constexpr cudnn::Attribute kInputs[] = {cudnn::kOperationPointwiseX, cudnn::kOperationPointwiseB,
                                          cudnn::kOperationPointwiseT};
  DnnDescriptor& description = Describe(cudnn::kPointwise);
  description.Set(cudnn::kPointwiseModeAttribute, mode);
  description.Set(cudnn::kPointwiseMathType, math);
  description.Finalize();
  std::vector<std::pair<cudnn::Attribute, cudnn::Descriptor>> attributes = {
      {cudnn::kOperationPointwiseDescriptor, description.get()},
      {cudnn::kOperationPointwiseY, At(y)}};
  for (size_t i = 0; i < inputs.size(); ++i) attributes.emplace_back(kInputs[i], At(inputs[i]));
  Operation(cudnn::kOperationPointwise, attributes).Finalize();
}

void DnnGraph::Index(Id x, int64_t axis, Id y) {
  DnnDescriptor& description = Describe(cudnn::kPointwise);
  description.Set(cudnn::kPointwiseModeAttribute, cudnn::kGenIndex);
  description.Set(cudnn::kPointwiseMathType, cudnn::kInt32);
  description.Set(cudnn::kPointwiseAxis, axis);
  description.Finalize();
  Operation(cudnn::kOperationPointwise, {{cudnn::kOperationPointwiseDescriptor, description.get()},
                                         {cudnn::kOperationPointwiseX, At(x)},
                                         {cudnn::kOperationPointwiseY, At(y)}})
      .Finalize();
}

void DnnGraph::Matmul(Id a, Id b, Id y) {
  DnnDescriptor& description = Describe(cudnn::kMatmul);
  description.Set(cudnn::kMatmulComputeType, cudnn::kFloat);
  description.Finalize();
  Operation(cudnn::kOperationMatmul, {{cudnn::kMatmulDescriptor, description.get()},
                                      {cudnn::kMatmulA, At(a)},
                                      {cudnn::kMatmulB, At(b)},
                                      {cudnn::kMatmulC, At(y)}})
      .Finalize();
}

void DnnGraph::Reduce(cudnn::ReductionMode mode, Id x, Id y) {
  DnnDescriptor& description = Describe(cudnn::kReduction);
  description.Set(cudnn::kReductionModeAttribute, mode);
  description.Set(cudnn::kReductionComputeType, cudnn::kFloat);
  description.Finalize();
  Operation(cudnn::kOperationReduction, {{cudnn::kReductionDescriptor, description.get()},
                                         {cudnn::kReductionX, At(x)},
                                         {cudnn::kReductionY, At(y)}})
      .Finalize();
}

void DnnGraph::Reshape(Id x, Id y) {
  Operation(cudnn::kOperationReshape, {{cudnn::kReshapeX, At(x)}, {cudnn::kReshapeY, At(y)}})
      .Finalize();
}

void DnnGraph::Convolution(cudnn::DescriptorType kind, const Window& window, Id x, Id w, Id y) {
  struct Attributes {
    cudnn::Attribute window, x, w, y, alpha, beta;
  };
  const Attributes of =
      kind == cudnn::kConvolutionForward
          ? Attributes{cudnn::kForwardConvolution, cudnn::kForwardX,     cudnn::kForwardW,
                       cudnn::kForwardY,           cudnn::kForwardAlpha, cudnn::kForwardBeta}
      : kind == cudnn::kConvolutionBackwardData
          ? Attributes{cudnn::kBackwardDataConvolution, cudnn::kBackwardDataDx,
                       cudnn::kBackwardDataW,           cudnn::kBackwardDataDy,
                       cudnn::kBackwardDataAlpha,       cudnn::kBackwardDataBeta}
          : Attributes{cudnn::kBackwardFilterConvolution, cudnn::kBackwardFilterX,
                       cudnn::kBackwardFilterDw,          cudnn::kBackwardFilterDy,
                       cudnn::kBackwardFilterAlpha,       cudnn::kBackwardFilterBeta};
  DnnDescriptor& description = Describe(cudnn::kConvolutionDescriptor);
  description.Set(cudnn::kConvolutionComputeType, cudnn::kFloat);
  description.Set(cudnn::kConvolutionModeAttribute, cudnn::kCrossCorrelation);
  description.Set(cudnn::kConvolutionSpatialDims, static_cast<int64_t>(window.strides.size()));
  description.Set(cudnn::kConvolutionStrides, window.strides);
  description.Set(cudnn::kConvolutionDilations, window.dilations);
  description.Set(cudnn::kConvolutionPrePaddings, window.before);
  description.Set(cudnn::kConvolutionPostPaddings, window.after);
  description.Finalize();
  DnnDescriptor& operation = Operation(
      kind, {{of.window, description.get()}, {of.x, At(x)}, {of.w, At(w)}, {of.y, At(y)}});
  operation.Set(of.alpha, 1.0f);
  operation.Set(of.beta, 0.0f);
  operation.Finalize();
}

Status DnnGraph::Refusal(const char* what, cudnn::Status status) const {
  return Unsupported(std::string("cuDNN takes no ") + what + " like this: status " +
                     std::to_string(status));
}

Result<DnnPlan> DnnGraph::Plan(const DnnTarget& target) const {
  for (const auto* of : {&tensors_, &descriptions_, &operations_}) {
    const cudnn::Status status = FirstRefusal(*of);
    if (status == cudnn::kSuccess) continue;
    return Refusal(of == &tensors_ ? "tensor" : "operation", status);
  }
  std::optional<DnnDescriptor> device;
  DnnDescriptor graph(calls_, cudnn::kOperationGraph);
  graph.Set(cudnn::kGraphOperations, Addresses(operations_));
  if (target.handle != nullptr) {
    graph.Set(cudnn::kGraphHandle, target.handle);
  } else {
    device.emplace(calls_, cudnn::kDeviceProperties);
    device->SetAll(cudnn::kDevicePropertiesJson, target.properties.data(),
                   static_cast<int64_t>(target.properties.size()));
    device->Finalize();
    if (device->status() != cudnn::kSuccess) return Refusal("device", device->status());
  }
  graph.Finalize();
  if (graph.status() != cudnn::kSuccess) return Refusal("graph", graph.status());
  const DnnDescriptor* at = device ? &*device : nullptr;
  std::vector<cudnn::NumericalNote> unwanted = {
      cudnn::kNoteNondeterministic, cudnn::kNoteDownConverts, cudnn::kNoteReducedPrecision};
  // Tensor cores have no float32, only TF32.
  if (!has_halves_) unwanted.push_back(cudnn::kNoteTensorCore);
  cudnn::Status refusal = cudnn::kNotSupported;
  for (const auto mode : {cudnn::kHeuristicA, cudnn::kHeuristicFallback}) {
    for (const DnnDescriptor& config : ConfigsOf(target, graph, at, mode)) {
      if (!HasNone(target, config, unwanted)) continue;
      DnnDescriptor plan(calls_, cudnn::kExecutionPlan);
      plan.Set(cudnn::kPlanEngineConfig, config.get());
      if (at == nullptr) plan.Set(cudnn::kPlanHandle, target.handle);
      else plan.Set(cudnn::kPlanDeviceProperties, at->get());
      plan.Finalize();
      int64_t bytes = 0;
      plan.Get(cudnn::kPlanWorkspaceSize, cudnn::kTypeInt64, 1, &bytes);
      refusal = plan.status();
      if (refusal != cudnn::kSuccess) continue;
      DnnPlan out(calls_, std::move(plan));
      out.workspace_bytes_ = static_cast<size_t>(bytes);
      out.ids_ = in_memory_;
      out.ids_.insert(out.ids_.end(), number_ids_.begin(), number_ids_.end());
      out.numbers_ = numbers_;
      return out;
    }
  }
  return Refusal("plan", refusal);
}

Status DnnPlan::Run(cudnn::Handle handle, const std::vector<void*>& tensors,
                    void* workspace) const {
  for (const void* tensor : tensors) {
    if (reinterpret_cast<uintptr_t>(tensor) % DnnGraph::kAlignment != 0)
      return Status(StatusCode::kProviderFailure,
                    "cuDNN takes tensors at multiples of 16 bytes only");
  }
  std::vector<void*> addresses = tensors;
  for (const float& number : numbers_) addresses.push_back(const_cast<float*>(&number));
  DnnDescriptor pack(*calls_, cudnn::kVariantPack);
  pack.Set(cudnn::kPackUniqueIds, ids_);
  pack.Set(cudnn::kPackDataPointers, addresses);
  pack.Set(cudnn::kPackWorkspace, workspace);
  pack.Finalize();
  cudnn::Status status = pack.status();
  if (status == cudnn::kSuccess) status = calls_->BackendExecute(handle, plan_.get(), pack.get());
  if (status == cudnn::kSuccess) return {};
  return Status(StatusCode::kProviderFailure,
                "cudnnBackendExecute failed: status " + std::to_string(status));
}

}  // namespace caesura
