// SPDX-License-Identifier: Apache-2.0
#include "training/session/option_table.h"

#include <algorithm>
#include <cassert>
#include <type_traits>
#include <utility>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

using Names = std::vector<std::string>;

const char* TypeName(const OptionValue& value) {
  constexpr const char* kNames[] = {"bool", "int", "float", "str", "list of str"};
  return kNames[value.index()];
}

// A row of a field, which `field` gives of options: a bool, a number, a text or a list of names.
template <typename Field>
TrainingOption Plain(std::string name, OptionValue other, std::string sentence, Field field,
                     bool any_bits = false) {
  using T = std::remove_reference_t<decltype(field(std::declval<TrainingOptions&>()))>;
  using Kept = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int64_t, T>;
  const auto set = [name, field, any_bits](const OptionValue& value,
                                           TrainingOptions* options) -> Status {
    const Kept& given = std::get<Kept>(value);
    if constexpr (std::is_same_v<Kept, int64_t>) {
      if (!any_bits && !std::in_range<T>(given))
        return InvalidArgument(name + ": " + std::to_string(given) + " is out of range");
    }
    field(*options) = static_cast<T>(given);
    return {};
  };
  const auto get = [field](const TrainingOptions& options) -> OptionValue {
    return static_cast<Kept>(field(options));
  };
  return {.name = std::move(name),
          .sentence = std::move(sentence),
          .other = std::move(other),
          .get = get,
          .set = set,
          .any_bits = any_bits};
}

// A row of a field whose values have names; the first one is the default.
template <typename T, typename Field>
TrainingOption Named(std::string name, std::vector<std::pair<std::string, T>> values,
                     std::string sentence, Field field) {
  const auto get = [values, field](const TrainingOptions& options) -> OptionValue {
    const auto found = std::find_if(values.begin(), values.end(),
                                    [&](const auto& v) { return v.second == field(options); });
    return found == values.end() ? std::string() : found->first;
  };
  std::vector<std::string> choices;
  for (const auto& value : values) choices.push_back(value.first);
  const auto set = [values, name, field](const OptionValue& value,
                                         TrainingOptions* options) -> Status {
    const std::string& given = std::get<std::string>(value);
    std::string known;
    for (const auto& [word, kept] : values) {
      if (word == given) return field(*options) = kept, Status();
      if (!word.empty()) known += (known.empty() ? "" : ", ") + word;
    }
    return InvalidArgument(name + " '" + given + "' is none of " + known);
  };
  return {.name = std::move(name),
          .sentence = std::move(sentence),
          .other = choices[1],
          .get = get,
          .set = set,
          .choices = std::move(choices)};
}

