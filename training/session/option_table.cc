// SPDX-License-Identifier: Apache-2.0
#include "training/session/option_table.h"

#include <algorithm>
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

// A row of a field, which `field` gives of options: a bool, a number or a list of names.
// `any_bits`: a negative number stands for an unsigned one with its bits.
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
  return {std::move(name), std::move(sentence), std::move(other), get, set};
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
  std::string other = values[1].first;
  return {std::move(name), std::move(sentence), std::move(other), get, set};
}

std::vector<TrainingOption> MakeTable() {
  using Precision = std::pair<std::string, DType>;
  const std::vector<Precision> precisions = {
      {"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}};
  std::vector<Precision> exchanged = {{"", DType::kUndefined}, {"bf16", DType::kBFloat16}};
  return {
      Plain("trainable", Names{"w"},
            "Initializers to train ('*' matches anything); none: all that a gradient reaches.",
            [](auto& o) -> auto& { return o.step.trainable; }),
      Plain("frozen", Names{"b"}, "Initializers that stay as they are.",
            [](auto& o) -> auto& { return o.step.frozen; }),
      Plain("train_constants", true,
            "Floating Constant nodes that gradients reach are trained, too.",
            [](auto& o) -> auto& { return o.step.train_constants; }),
      Plain("clip_norm", 1.0, "Gradients are scaled down to this global norm; 0: they are not.",
            [](auto& o) -> auto& { return o.step.clip_norm; }),
      Plain("accumulation_steps", int64_t{2}, "Micro-steps to an update; 0: the caller decides.",
            [](auto& o) -> auto& { return o.step.accumulation_steps; }),
      Named<DType>("precision", precisions,
                   "The dtype in which products, convolutions and attention compute.",
                   [](auto& o) -> auto& { return o.step.precision; }),
      Plain("refuse_nonfinite", true,
            "A step whose loss or gradients are not finite fails before it has written anything.",
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
                        "When a step writes to parameters: after all gradients, or each as soon as "
                        "its gradient is there.",
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
      Plain("retries", int64_t{2}, "Times that a failed step is done again.",
            [](auto& o) -> auto& { return o.failures.retries; }),
      Plain("parts", int64_t{3}, "Parts of a batch in which a failed step is done again.",
            [](auto& o) -> auto& { return o.failures.parts; }),
      Plain("threads", int64_t{2}, "Threads to a kernel; 0: as many as OpenMP takes.",
            [](auto& o) -> auto& { return o.threads; }),
      Plain(
          "seed", int64_t{5}, "Of dropout and other random ops.",
          [](auto& o) -> auto& { return o.seed; }, /*any_bits=*/true),
      Plain("memory_budget", int64_t{1} << 30,
            "Bytes that a step's arena may take; 0: no limit. What does not fit is computed again.",
            [](auto& o) -> auto& { return o.memory_budget; }),
      Named<MeanOver>("mean_over", {{"batches", MeanOver::kBatches}, {"tokens", MeanOver::kTokens}},
                      "The mean that an update of several batches goes by.",
                      [](auto& o) -> auto& { return o.step.mean_over; }),
      Named<DType>("exchange_dtype", std::move(exchanged),
                   "The dtype in which ranks exchange gradients; none: their own.",
                   [](auto& o) -> auto& { return o.step.exchange_dtype; }),
      Plain("rank_parts", Names{"w"}, "Parameters of which each rank has its own part.",
            [](auto& o) -> auto& { return o.step.rank_parts; }),
      Plain("bucket_bytes", int64_t{64},
            "Ranks sum gradients in buckets that are closed at this many bytes.",
            [](auto& o) -> auto& { return o.ranks.bucket_bytes; }),
      Plain("shard", int64_t{1},
            "Ranks divide the optimizer state (1), and sums of gradients, too (2).",
            [](auto& o) -> auto& { return o.ranks.shard; }),
      Plain("logical_shards", int64_t{4},
            "Parts of an update's batch whose gradients are summed in one order on any number of "
            "ranks; 0: any order.",
            [](auto& o) -> auto& { return o.ranks.logical_shards; }),
      Plain("join_ranks", false, "Ranks take the parameters of rank 0 when sessions are made.",
            [](auto& o) -> auto& { return o.ranks.join; }),
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

}  // namespace caesura
