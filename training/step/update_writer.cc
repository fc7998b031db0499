// SPDX-License-Identifier: Apache-2.0
#include "training/step/update_writer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "core/base/names.h"

namespace caesura {
namespace {

std::vector<Optimizer> AllOptimizers(const StepOptions& options) {
  std::vector<Optimizer> optimizers = {options.optimizer};
  for (const ParameterGroup& group : options.groups)
    optimizers.push_back(ForGroup(options.optimizer, group));
  return optimizers;
}

// True if no element of an update depends on other elements of its parameter.
bool UpdatesByElement(const OptimizerUpdate& update) {
  return !update.op_type.empty() && update.op_type != "LambUpdate";
}

}  // namespace

Value* UpdateWriter::Op(const std::string& op_type, std::vector<Value*> inputs, ValueType type,
                        AttributeMap attributes) {
  Node* node = graph_.AddOp(op_type, std::move(inputs), std::move(attributes));
  node->set_phase(Phase::kOptimizer);
  node->output(0)->set_type(std::move(type));
  return node->output(0);
}

Node* UpdateWriter::Act(const std::string& op_type, std::vector<Value*> inputs,
                        AttributeMap attributes, int outputs) {
  Node* node = graph_.AddOp(op_type, std::move(inputs), std::move(attributes), kCaesuraDomain,
                            outputs, op_type);
  node->set_phase(Phase::kOptimizer);
  return node;
}

// A tensor of a parameter's that lives in the ParameterSet.
Value* UpdateWriter::State(const std::string& name, const std::string& parameter,
                           const Shape& shape, DType dtype, double initial) {
  program_.parameters.push_back(name + "." + parameter);
  Tensor tensor = Tensor::Zeros(dtype, shape);
  if (initial != 0) {
    DispatchFloat(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      std::fill_n(tensor.data<T>(), tensor.elements(),
                  static_cast<T>(static_cast<Accumulator<T>>(initial)));
    });
  }
  return graph_.AddInitializer(program_.parameters.back(), std::move(tensor));
}

void UpdateWriter::Unscale(Value* loss_scale) {
  const ValueType wide = ValueType::Tensor(DType::kFloat64, Shape{});
  Value* scale = Op("Cast", {loss_scale}, wide, {{"to", static_cast<int64_t>(DType::kFloat64)}});
  inverse_scale_ = Op("Reciprocal", {scale}, wide);
}

void UpdateWriter::RequireFinite(const std::vector<Value*>& gradients, Value* loss) {
  norm_ = Norm(gradients);
  loss_ = loss;
}

Value* UpdateWriter::Checked(Value* value) {
  if (norm_ == nullptr) return value;
  const std::vector<std::string> names = {"the norm of the gradients", "the loss"};
  Node* node = Act("RequireFinite", {value, norm_, loss_}, {{"names", names}}, 1);
  node->output(0)->set_type(value->type());
  return node->output(0);
}

Value* UpdateWriter::Times(Value* value, Value* factor) {
  return Op("Mul", {value, As(factor, value->dtype())}, value->type());
}

Value* UpdateWriter::ForCaller(Value* gradient) {
  if (inverse_scale_ != nullptr) gradient = Times(gradient, inverse_scale_);
  if (mean_factor_ != nullptr) return Times(gradient, mean_factor_);
  return rank_share_ == nullptr ? gradient : Times(gradient, rank_share_);
}

Value* UpdateWriter::Weighted(Value* loss, Value* count) {
  Value* zero = As(Constant(0), loss->dtype());
  Value* is_none = Op("Equal", {count, zero}, ValueType::Tensor(DType::kBool, Shape{}));
  Value* product = Op("Mul", {loss, count}, loss->type());
  return Op("Where", {is_none, zero, product}, loss->type());
}

void UpdateWriter::DivideBy(Value* count) {
  const ValueType wide = ValueType::Tensor(DType::kFloat64, Shape{});
  mean_factor_ = Op("Reciprocal", {As(count, DType::kFloat64)}, wide);
}

