// SPDX-License-Identifier: Apache-2.0
// The CPU provider's kernels: one function a family, each in the source file of its name.
#ifndef CAESURA_CORE_KERNELS_CPU_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

// All of them, in order of preference where several serve one op.
void RegisterCpuKernels(KernelRegistry& registry);

void RegisterUnaryKernels(KernelRegistry& registry);  // elementwise_unary.cc, with the next two
void RegisterActivationKernels(KernelRegistry& registry);  // elementwise_activation.cc
void RegisterIdentityKernels(KernelRegistry& registry);    // identity_clip.cc: Identity, Clip
void RegisterBinaryKernels(KernelRegistry& registry);  // elementwise_binary.cc, with the next two
void RegisterPowModKernels(KernelRegistry& registry);  // elementwise_pow.cc: Pow, Mod
void RegisterVariadicKernels(
    KernelRegistry& registry);  // elementwise_variadic.cc: Min, Max, Sum, Mean
void RegisterLogicKernels(
    KernelRegistry& registry);  // elementwise_logic.cc: comparisons, Where, bitwise
void RegisterCastKernels(KernelRegistry& registry);      // cast.cc: Cast, CastLike, BitCast
void RegisterQuantizeKernels(KernelRegistry& registry);  // quantize.cc
void RegisterMovementKernels(
    KernelRegistry& registry);  // movement.cc: Transpose, Concat, Slice, Pad, ...
void RegisterSliceKernels(
    KernelRegistry& registry);  // movement_slice.cc: Slice, CenterCropPad, Trilu, ...
void RegisterPadKernels(KernelRegistry& registry);        // movement_pad.cc
void RegisterSelectionKernels(KernelRegistry& registry);  // movement_select.cc: Compress, Unique
void RegisterShapeKernels(KernelRegistry& registry);  // shape_ops.cc: Shape, Reshape, Range, ...
void RegisterGeneratorKernels(
    KernelRegistry& registry);  // shape_generate.cc: Constant, Range, EyeLike, NonZero
void RegisterIndexingKernels(
    KernelRegistry& registry);  // indexing.cc: Gather*, Scatter*, OneHot, ...
void RegisterScatterKernels(
    KernelRegistry& registry);  // indexing_scatter.cc: Scatter*, TensorScatter
void RegisterReductionKernels(
    KernelRegistry& registry);  // reduction.cc: Reduce*, ArgMax, CumSum, TopK, ...
void RegisterExtremeKernels(
    KernelRegistry& registry);  // reduction_extreme.cc: ReduceMax, ReduceLogSumExp, ...
void RegisterScanKernels(
    KernelRegistry& registry);  // reduction_scan.cc: CumSum, CumProd, ArgMax, TopK
void RegisterMatMulKernels(
    KernelRegistry& registry);  // matmul.cc: MatMul, Gemm, Einsum, MatMulInteger
void RegisterIntegerMatMulKernels(KernelRegistry& registry);  // matmul_integer.cc
void RegisterEinsumKernels(KernelRegistry& registry);         // einsum.cc
void RegisterDetKernels(KernelRegistry& registry);            // det.cc
void RegisterConvKernels(KernelRegistry& registry);           // conv.cc
void RegisterConvTransposeKernels(KernelRegistry& registry);  // conv_transpose.cc
void RegisterIntegerConvKernels(
    KernelRegistry& registry);  // conv_integer.cc: ConvInteger, QLinearConv
void RegisterDeformConvKernels(KernelRegistry& registry);     // conv_deform.cc
void RegisterCausalConvKernels(KernelRegistry& registry);     // conv_causal.cc: CausalConvWithState
void RegisterPoolKernels(KernelRegistry& registry);           // pool.cc
void RegisterGlobalPoolKernels(KernelRegistry& registry);     // pool_global.cc: Global*, MaxUnpool
void RegisterNormalizationKernels(KernelRegistry& registry);  // normalization.cc: softmax, norms
void RegisterSoftmaxKernels(KernelRegistry& registry);        // softmax.cc
void RegisterBatchNormKernels(
    KernelRegistry& registry);  // normalization_batch.cc: batch, instance, group
void RegisterLpNormKernels(KernelRegistry& registry);  // normalization_lp.cc: Lp, MVN, LRN
void RegisterLossKernels(KernelRegistry& registry);    // loss.cc: SoftmaxCrossEntropyLoss, NLL
void RegisterRandomKernels(
    KernelRegistry& registry);  // random.cc, with the next one: Random*, Bernoulli, ...
void RegisterDropoutKernels(KernelRegistry& registry);    // dropout.cc
void RegisterRecurrentKernels(KernelRegistry& registry);  // recurrent.cc: RNN, GRU, LSTM
void RegisterQuantizedRecurrentKernels(
    KernelRegistry& registry);  // recurrent_quantized.cc: DynamicQuantizeLSTM
void RegisterFusedRowsKernel(KernelRegistry& registry);  // fused_rows.cc: bodies made by row_fusion
void RegisterAttentionKernels(KernelRegistry& registry);  // attention.cc
void RegisterRotaryKernels(KernelRegistry& registry);     // rotary.cc: RotaryEmbedding, SwiGLU
void RegisterLinearAttentionKernels(KernelRegistry& registry);  // linear_attention.cc
void RegisterImageKernels(KernelRegistry& registry);  // image.cc: Resize, GridSample, RoiAlign, ...
void RegisterGridKernels(KernelRegistry& registry);   // image_grid.cc: GridSample, AffineGrid
void RegisterRoiKernels(KernelRegistry& registry);    // image_roi.cc: RoiAlign, MaxRoiPool
void RegisterBoxKernels(KernelRegistry& registry);    // image_boxes.cc: NonMaxSuppression, Col2Im
void RegisterSignalKernels(KernelRegistry& registry);  // signal.cc, with the next one: DFT, STFT
void RegisterWindowKernels(KernelRegistry& registry);  // signal_window.cc: windows, MelWeightMatrix
void RegisterSequenceKernels(KernelRegistry& registry);  // sequence.cc: sequences and optionals
void RegisterOptionalKernels(KernelRegistry& registry);  // optional.cc
void RegisterTextKernels(
    KernelRegistry& registry);  // text.cc: StringConcat, StringSplit, RegexFullMatch, ...
void RegisterNgramKernels(KernelRegistry& registry);        // text_ngram.cc: TfIdfVectorizer
void RegisterControlFlowKernels(KernelRegistry& registry);  // control_flow.cc: If, Loop
void RegisterBodyScanKernels(KernelRegistry& registry);     // control_flow_scan.cc: Scan
void RegisterMlKernels(KernelRegistry& registry);           // ml.cc: domain ai.onnx.ml
void RegisterMlLabelKernels(
    KernelRegistry& registry);  // ml_label.cc: LabelEncoder, CategoryMapper, OneHotEncoder
void RegisterMlLinearKernels(
    KernelRegistry& registry);  // ml_linear.cc: LinearClassifier, LinearRegressor
void RegisterMlMapKernels(KernelRegistry& registry);  // ml_map.cc: CastMap, DictVectorizer, ZipMap
void RegisterMlSvmKernels(KernelRegistry& registry);  // ml_svm.cc: SVMClassifier, SVMRegressor
void RegisterMlTreeKernels(
    KernelRegistry& registry);  // ml_tree.cc: TreeEnsemble and its older forms

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_KERNEL_LIST_H_
