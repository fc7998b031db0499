// SPDX-License-Identifier: Apache-2.0
// The factor of all gradients in an update: their mean, the scale of the loss, and clipping by
// their norm.
#include <algorithm>

#include "training/step/update_writer.h"

namespace caesura {
namespace {

// The type that GlobalNorm gives for these.
DType NormDType(const std::vector<Value*>& tensors) {
  const bool is_wide = std::any_of(tensors.begin(), tensors.end(), [](const Value* tensor) {
    return tensor->dtype() == DType::kFloat64;
  });
  return is_wide ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace

Value* UpdateWriter::OwnNorm(const std::vector<Value*>& gradients) {
  Value* norm = Act("GlobalNorm", gradients, {}, 1)->output(0);
  norm->set_type(ValueType::Tensor(NormDType(gradients), Shape{}));
  return norm;
}

Value* UpdateWriter::SquareOfNorm(const std::vector<Value*>& gradients) {
  const ValueType wide = ValueType::Tensor(DType::kFloat64, Shape{});
  Value* norm = As(OwnNorm(gradients), DType::kFloat64);
  return Op("Mul", {norm, norm}, wide);
}

Value* UpdateWriter::Norm(const std::vector<Value*>& gradients) {
  std::vector<Value*> whole, parts;
  for (const Bucket& bucket : buckets_) parts.push_back(bucket.gradient);
  for (int i = 0; i < program_.trained && buckets_.empty(); ++i)
    (IsRankPart(i) ? parts : whole).push_back(gradients[i]);
  if (parts.empty()) return OwnNorm(whole);
  const ValueType wide = ValueType::Tensor(DType::kFloat64, Shape{});
  Value* square = SquareOfNorm(parts);
  collectives_.AllReduce({&square}, setup_.bucket_bytes);
  if (!whole.empty()) square = Op("Add", {square, SquareOfNorm(whole)}, wide);
  const bool is_wide = NormDType(parts) == DType::kFloat64 || NormDType(whole) == DType::kFloat64;
  return As(Op("Sqrt", {square}, wide), is_wide ? DType::kFloat64 : DType::kFloat32);
}

Value* UpdateWriter::MeanFactor() {
  if (mean_factor_ != nullptr) return mean_factor_;
  if (micro_steps_ == 0)
    return graph_.AddInput(kGradientFactorInput, ValueType::Tensor(DType::kFloat64, Shape{}));
  const int count = setup_.is_ordered() ? setup_.logical_shards : micro_steps_;
  return graph_.AddInitializer("caesura.gradient_factor", Tensor::Scalar<double>(1.0 / count));
}

Value* UpdateWriter::Scale(const std::vector<Value*>& gradients) {
  const ValueType wide = ValueType::Tensor(DType::kFloat64, Shape{});
  Value* factor = MeanFactor();
  if (mean_factor_ != nullptr && setup_.has_others()) {  // without any token gradients are zero
    Value* is_none = Op("IsInf", {factor}, ValueType::Tensor(DType::kBool, Shape{}));
    factor = Op("Where", {is_none, Constant(0), factor}, wide);
  }
  if (inverse_scale_ != nullptr) factor = Op("Mul", {factor, inverse_scale_}, wide);
  if (rank_share_ != nullptr && mean_factor_ == nullptr)
    factor = Op("Mul", {factor, rank_share_}, wide);
  if (options_.clip_norm <= 0 && inverse_scale_ == nullptr) return factor;
  Value* norm = norm_ != nullptr && micro_steps_ == 1 ? norm_ : Norm(gradients);
  AttributeMap attributes;
  if (options_.clip_norm > 0) {
    attributes["max_norm"] = Tensor::Scalar<double>(options_.clip_norm);
    graph_.AddOutput(Op("Mul", {As(norm, DType::kFloat64), factor}, wide));
  }
  if (inverse_scale_ != nullptr) attributes["skip_nonfinite"] = int64_t{1};
  Node* scale = Act("ClipScale", {norm, factor}, std::move(attributes), 1);
  scale->output(0)->set_type(wide);
  return scale->output(0);
}

}  // namespace caesura