void UpdateWriter::Reduce(std::vector<Value*>& gradients, const std::vector<Value**>& totals,
                          std::vector<Value*>& statistics) {
  std::vector<Value**> summed = totals, left;
  std::vector<std::string> names(totals.size(), "loss");  // of `summed`
  std::vector<DType> own;
  for (int i = 0; i < program_.trained; ++i) {
    gradients[i]->set_type(graph_.FindValue(program_.parameters[i])->type());
    own.push_back(gradients[i]->dtype());
    if (IsRankPart(i)) {
      collectives_.Await(gradients[i]);
      continue;
    }
    if (options_.exchange_dtype != DType::kUndefined)
      gradients[i] = As(gradients[i], options_.exchange_dtype);
    if (setup_.divides_state) continue;
    summed.push_back(&gradients[i]);
    names.push_back(program_.parameters[i]);
  }
  const auto keep = [&](const std::vector<std::vector<int>>& buckets) {
    for (const std::vector<int>& indices : buckets) {
      program_.buckets.emplace_back();
      for (const int i : indices) program_.buckets.back().push_back(names[i]);
    }
  };
  if (setup_.is_ordered()) {
    keep(collectives_.OrderedSum(summed, setup_.bucket_bytes, setup_.ranks));
    return;
  }
  rank_share_ = graph_.AddInput(kRankShareInput, ValueType::Tensor(DType::kFloat64, Shape{}));
  for (Value*& statistic : statistics) {
    if (setup_.broadcasts_buffers) left.push_back(&statistic);
  }
  if (options_.buckets.empty() || setup_.divides_state) {
    keep(collectives_.AllReduce(summed, setup_.bucket_bytes));
  } else {
    keep(collectives_.AllReduce(totals, setup_.bucket_bytes));
    const std::vector<Group> groups = Groups();
    const std::vector<int> group_of = GroupOf(groups);
    for (const std::vector<int>& indices : GivenBuckets()) {
      std::vector<Value**> bucket;
      for (const int i : indices) bucket.push_back(&gradients[i]);
      collectives_.Exchange("all_reduce", bucket, RowOf(groups[group_of[indices.front()]]));
    }
    program_.buckets.insert(program_.buckets.end(), options_.buckets.begin(),
                            options_.buckets.end());
  }
  if (setup_.divides_state && buckets_.empty()) ReduceParts(gradients);
  collectives_.Broadcast(left);
  for (int i = 0; i < program_.trained; ++i) {
    if (gradients[i]->dtype() != own[i]) gradients[i] = As(gradients[i], own[i]);
  }
}

Value* UpdateWriter::Accumulated(const std::string& name, Value* value, Value* place,
                                 bool updates) {
  const bool in_pairs = setup_.is_ordered();
  std::vector<int64_t> dims;
  if (in_pairs) dims.push_back(std::bit_width(unsigned(micro_steps_ - 1)));
  for (const Dim& dim : *value->type().shape) dims.push_back(dim.value);
  Value* buffer = State("accumulator", name, Shape(dims), value->dtype());
  if (in_pairs && !updates) {
    Node* node = Act("PairwiseAccumulator", {buffer, value, place}, {}, 1);
    node->output(0)->set_type(buffer->type());
    return value;
  }
  const bool apart = updates && setup_.has_others();
  const char* op_type = in_pairs ? "PairwiseSum" : apart ? "AccumulatedSum" : "InPlaceAccumulator";
  Node* node = Act(op_type, {buffer, value, place}, {}, 1);
  node->output(0)->set_type(value->type());
  return node->output(0);
}

void UpdateWriter::Accumulate(std::vector<Value*>& gradients, const std::vector<Value**>& totals,
                              bool updates) {
  Value* place =
      setup_.is_ordered()
          ? graph_.AddInput(kMicroStepInput, ValueType::Tensor(DType::kInt64, Shape{}))
          : Checked(graph_.AddInput(kResetInput, ValueType::Tensor(DType::kBool, Shape{})));
  const char* names[] = {"caesura.loss", "caesura.count"};
  for (size_t t = 0; t < totals.size(); ++t)  // first: whole state comes before parts of it
    *totals[t] = Accumulated(names[t], *totals[t], place, updates);
  for (Bucket& bucket : buckets_) {
    const std::string& name = program_.shards[bucket.shard].name;
    bucket.gradient = Accumulated(name, bucket.gradient, place, updates);
  }
  for (int i = 0; i < program_.trained && buckets_.empty(); ++i) {
    const Value* parameter = graph_.FindValue(program_.parameters[i]);
    gradients[i]->set_type(parameter->type());
    gradients[i] = Accumulated(parameter->name(), gradients[i], place, updates);
  }
}