std::vector<TrainingOption> MakeTable() {
  using Kind = Loss::Kind;
  const std::vector<std::pair<std::string, Kind>> losses = {
      {"cross_entropy", Kind::kCrossEntropy},
      {"mse", Kind::kMeanSquaredError},
      {"l1", Kind::kMeanAbsoluteError},
      {"bce_with_logits", Kind::kBinaryCrossEntropyLogits},
      {"output", Kind::kOutput}};
  using Precision = std::pair<std::string, DType>;
  const std::vector<Precision> precisions = {
      {"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}};
  const std::vector<Precision> exchanged = {{"", DType::kUndefined}, {"bf16", DType::kBFloat16}};
  return {
      Named<Kind>("loss", losses,
                  "cross_entropy (scores and class numbers), mse, l1 or bce_with_logits; output: "
                  "the model computes its loss itself.",
                  [](auto& o) -> auto& { return o.step.loss.kind; }),
      Plain("target", std::string("t"), "The name of the input that the loss compares with.",
            [](auto& o) -> auto& { return o.step.loss.target; }),
      Plain("prediction", std::string("y"),
            "The output of the model that the loss is about; by default the first.",
            [](auto& o) -> auto& { return o.step.loss.prediction; }),
      Plain(
          "also", Names{"y=u*2"},
          "Further terms of the loss, PREDICTION=TARGET or PREDICTION=TARGET*WEIGHT: the same loss "
          "between other outputs and new inputs, times a weight.",
          [](auto& o) -> auto& { return o.step.loss.also; }),
      Plain("class_axis", int64_t{-1},
            "The axis of cross_entropy's scores that holds the classes; below 0 from the end.",
            [](auto& o) -> auto& { return o.step.loss.class_axis; }),
      Plain("trainable", Names{"w"},
            "Initializers to train ('*' matches anything); by default all that a gradient reaches.",
            [](auto& o) -> auto& { return o.step.trainable; }),
      Plain("frozen", Names{"b"}, "Initializers that stay as they are ('*' matches anything).",
            [](auto& o) -> auto& { return o.step.frozen; }),
      Plain("train_constants", true,
            "Floating Constant nodes that gradients reach are trained, too, by the names of their "
            "outputs.",
            [](auto& o) -> auto& { return o.step.train_constants; }),
      Plain("clip_norm", 1.0, "Gradients are scaled down to this global norm; 0: they are not.",
            [](auto& o) -> auto& { return o.step.clip_norm; }),
      Plain("accumulation_steps", int64_t{2},
            "Batches to one update, which takes the mean of their gradients.",
            [](auto& o) -> auto& { return o.step.accumulation_steps; }),
      Named<DType>("precision", precisions,
                   "The dtype in which products, convolutions and attention compute; parameters, "
                   "optimizer, losses and norms stay float32.",
                   [](auto& o) -> auto& { return o.step.precision; }),
      Plain("refuse_nonfinite", true,
            "A step whose loss or gradients are not finite fails and has changed nothing.",
            [](auto& o) -> auto& { return o.step.refuse_nonfinite; }),
      Plain("unbiased_statistics", true,
            "Running variances are updated with the unbiased variance, as PyTorch's are.",
            [](auto& o) -> auto& { return o.step.unbiased_statistics; }),
      Plain("keep_gradients", true, "A step also hands out the gradient of each parameter.",
            [](auto& o) -> auto& { return o.step.keep_gradients; }),
      Plain("keep_outputs", Names{"y"}, "Outputs of the model that a step also hands out.",
            [](auto& o) -> auto& { return o.step.keep_outputs; }),
      Plain("fed", Names{"learning_rate"}, "Coefficients of the optimizer that each step is given.",
            [](auto& o) -> auto& { return o.step.fed_coefficients; }),
      Named<CommitMode>("commit",
                        {{"late", CommitMode::kLate}, {"eager-consume", CommitMode::kEagerConsume}},
                        "late: a step writes to parameters after all gradients. eager-consume: to "
                        "each as soon as its gradient is there, with least memory.",
                        [](auto& o) -> auto& { return o.step.commit; }),
      Plain("undo", true,
            "A step keeps what it overwrites until it has ended, so that any failed step has "
            "changed nothing.",
            [](auto& o) -> auto& { return o.undo; }),
      Named<OnFailure>("on_failure",
                       {{"stop", OnFailure::kStop},
                        {"skip", OnFailure::kSkip},
                        {"retry", OnFailure::kRetry},
                        {"retry-on-defaults", OnFailure::kRetryOnDefaults},
                        {"retry-in-parts", OnFailure::kRetryInParts}},
                       "The answer to a step that fails.",
                       [](auto& o) -> auto& { return o.failures.action; }),
      Plain("retries", int64_t{2}, "Times that one step is done again at most.",
            [](auto& o) -> auto& { return o.failures.retries; }),
      Plain("parts", int64_t{3}, "Parts of a batch in which retry-in-parts does a step again.",
            [](auto& o) -> auto& { return o.failures.parts; }),
      Plain("threads", int64_t{2},
            "Threads to a kernel; 0: CAESURA_NUM_THREADS, or as many as OpenMP takes.",
            [](auto& o) -> auto& { return o.threads; }),
      Plain(
          "seed", int64_t{5}, "Seeds dropout and other random ops.",
          [](auto& o) -> auto& { return o.seed; }, /*any_bits=*/true),
      Plain("memory_budget", int64_t{1} << 30,
            "Bytes that a step's arena may take; 0: no limit. Activations that do not fit are "
            "computed again in the backward.",
            [](auto& o) -> auto& { return o.memory_budget; }),
      Named<MeanOver>("mean_over", {{"batches", MeanOver::kBatches}, {"tokens", MeanOver::kTokens}},
                      "The mean that an update of several batches goes by: of the batches, or of "
                      "all tokens that the loss counts.",
                      [](auto& o) -> auto& { return o.step.mean_over; }),
      Named<DType>("exchange_dtype", exchanged,
                   "The dtype to which ranks round the gradients that they exchange; by default "
                   "they do not.",
                   [](auto& o) -> auto& { return o.step.exchange_dtype; }),
      Plain("rank_parts", Names{"w"}, "Parameters of which each rank has its own part.",
            [](auto& o) -> auto& { return o.step.rank_parts; }),
      Plain("bucket_bytes", int64_t{64},
            "Ranks exchange gradients in buckets that are closed at this many bytes.",
            [](auto& o) -> auto& { return o.ranks.bucket_bytes; }),
      Plain("shard", int64_t{1},
            "Ranks divide the optimizer state (1), and accumulated gradients, too (2).",
            [](auto& o) -> auto& { return o.ranks.shard; }),
      Plain("logical_shards", int64_t{4},
            "Parts of an update's batch whose gradients are summed in one order on any number of "
            "ranks; 0: any order.",
            [](auto& o) -> auto& { return o.ranks.logical_shards; }),
      Plain(
          "broadcast_buffers", false,
          "Running statistics are those of rank 0 after each step; False: each rank keeps its own.",
          [](auto& o) -> auto& { return o.ranks.broadcast_buffers; }),
      Plain("join_ranks", false, "Ranks take the parameters of rank 0 when sessions are made.",
            [](auto& o) -> auto& { return o.ranks.join; }),
  };
}

const TrainingOption& Row(const std::string& name) {
  const TrainingOption* row = FindTrainingOption(name);
  assert(row != nullptr);
  return *row;
}

// Any value but the default.
OptionUse Any(const std::string& name) {
  const TrainingOption& row = Row(name);
  const auto in = [&row, initial = row.initial()](const TrainingOptions& options) {
    return row.get(options) != initial;
  };
  return {name, row.other, in};
}

OptionUse Is(const std::string& name, const std::string& value) {
  const TrainingOption& row = Row(name);
  const auto in = [&row, value](const TrainingOptions& options) {
    return row.get(options) == OptionValue(value);
  };
  return {name, value, in};
}

std::vector<OptionConflict> MakeConflicts() {
  constexpr bool kAlways = false, kAmongRanks = true;
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  constexpr StatusCode kUnsupported = StatusCode::kUnsupported;
  const OptionUse early = Is("commit", "eager-consume"), fp16 = Is("precision", "fp16");
  const OptionUse in_parts = Is("on_failure", "retry-in-parts");
  const std::string shows_late = "whether gradients are finite shows after the last one";
  const std::string one_update = "each part of the batch is a micro-step of one update";
  const OptionUse several_shards = {"logical_shards", int64_t{4}, [](const TrainingOptions& o) {
                                      return o.ranks.logical_shards > 1;
                                    }};
  return {
      {early, Any("clip_norm"), kAlways, kInvalid, "the global norm needs all gradients"},
      {early, fp16, kAlways, kInvalid, shows_late},
      {early, Any("refuse_nonfinite"), kAlways, kInvalid, shows_late},
      {Any("refuse_nonfinite"), fp16, kAlways, kInvalid,
       "an update whose gradients overflow is skipped instead"},
      {Any("also"), Is("mean_over", "tokens"), kAlways, kInvalid,
       "a loss of several terms is no mean of elements"},
      {Any("logical_shards"), Any("accumulation_steps"), kAlways, kInvalid,
       "the micro-steps of an update follow from the shards"},
      {Any("logical_shards"), Any("keep_gradients"), kAlways, kUnsupported,
       "the gradients of one shard are not those of the update"},
      {Any("logical_shards"), Any("refuse_nonfinite"), kAlways, kUnsupported,
       "the gradients of one shard are not those of the update"},
      {Any("logical_shards"), Any("exchange_dtype"), kAlways, kUnsupported,
       "one rank exchanges nothing, so rounded sums would depend on the number of ranks"},
      {in_parts, Any("accumulation_steps"), kAlways, kInvalid, one_update},
      {in_parts, several_shards, kAlways, kInvalid, one_update},
      {in_parts, fp16, kAlways, kInvalid, "parts do not scale their loss"},
      {in_parts, Any("keep_gradients"), kAlways, kInvalid, "parts hand out their loss only"},
      {in_parts, Any("keep_outputs"), kAlways, kInvalid, "parts hand out their loss only"},
      {early, Any("shard"), kAmongRanks, kInvalid,
       "a rank updates its part of a bucket after all gradients"},
      {early, Any("logical_shards"), kAmongRanks, kInvalid,
       "ordered sums are made after all gradients"},
      {early, Any("rank_parts"), kAmongRanks, kInvalid,
       "norms and sums of parts are made after all gradients"},
      {Any("refuse_nonfinite"), Any("accumulation_steps"), kAmongRanks, kInvalid,
       "one rank would refuse a micro-step that the others do"},
      {Any("rank_parts"), Any("shard"), kAmongRanks, kUnsupported,
       "the gradients of parts are not summed over the ranks"},
      {Any("rank_parts"), Any("logical_shards"), kAmongRanks, kUnsupported,
       "the gradients of parts are not summed over the ranks"},
      {Any("shard"), Any("keep_gradients"), kAmongRanks, kUnsupported,
       "a rank has its own part of the gradients only"},
      {Any("shard"), Any("exchange_dtype"), kAmongRanks, kUnsupported,
       "the parts of divided state are exchanged in their own dtype"},
      {Any("shard"), Any("logical_shards"), kAmongRanks, kUnsupported,
       "sums over ranks that keep parts of the state have no fixed order"},
  };
}

}  // namespace

const std::vector<TrainingOption>& TrainingOptionTable() {
  static const std::vector<TrainingOption> table = MakeTable();
  return table;
}

const TrainingOption* FindTrainingOption(const std::string& name) {
  const auto& table = TrainingOptionTable();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const TrainingOption& row) { return row.name == name; });
  return found == table.end() ? nullptr : &*found;
}

