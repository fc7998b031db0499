// SPDX-License-Identifier: Apache-2.0
// The rows of the exchanges between ranks (core/graph/op_def.h), and their gradient rules.
#include <climits>
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

// Y = the sum of all X
// dX = the sum of all dY
void AllReduceRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AllReduce", {g.dY()}, g.Attributes({"ranks"})));
}

// Y = all X, one after the other
// dX = this rank's part of the sum of all dY
void AllGatherRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("ReduceScatter", {g.dY()}, g.Attributes({"ranks"})));
}

// Y = this rank's part of the sum of all X
// dX = all dY, one after the other
void ReduceScatterRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AllGather", {g.dY()}, g.Attributes({"ranks"})));
}

// part s of rank r's X is part r of rank s's Y
// part s of rank r's dX is part r of rank s's dY
void AllToAllRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AllToAll", {g.dY()}, g.Attributes({"ranks"})));
}

}  // namespace
}  // namespace gradient

namespace {

// Dim 0 times the number of ranks, or divided by it.
template <bool kGathers>
Status InferExchange(Graph&, Node* node) {
  const Value* x = node->input(0);
  Value* y = node->output(0);
  if (x == nullptr || y == nullptr || !x->type().is_tensor()) return {};
  ValueType type = x->type();
  const auto ranks = node->Attr<int64_t>("ranks", 0);
  if (type.shape && !type.shape->empty()) {
    Dim& rows = type.shape->front();
    if (!rows.known() || ranks < 1) rows = Dim{};
    else rows.value = kGathers ? rows.value * ranks : rows.value / ranks;
  }
  y->set_type(std::move(type));
  return {};
}

constexpr char kExchange[] = "ranks exchange values there, and no operator of ONNX does";

}  // namespace

// clang-format off
std::vector<OpDef> CollectivesOps() {
  return {
    // AllReduce (X) -> Y  Y = the sum of all ranks' X. A model's own exchange between its parts on the ranks of the
    // run. Attribute ranks (int, 2 or more): their number; the parts of ranks lie along dim 0. All ranks run the same
    // exchanges in the same order. A step differentiates the sum of all ranks' losses: dX is what all ranks make of X
    {.op_type = "AllReduce", .domain = kCaesuraDomain, .type_of_output = {0}, .is_deterministic = false,
     .rule = {.function = gradient::AllReduceRule}, .body_refusal = kExchange},
    // AllToAll (X) -> Y  part s of rank r's X is part r of rank s's Y; likewise
    {.op_type = "AllToAll", .domain = kCaesuraDomain, .type_of_output = {0}, .is_deterministic = false,
     .rule = {.function = gradient::AllToAllRule}, .body_refusal = kExchange},
    // AllGather (X) -> Y  Y = all ranks' X, one after the other; likewise
    {.op_type = "AllGather", .domain = kCaesuraDomain, .infer = InferExchange<true>,
     .is_deterministic = false, .rule = {.function = gradient::AllGatherRule}, .body_refusal = kExchange},
    // ReduceScatter (X) -> Y  Y = this rank's part of the sum of all ranks' X; likewise
    {.op_type = "ReduceScatter", .domain = kCaesuraDomain, .infer = InferExchange<false>,
     .is_deterministic = false, .rule = {.function = gradient::ReduceScatterRule}, .body_refusal = kExchange},
    // CollectiveStart (values...) -> values'...  starts the exchange of its values, of one dtype, with the other ranks
    // of the run (core/distributed); values' lie in one block and are not to be read before the CollectiveWait of the
    // same attribute `number`. Attribute kind: "all_reduce" (sums) or "broadcast" (from rank 0). Attribute row (int):
    // nothing is exchanged where no rank uses this row of parameters (RunCollectives::used); without it always
    {.op_type = "CollectiveStart", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .max_outputs = INT_MAX,
     .infer = SameTypes, .is_deterministic = false, .body_refusal = kExchange},
    // CollectiveWait (values'...) -> results...  in place. Fails with RANK_FAILURE where a rank is lost
    {.op_type = "CollectiveWait", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .max_outputs = INT_MAX,
     .infer = SameTypes, .is_deterministic = false, .body_refusal = kExchange},
    // AgreeToCommit (value, awaited...) -> value'  value' = value, a copy, once all ranks have all results; what is
    // awaited is not read
    {.op_type = "AgreeToCommit", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .type_of_output = {0},
     .is_deterministic = false, .body_refusal = kExchange},
    // ValueIfUsed (value, other, agreed) -> chosen  a copy of value where any rank uses the row of parameters that the
    // attribute row names, otherwise of other; agreed, of an AgreeToCommit, is not read
    {.op_type = "ValueIfUsed", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3, .type_of_output = {0},
     .is_deterministic = false, .body_refusal = kExchange},
    // ReduceScatterStart (gradients...) -> part, values'..., padding  starts the sum of a bucket over all ranks, of
    // which each gets its part (core/distributed/bucket_layout.h), one dimension; values' and padding lie in one
    // block. Attributes number and row, as above, and ranks; where no rank uses the row part is zeros
    {.op_type = "ReduceScatterStart", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .max_outputs = INT_MAX,
     .is_deterministic = false, .body_refusal = kExchange},
    // ReduceScatterWait (part, values'..., padding) -> part'  in place; attributes likewise
    {.op_type = "ReduceScatterWait", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = INT_MAX,
     .type_of_output = {0}, .is_deterministic = false, .body_refusal = kExchange},
    // OrderedSumStart (gradients...) -> parts, values'..., padding  starts the sum of a bucket over all ranks. Each
    // rank gets its part of it from all of them, and sums these as PairwiseAccumulator does, in the order of ranks.
    // Attributes likewise
    {.op_type = "OrderedSumStart", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .max_outputs = INT_MAX,
     .is_deterministic = false, .body_refusal = kExchange},
    // OrderedSumWait (parts, values'..., padding) -> results..., parts'  in place; exchanges the parts of the sum: it
    // starts a collective, too; attributes likewise
    {.op_type = "OrderedSumWait", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .is_deterministic = false, .body_refusal = kExchange},
    // OwnPart (tensors...) -> part  the rank's part of a bucket, a copy; zeros where it is padding. Attribute ranks
    {.op_type = "OwnPart", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .is_deterministic = false,
     .body_refusal = kExchange},
    // AllGatherStart (part) -> parts  starts the exchange of all ranks' parts, in the order of ranks. Attributes
    // number, row and ranks
    {.op_type = "AllGatherStart", .domain = kCaesuraDomain, .is_deterministic = false, .body_refusal = kExchange},
    // AllGatherWait (parts, part, tensors...) -> tensors'...  the tensors that the parts are of, in place; attributes
    // likewise; where no rank uses the row they stay as they are
    {.op_type = "AllGatherWait", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .is_deterministic = false, .body_refusal = kExchange},
  };
}
// clang-format on

}  // namespace caesura