std::vector<UpdateWriter::Group> UpdateWriter::Groups() const {
  // Parameters of one op share a dtype, so a group is split by it.
  std::map<std::pair<int, DType>, Group> groups;
  const int own = static_cast<int>(options_.groups.size());
  for (int i = 0; i < program_.trained; ++i) {
    const std::string& name = program_.parameters[i];
    int chosen = own;
    for (int g = own - 1; g >= 0; --g) {
      const auto& names = options_.groups[g].names;
      if (std::any_of(names.begin(), names.end(),
                      [&](const auto& p) { return MatchesName(p, name); }))
        chosen = g;
    }
    Group& group = groups[{chosen, graph_.Initializer(graph_.FindValue(name))->dtype()}];
    group.optimizer =
        chosen == own ? options_.optimizer : ForGroup(options_.optimizer, options_.groups[chosen]);
    group.learning_rate_scale = chosen == own ? 1 : options_.groups[chosen].learning_rate_scale;
    group.row = chosen;
    group.members.push_back(i);
  }
  std::vector<Group> out;
  for (auto& [key, group] : groups) {
    if (options_.commit == CommitMode::kLate) {
      out.push_back(std::move(group));
      continue;
    }
    for (int member : group.members)
      out.push_back({group.optimizer, group.learning_rate_scale, group.row, {member}});
  }
  return out;
}

std::vector<int> UpdateWriter::GroupOf(const std::vector<Group>& groups) const {
  std::vector<int> group_of(program_.trained);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const int member : groups[g].members) group_of[member] = static_cast<int>(g);
  }
  return group_of;
}

Value* UpdateWriter::ScaleOf(const Group& group, Value* scale, Value* agreed) {
  if (RowOf(group) < 0) return scale;
  Value* none = Constant(std::numeric_limits<double>::infinity());
  Node* chosen = Act("ValueIfUsed", {scale, none, agreed}, {{"row", RowOf(group)}}, 1);
  chosen->output(0)->set_type(scale->type());
  return chosen->output(0);
}

bool UpdateWriter::IsRankPart(int trained) const {
  const auto& parts = options_.rank_parts;
  return setup_.has_others() &&
         std::find(parts.begin(), parts.end(), program_.parameters[trained]) != parts.end();
}

Value* UpdateWriter::CoefficientsOf(const Group& group, Value* coefficients) {
  if (!options_.fed_coefficients.empty() || group.learning_rate_scale == 1) return coefficients;
  Value* factor = graph_.AddInitializer("caesura.learning_rate_scale",
                                        Tensor::Scalar<double>(group.learning_rate_scale));
  return Op("Mul", {coefficients, factor}, ValueType::Tensor(DType::kFloat64, Shape{}));
}

void UpdateWriter::UpdateGroup(const Group& group, const std::vector<Value*>& gradients,
                               Value* coefficients, Value* step, Value* scale) {
  coefficients = CoefficientsOf(group, coefficients);
  scale = ScaleOf(group, scale, step);
  if (DescribeUpdate(group.optimizer).op_type.empty()) {
    for (int i : group.members) {
      std::visit(
          [&](const auto& o) {
            if constexpr (requires {
                            Compose(o, Rates{group, coefficients, step, scale}, nullptr, nullptr);
                          }) {
              Compose(o, Rates{group, coefficients, step, scale},
                      graph_.FindValue(program_.parameters[i]), gradients[i]);
            }
          },
          group.optimizer);
    }
    return;
  }
  std::vector<Updated> updated;
  for (int i : group.members) {
    Value* parameter = graph_.FindValue(program_.parameters[i]);
    const Tensor& like = *graph_.Initializer(parameter);
    updated.push_back({parameter, gradients[i], parameter->name(), like.dtype(), like.shape()});
  }
  UpdateOf(updated, Rates{group, coefficients, step, scale});
}

