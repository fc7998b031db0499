// SPDX-License-Identifier: Apache-2.0
// The ops that only training needs: domain "ai.caesura", version 1. This list is their
// specification. Gradients are named by the op that they differentiate; attributes are those of the
// forward op unless said. dY is the gradient of the loss by Y. Absent outputs are not computed. All
// float tensors of a node have one dtype (float32, float64, float16, bfloat16); the float64 kernels
// are plain references.
//
// op (inputs) -> outputs
// YieldOp (y...) -> dY of the differentiable ones        attributes: non_differentiable_outputs:
//     ints, full_shape_outputs: ints, names: strings (one a value that is handed out),
//     released_inputs: strings (update_order.h). Never executed: see core/execute.
// SumTo (dY, shape[host int64]) -> dX      sums dY over the axes that broadcasting expanded from
//     `shape`; a view of dY where nothing was expanded. Attribute dtype: float32, of a dX whose dY
//     is of half (cast_propagation)
// Detach (X) -> Y                          Y = X, and no gradient of Y reaches X
// Check (X, holds[bool]) -> Y              Y = X where all of `holds` is true, otherwise the run
//     fails with the attribute `message`
// WithGradient (Y..., X...) -> Y...        Y as it came, with another gradient: that of X, by the
//     graph of the attribute `gradient`, (dY..., X...) -> dX...; gradient_inputs: ints, the node's
//     input that each dX is of. Never executed
// TopK (X, K[host]) -> Y, I                as ONNX's, but of equal elements those that PyTorch
//     takes; sorted: 0 leaves them as found
// ReluGrad (dY, Y) -> dX                   dX = dY, 0 where Y <= 0 (not where it is NaN)
// GeluGrad (dY, X) -> dX                   attribute approximate: "none" | "tanh"
// SigmoidGrad (dY, Y), TanhGrad (dY, Y) -> dX
// SoftmaxGrad (dY, Y) -> dX                attribute axis. dX = Y * (dY - sum(dY * Y, axis))
// LogSoftmaxGrad (dY, Y) -> dX             attribute axis. dX = dY - exp(Y) * sum(dY, axis)
// DropoutGrad (dY, mask[bool], ratio) -> dX           dX = dY * mask / (1 - ratio)
// GatherGrad (dY, indices, shape[host int64], base?) -> dX   attribute axis: adds dY's slices, in
//     their order, to the base (in its place where nobody else reads it), or into zeros of `shape`
// SliceGrad (dY, shape[host], starts[host], ends[host], axes[host]?, steps[host]?) -> dX: zeros of
//     `shape` with dY in the slice
// PadGrad (dY, shape[host] of X, pads[host], axes[host]?) -> dX  attribute mode: constant | reflect
//     | edge | wrap
// ConvGrad (dY, X, W) -> dX, dW, dB
// ConvTransposeGrad (dY, X, W) -> dX, dW, dB
// DeformConvGrad (dY, X, W, offset, B?, mask?) -> dX, dW, doffset, dB, dmask
// MaxPoolGrad (dY, X) -> dX                first maximum of a window in row-major order takes the
//     gradient
// AveragePoolGrad (dY, X) -> dX            LpPoolGrad (dY, X, Y) -> dX
// GlobalMaxPoolGrad (dY, X) -> dX          ties: the first one (PyTorch: amax shares;
//     adaptive_max_pool takes one)
// MaxRoiPoolGrad (dY, X, rois) -> dX       RoiAlignGrad (dY, X, rois, batch_indices) -> dX
// BatchNormalizationTraining (X, scale, B, input_mean, input_var) -> Y, running_mean, running_var,
//     saved_mean, saved_inv_std   attributes epsilon, momentum, unbiased: 1 puts n/(n-1) * variance
//     into running_var, as PyTorch does (default); 0 as ONNX's training_mode does
// BatchNormalizationGrad (dY, X, scale, saved_mean, saved_inv_std) -> dX, dScale, dB
// LayerNormalizationGrad (dY, X, scale, mean, inv_std) -> dX, dScale, dB    attribute axis; mean
//     and inv_std are the optional outputs of ONNX's LayerNormalization (always float32 or wider)
// RMSNormalizationGrad (dY, X, scale) -> dX, dScale   attributes axis, epsilon, stash_type
// InstanceNormalizationGrad (dY, X, scale) -> dX, dScale, dB                attribute epsilon
// GroupNormalizationGrad (dY, X, scale) -> dX, dScale, dB                   attributes epsilon,
//     num_groups
// SoftmaxCrossEntropyLossTraining (scores, labels, weights?) -> loss, log_prob, lse    ONNX's
//     SoftmaxCrossEntropyLoss; lse, of the labels' shape, is the logarithm of each sample's sum of
//     e^score; float32 (float64 for float64)
// SoftmaxCrossEntropyLossGrad (dLoss, scores, labels, weights?, lse) -> dScores  attributes
//     reduction, ignore_index, dtype (of dScores: float16 or bfloat16 where scores are float32);
//     lse as SoftmaxCrossEntropyLossTraining gave it
// NegativeLogLikelihoodLossGrad (dLoss, labels, weights?, shape[host] of input) -> dInput
//     attributes likewise
// CtcLoss (log_probs [steps, batch, classes], targets[int64] [batch, labels] or one after the
//     other, input_lengths[int64], target_lengths[int64]) -> losses [batch], slopes   attributes
//     blank, zero_infinity. slopes: of each loss the derivative by its log_probs, as PyTorch has
//     it: of what log_probs are the log-softmax of. float32 and float64
// RNNTraining, GRUTraining (as ONNX's) -> Y, Y_h, trace; LSTMTraining -> Y, Y_h, Y_c, trace   the
//     trace [directions, ...] is the gates, states and cells of all steps
//     (core/kernels/cpu/recurrent_cell.h)
// RNNGrad (dY?, dY_h?, X, W, R, B?, sequence_lens?, initial_h?, trace) -> dX, dW, dR, dB,
//     dinitial_h
// GRUGrad likewise. LSTMGrad (dY?, dY_h?, dY_c?, X, W, R, B?, sequence_lens?, initial_h?,
//     initial_c?, P?, trace) -> dX, dW, dR, dB, dinitial_h, dinitial_c, dP
// ResizeGrad (dY, shape[host] of X, roi[host]?, scales[host]?, sizes[host]?) -> dX
// GridSampleGrad (dY, X, grid) -> dX, dgrid
// AttentionTraining (Q, K, V, attn_mask?, past_key?, past_value?, nonpad_kv_seqlen?) -> Y,
//     present_key, present_value, qk_matmul_output, lse    ONNX's Attention; lse [batch, heads,
//     queries] is the logarithm of each query's sum of e^score, +inf for one that may look nowhere;
//     float32 (float64 for float64)
// AttentionGrad (dY, Q, K, V, attn_mask?, Y?, lse?) -> dQ, dK, dV, dattn_mask   Y and lse as
//     AttentionTraining gave them: without them the probabilities take batch * heads * queries *
//     keys elements of memory
// CumProdGrad (dY, X, axis[host]) -> dX     ReduceProdGrad (dY, X, axes[host]?) -> dX
// DetGrad (dY, X, Y) -> dX                 EinsumGrad is expressed through Einsum
// TopK and max-like reductions are expressed through GatherElements/ScatterElements/Where.
// InPlaceAccumulator (buffer, value, reset[bool scalar]) -> buffer'   buffer' = reset ? value :
//     buffer + value (in place)
// AccumulatedSum (buffer, value, reset[bool scalar]) -> sum   the same, in memory of its own or in
//     that of value
// PairwiseAccumulator (levels, value, index[int64 scalar]) -> levels'   adds value `index` of a sum
//     to the levels [levels, value's shape...]: level l holds the sum of 2^l values in a row, where
//     bit l of the number of values so far is set. Sums of equal length are summed, so that
//     the order is a binary tree whatever the number of values (in place)
// PairwiseSum (levels, value, index) -> sum   the sum of all values, of which this is the last: in
//     memory of its own or in that of value; the levels stay as they are
// GlobalNorm (gradients...) -> norm        sqrt of the sum of squares of all elements, float32
//     scalar (float64 for float64), summed in float64
// FusedMatMul (A, B, bias?, addend?) -> Y   Y = alpha op(A) op(B) + bias + addend, where transA and
//     transB swap the last two axes; the bias is a row, the addend has Y's shape. Attribute dtype:
//     float32, of Y and the addend where the others are of half. Made by rules and by
//     matmul_epilogue
// CastAll (X...) -> Y...   Y i is X i, of a floating type, as the floating type `to`; in memory of
//     its own. Made by cast_grouping
// FusedRows (inputs...) -> outputs   what its `body` computes, row by row
//     (core/kernels/cpu/fused_rows/fused_rows.h). Made by row_fusion, after differentiation
// ClipScale (norm, factor[float64]) -> scale[float64]   attribute max_norm (float64 scalar tensor;
//     absent: no clipping). factor * min(1, max_norm / (factor * norm + 1e-6)), as
//     torch.nn.utils.clip_grad_norm_ on gradients times factor
// RequireFinite (value, checked...) -> value'   value' = value, a copy; fails where one of
//     `checked` (floating scalars, called as the attribute `names` says) is not finite
// CollectiveStart (values...) -> values'...   starts the exchange of its values, of one dtype, with
//     the other ranks of the run (core/distributed); values' lie in one block and are not to be
//     read before the CollectiveWait of the same attribute `number`. Attribute kind: "all_reduce"
//     (sums) or "broadcast" (from rank 0)
// CollectiveWait (values'...) -> results...   in place. Fails with RANK_FAILURE where a rank is
//     lost
// AgreeToCommit (value, awaited...) -> value'   value' = value, a copy, once all ranks have all
//     results; what is awaited is not read
// ReduceScatterStart (gradients...) -> part, values'..., padding   starts the sum of a bucket over
//     all ranks, of which each gets its part (core/distributed/bucket_layout.h), one dimension;
//     values' and padding lie in one block. Attributes number, as above, and ranks
// ReduceScatterWait (part, values'..., padding) -> part'   in place; attributes likewise
// OrderedSumStart (gradients...) -> parts, values'..., padding   starts the sum of a bucket over
//     all ranks. Each rank gets its part of it from all of them, and sums these as
//     PairwiseAccumulator does, in the order of ranks. Attributes likewise
// OrderedSumWait (parts, values'..., padding) -> results..., parts'   in place; exchanges the parts
//     of the sum: it starts a collective, too; attributes likewise
// OwnPart (tensors...) -> part   the rank's part of a bucket, a copy; zeros where it is padding.
//     Attribute ranks
// AllGatherStart (part) -> parts   starts the exchange of all ranks' parts, in the order of ranks.
//     Attributes number and ranks
// AllGatherWait (parts, part, tensors...) -> tensors'...   the tensors that the parts are of, in
//     place; attributes likewise
// AllReduce (X) -> Y   Y = the sum of all ranks' X. A model's own exchange between its parts on the
//     ranks of the run. Attribute ranks (int, 2 or more): their number; the parts of ranks lie
//     along dim 0. All ranks run the same exchanges in the same order. A step differentiates the
//     sum of all ranks' losses: dX is what all ranks make of X
// AllGather (X) -> Y   Y = all ranks' X, one after the other; likewise
// ReduceScatter (X) -> Y   Y = this rank's part of the sum of all ranks' X; likewise
// AllToAll (X) -> Y   part s of rank r's X is part r of rank s's Y; likewise
// Optimizer updates, one node a parameter group; every parameter of the group is an input and an
//     output: SgdUpdate, AdamUpdate, AdamWUpdate, NAdamUpdate, RAdamUpdate, AdamaxUpdate,
//     AdagradUpdate, AdadeltaUpdate, AsgdUpdate, RpropUpdate, LambUpdate, LionUpdate, RmspropUpdate
//     (coefficients, step[int64], scale, parameters..., gradients..., state 1..., state 2...) ->
//     parameters'..., state 1'..., state 2'... attributes: count (number of parameters) and the
//     optimizer's coefficients as training/optimizer/optimizer.h's DescribeUpdate names them
//     (float64 scalar tensors, flags as ints); the states in its order. coefficients: the learning
//     rate, a float64 scalar; or with the attributes fed (strings) and first (int) a float64 vector
//     that has what `fed` names from element `first` on. maximize: 1 takes each gradient times -1.
//     scale is a float64 scalar, step counts from 1. All outputs are in place. `scale` multiplies
//     every gradient first (clipping, loss scaling, accumulation).
// Assign (target, value) -> target'        copies value into target, in place: running statistics,
//     counters. In a model, the target being an initializer: what a training step leaves there
//     (training/gradient/training_mode.h)
// Copy (X) -> Y                            Y = X, in memory of its own: never a view
#ifndef CAESURA_TRAINING_KERNELS_TRAINING_OPS_H_
#define CAESURA_TRAINING_KERNELS_TRAINING_OPS_H_

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {

inline constexpr const char* kTrainingDomain = kCaesuraDomain;

// Makes the ops above known to schema checks and type inference. Call once before building training
// graphs; later calls do nothing.
Status RegisterTrainingOpSchemas();
// And infers a model's types again where it has such nodes: what follows them may have been unknown
// when it was loaded.
Status RegisterTrainingOpSchemas(Model& model);

// The CPU kernels of the ops above: the families of the folders beside this file.
void RegisterTrainingKernels(KernelRegistry& registry);

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_TRAINING_OPS_H_
