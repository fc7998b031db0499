// SPDX-License-Identifier: Apache-2.0
// The part of cuDNN 9's binary interface that caesura uses: graphs of operations, made of
// descriptors whose attributes are set one by one. The names are those of cudnn_graph.h without
// their prefix; a test compares them with that header where its package (0.4 GB) is installed.
#ifndef CAESURA_CORE_CUDA_CUDNN_H_
#define CAESURA_CORE_CUDA_CUDNN_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace caesura::cudnn {

using Handle = struct HandleStruct*;
using Descriptor = struct DescriptorStruct*;

enum Status : int { kSuccess = 0, kNotSupported = 3000 };
enum DataType : int {
  kFloat = 0,
  kDouble = 1,
  kHalf = 2,
  kInt32 = 4,
  kBFloat16 = 9,
  kBoolean = 11,
};
enum ReductionMode : int { kReduceAdd = 0, kReduceMax = 3 };
enum PointwiseMode : int {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kCompareGe = 303,
  kGenIndex = 501,
  kBinarySelect = 601,
};
enum ConvolutionMode : int { kConvolution = 0, kCrossCorrelation = 1 };
enum HeuristicMode : int { kHeuristicFallback = 2, kHeuristicA = 3 };
enum NumericalNote : int {
  kNoteTensorCore = 0,
  kNoteDownConverts = 1,  // inputs are rounded to a narrower type
  kNoteReducedPrecision = 2,
  kNoteNondeterministic = 4,
  kNoteCount = 10,
};

enum AttributeType : int {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypeDouble = 5,
  kTypeVoidPointer = 6,
  kTypeConvolutionMode = 7,
  kTypeHeuristicMode = 8,
  kTypeNumericalNote = 11,
  kTypePointwiseMode = 14,
  kTypeDescriptor = 15,
  kTypeReductionMode = 18,
  kTypeChar = 24,
};

enum DescriptorType : int {
  kPointwise = 0,
  kConvolutionDescriptor = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristic = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardFilter = 11,
  kConvolutionBackwardData = 12,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kOperationMatmul = 19,
  kReduction = 21,
  kOperationReduction = 22,
  kOperationReshape = 31,
  kDeviceProperties = 38,
};

enum Attribute : int {
  kPointwiseModeAttribute = 0,
  kPointwiseMathType = 1,
  kPointwiseAxis = 9,
  kConvolutionComputeType = 100,
  kConvolutionModeAttribute = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDims = 106,
  kHeuristicModeAttribute = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDeviceProperties = 204,
  kEngineConfigEngine = 300,
  kPlanHandle = 400,
  kPlanEngineConfig = 401,
  kPlanWorkspaceSize = 402,
  kPlanDeviceProperties = 407,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kBackwardDataAlpha = 706,
  kBackwardDataBeta = 707,
  kBackwardDataConvolution = 708,
  kBackwardDataW = 709,
  kBackwardDataDx = 710,
  kBackwardDataDy = 711,
  kBackwardFilterAlpha = 712,
  kBackwardFilterBeta = 713,
  kBackwardFilterConvolution = 714,
  kBackwardFilterDw = 715,
  kBackwardFilterX = 716,
  kBackwardFilterDy = 717,
  kOperationPointwiseDescriptor = 750,
  kOperationPointwiseX = 751,
  kOperationPointwiseB = 752,
  kOperationPointwiseY = 753,
  kOperationPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackUniqueIds = 1000,
  kPackDataPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNumericalNote = 1303,
  kMatmulComputeType = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
  kReductionModeAttribute = 1600,
  kReductionComputeType = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kDevicePropertiesJson = 2702,
};

}  // namespace caesura::cudnn

// F(name, arguments): functions that return a Status.
#define CAESURA_CUDNN_FUNCTIONS(F)                                                         \
  F(Create, (cudnn::Handle*))                                                              \
  F(Destroy, (cudnn::Handle))                                                              \
  F(SetStream, (cudnn::Handle, CUstream))                                                  \
  F(BackendCreateDescriptor, (cudnn::DescriptorType, cudnn::Descriptor*))                  \
  F(BackendDestroyDescriptor, (cudnn::Descriptor))                                         \
  F(BackendFinalize, (cudnn::Descriptor))                                                  \
  F(BackendSetAttribute,                                                                   \
    (cudnn::Descriptor, cudnn::Attribute, cudnn::AttributeType, int64_t, const void*))     \
  F(BackendGetAttribute,                                                                   \
    (cudnn::Descriptor, cudnn::Attribute, cudnn::AttributeType, int64_t, int64_t*, void*)) \
  F(BackendExecute, (cudnn::Handle, cudnn::Descriptor, cudnn::Descriptor))

namespace caesura::cudnn {

// Thread safety: all from any thread; a handle or descriptor from one at a time.
struct Functions {
#define CAESURA_MEMBER(name, arguments) Status(*name) arguments = nullptr;
  CAESURA_CUDNN_FUNCTIONS(CAESURA_MEMBER)
#undef CAESURA_MEMBER
};

}  // namespace caesura::cudnn

#endif  // CAESURA_CORE_CUDA_CUDNN_H_
