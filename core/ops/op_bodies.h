// SPDX-License-Identifier: Apache-2.0
// Bodies (core/gradient/op_body.h) that have a source of their own, core/ops/FAMILY/ops_*_body.cc.
// Short ones stand in the family's ops.cc.
#ifndef CAESURA_CORE_OPS_OP_BODIES_H_
#define CAESURA_CORE_OPS_OP_BODIES_H_

#include "core/gradient/op_body.h"

namespace caesura::gradient {

// attention/ops_attention_body.cc
void AttentionTrainingBody(OpBody& b);
void AttentionGradBody(OpBody& b);
// conv/ops_conv_body.cc
void ConvGradBody(OpBody& b);
void ConvTransposeGradBody(OpBody& b);
// conv/ops_deform_body.cc
void DeformConvGradBody(OpBody& b);
// image/ops_image_body.cc
void ResizeGradBody(OpBody& b);
void GridSampleGradBody(OpBody& b);
void RoiAlignGradBody(OpBody& b);
void MaxRoiPoolGradBody(OpBody& b);
// loss/ops_ctc_body.cc
void CtcLossBody(OpBody& b);
// normalization/ops_norm_body.cc
void SoftmaxGradBody(OpBody& b);
void LogSoftmaxGradBody(OpBody& b);
void BatchNormalizationTrainingBody(OpBody& b);
void BatchNormalizationGradBody(OpBody& b);
void LayerNormalizationGradBody(OpBody& b);
void RMSNormalizationGradBody(OpBody& b);
void InstanceNormalizationGradBody(OpBody& b);
void GroupNormalizationGradBody(OpBody& b);
// optimizer/ops_update_body.cc: all updates
void UpdateBody(OpBody& b);
// pool/ops_pool_body.cc
void MaxPoolGradBody(OpBody& b);
void AveragePoolGradBody(OpBody& b);
void LpPoolGradBody(OpBody& b);
void GlobalMaxPoolGradBody(OpBody& b);
// random/ops_dropout_body.cc
void DropoutBody(OpBody& b);
void DropoutGradBody(OpBody& b);
// recurrent/ops_recurrent_body.cc: RNN, GRU and LSTM
void RecurrentBody(OpBody& b);
// reduction/ops_scan_body.cc
void LogCumSumExpBody(OpBody& b);
void LogCumSumExpGradBody(OpBody& b);
void CumProdGradBody(OpBody& b);
void ReduceProdGradBody(OpBody& b);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_OPS_OP_BODIES_H_