Node* UpdateWriter::UpdateOf(const std::vector<Updated>& updated, const Rates& rates) {
  const OptimizerUpdate update = DescribeUpdate(rates.group.optimizer);
  std::vector<Value*> inputs = {rates.coefficients, rates.step, rates.scale};
  for (const Updated& one : updated) inputs.push_back(one.parameter);
  for (const Updated& one : updated) inputs.push_back(one.gradient);
  for (const OptimizerState& state : update.states) {
    for (const Updated& one : updated) {
      const bool is_scalar = state.scalar != DType::kUndefined;
      inputs.push_back(State("optimizer." + state.name, one.name, is_scalar ? Shape{} : one.shape,
                             is_scalar ? state.scalar : one.dtype, state.initial));
    }
  }
  AttributeMap attributes = update.coefficients;
  attributes["count"] = static_cast<int64_t>(updated.size());
  if (inverse_scale_ != nullptr) attributes["skip_nonfinite"] = int64_t{1};
  else if (options_.skips_unused) attributes["skip_infinite"] = int64_t{1};
  if (!options_.fed_coefficients.empty()) {
    attributes["fed"] = options_.fed_coefficients;
    attributes["first"] = static_cast<int64_t>(rates.group.row * options_.fed_coefficients.size());
  }
  return Act(update.op_type, inputs, std::move(attributes),
             static_cast<int>(updated.size() * (1 + update.states.size())));
}

void UpdateWriter::Assign(Value* target, Value* value) {
  std::vector<Value*> inputs = {target, value};
  if (cleared_ != nullptr) inputs.push_back(cleared_);
  Act("Assign", inputs, {}, 1);
}

void UpdateWriter::Update(const std::vector<Value*>& gradients) {
  const auto fed =
      static_cast<int64_t>(options_.fed_coefficients.size() * (options_.groups.size() + 1));
  Value* coefficients =
      fed == 0
          ? graph_.AddInput(kLearningRateInput, ValueType::Tensor(DType::kFloat64, Shape{}))
          : graph_.AddInput(kCoefficientsInput, ValueType::Tensor(DType::kFloat64, Shape{fed}));
  Value* step = graph_.AddInput(kStepInput, ValueType::Tensor(DType::kInt64, Shape{}));
  Value* scale = Scale(gradients);  // before the agreement: parts of a norm are exchanged
  const bool agrees = setup_.has_others() && options_.commit == CommitMode::kLate;
  if (agrees) step = collectives_.Agreed(step);
  if (micro_steps_ == 1) step = Checked(step);  // otherwise Accumulate has checked
  if (agrees || norm_ != nullptr) cleared_ = step;
  if (inverse_scale_ != nullptr) graph_.AddOutput(scale);
  if (buckets_.empty()) {
    for (const Group& group : Groups()) UpdateGroup(group, gradients, coefficients, step, scale);
  }
  for (const Bucket& bucket : buckets_) UpdateBucket(bucket, coefficients, step, scale);
  collectives_.FinishGather();
}

// --- sharded state ---

Status UpdateWriter::CheckBuckets(const StepOptions& options, const RankSetup& setup,
                                  const std::vector<std::string>& trainable) {
  if (setup.is_ordered() || options.commit != CommitMode::kLate)
    return Unsupported("buckets: needs late commit and sums of any order");
  std::vector<std::string> given, own = trainable;
  for (const auto& bucket : options.buckets)
    given.insert(given.end(), bucket.begin(), bucket.end());
  std::sort(given.begin(), given.end());
  std::sort(own.begin(), own.end());
  if (given == own) return {};
  return Unsupported("buckets: expected those of the " + std::to_string(own.size()) +
                     " trained parameters, got " + std::to_string(given.size()) + " or others");
}

Status UpdateWriter::CheckSharding(const StepOptions& options) {
  for (const Optimizer& optimizer : AllOptimizers(options)) {
    const OptimizerUpdate update = DescribeUpdate(optimizer);
    const bool by_element =
        UpdatesByElement(update) &&
        std::none_of(update.states.begin(), update.states.end(),
                     [](const auto& state) { return state.scalar != DType::kUndefined; });
    if (by_element) continue;
    return Unsupported(
        "shard: the state of Adafactor, ASGD, Lamb, Muon and NAdam belongs to whole parameters and "
        "cannot be divided; take another optimizer, or shard = 0");
  }
  return {};
}