Status SetOption(const std::string& name, const OptionValue& value, TrainingOptions* options) {
  const TrainingOption* row = FindTrainingOption(name);
  if (row == nullptr) return NotFound("training has no option '" + name + "'");
  if (value.index() != row->other.index()) {
    return InvalidArgument(name + ": expected " + TypeName(row->other) + ", got " +
                           TypeName(value));
  }
  return row->set(value, options);
}

const std::vector<OptionConflict>& OptionConflicts() {
  static const std::vector<OptionConflict> conflicts = MakeConflicts();
  return conflicts;
}

std::string OptionUse::Text(const std::string& spelled) const {
  const auto* value = std::get_if<std::string>(&example);
  return value == nullptr ? spelled : spelled + " " + *value;
}

Status CheckConflicts(const TrainingOptions& options, bool among_ranks,
                      const std::function<std::string(const std::string&)>& spell) {
  const auto text = [&](const OptionUse& use) {
    return use.Text(spell ? spell(use.option) : use.option);
  };
  for (const OptionConflict& conflict : OptionConflicts()) {
    if (conflict.among_ranks && !among_ranks) continue;
    if (!conflict.one.in(options) || !conflict.other.in(options)) continue;
    return Status(conflict.code, text(conflict.one) + " and " + text(conflict.other) +
                                     " do not go together: " + conflict.reason);
  }
  return {};
}

}  // namespace caesura