Status UpdateWriter::CheckRankParts(const StepOptions& options,
                                    const std::vector<std::string>& trainable) {
  for (const std::string& name : options.rank_parts) {
    if (std::find(trainable.begin(), trainable.end(), name) != trainable.end()) continue;
    return InvalidArgument("rank_parts: expected trained parameters, got '" + name + "'");
  }
  for (const Optimizer& optimizer : AllOptimizers(options)) {
    if (UpdatesByElement(DescribeUpdate(optimizer))) continue;
    return Unsupported(
        "rank_parts: Adafactor, Lamb and Muon update an element by the whole parameter, of which "
        "this rank has a part; take another optimizer");
  }
  return {};
}

std::vector<std::vector<int>> UpdateWriter::GivenBuckets() const {
  std::map<std::string, int> index;
  for (int i = 0; i < program_.trained; ++i) index.emplace(program_.parameters[i], i);
  std::vector<std::vector<int>> buckets;
  for (const auto& names : options_.buckets) {
    buckets.emplace_back();
    for (const std::string& name : names) buckets.back().push_back(index.at(name));
  }
  return buckets;
}

void UpdateWriter::ReduceParts(const std::vector<Value*>& gradients) {
  const std::vector<Group> groups = Groups();
  std::vector<Value*> trained(gradients.begin(), gradients.begin() + program_.trained);
  for (size_t i = 0; i < trained.size(); ++i)
    trained[i]->set_type(graph_.FindValue(program_.parameters[i])->type());
  const std::vector<int> kinds = GroupOf(groups);
  std::vector<std::vector<Value*>> values;
  std::vector<BucketLayout> layouts;
  std::vector<int64_t> rows;
  const auto buckets = options_.buckets.empty()
                           ? collectives_.Buckets(trained, kinds, setup_.bucket_bytes)
                           : GivenBuckets();
  for (const auto& indices : buckets) {
    Group group = groups[kinds[indices.front()]];
    group.members = indices;
    std::vector<std::string> names;
    std::vector<int64_t> elements;
    values.emplace_back();
    for (const int i : indices) {
      names.push_back(program_.parameters[i]);
      elements.push_back(graph_.Initializer(graph_.FindValue(names.back()))->elements());
      values.back().push_back(trained[i]);
    }
    const DType dtype = trained[indices.front()]->dtype();
    layouts.emplace_back(std::move(elements), dtype, setup_.ranks);
    rows.push_back(RowOf(group));
    std::vector<std::string> states;
    for (const OptimizerState& state : DescribeUpdate(group.optimizer).states)
      states.push_back("optimizer." + state.name);
    const int shard = static_cast<int>(program_.shards.size());
    program_.shards.push_back({"caesura.bucket_" + std::to_string(shard), std::move(names),
                               std::move(states), dtype, layouts.back()});
    buckets_.push_back({shard, std::move(group), nullptr});
  }
  const std::vector<Value*> parts = collectives_.ReduceScatter(values, layouts, rows);
  for (size_t b = 0; b < parts.size(); ++b) buckets_[b].gradient = parts[b];
  cleared_ = parts.back();
}

void UpdateWriter::UpdateBucket(const Bucket& bucket, Value* coefficients, Value* step,
                                Value* scale) {
  const ParameterShard& shard = program_.shards[bucket.shard];
  std::vector<Value*> parameters;
  for (const std::string& name : shard.members) parameters.push_back(graph_.FindValue(name));
  Value* part = collectives_.OwnPart(parameters, shard.layout);
  const Rates rates{bucket.group, CoefficientsOf(bucket.group, coefficients), step,
                    ScaleOf(bucket.group, scale, step)};
  const Updated updated{part, bucket.gradient, shard.name, shard.dtype, Shape{shard.layout.part()}};
  Node* node = UpdateOf({updated}, rates);
  node->output(0)->set_type(part->type());
  collectives_.AllGather(node->output(0), parameters, shard.layout, RowOf(bucket.group));
}

}  // namespace caesura
