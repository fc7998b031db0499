// SPDX-License-Identifier: Apache-2.0
// The facts that ranks compare before an update, and what they say where these differ.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <set>

#include "core/base/status_macros.h"
#include "core/graph/fingerprint.h"
#include "training/session/option_table.h"
#include "training/session/rank_group.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

// The updates after which all values were in a sample.
constexpr size_t kUpdatesOfASample = 256;
constexpr size_t kBlockBytes = 64;  // a cache line
// The bytes that a rank may send more where that saves two exchanges.
constexpr int64_t kMostMoreBytes = 32 << 10;

std::string Hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, number);
  return text;
}

std::string Text(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", number);
  double read = 0;
  for (int digits = 6; digits < 17; ++digits) {  // the shortest that is this number
    char shorter[32];
    std::snprintf(shorter, sizeof(shorter), "%.*g", digits, number);
    if (std::sscanf(shorter, "%lf", &read) == 1 && read == number) return shorter;
  }
  return text;
}

std::string Text(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          std::string text;
          for (const std::string& name : held) text += (text.empty() ? "'" : ", '") + name + "'";
          return text.empty() ? "none" : text;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return "'" + held + "'";
        } else if constexpr (std::is_same_v<T, bool>) {
          return held ? "True" : "False";
        } else {
          return Text(static_cast<double>(held));
        }
      },
      value);
}

// Options by which each rank may go alone.
bool IsOfOneRank(const std::string& option, bool is_ordered) {
  static const std::set<std::string> own = {"threads",    "memory_budget", "join_ranks",
                                            "undo",       "keep_outputs",  "keep_gradients",
                                            "on_failure", "retries",       "parts"};
  return own.count(option) > 0 || (option == "seed" && !is_ordered);
}

// In any order: ranks' programs may have them in others.
uint64_t HashOf(const RankFacts& facts) {
  uint64_t sum = 0;
  for (const auto& [name, value] : facts) {
    Hash hash;
    hash.Mix(name);
    hash.Mix(value);
    sum += hash.value();
  }
  return sum;
}

uint64_t MixBytes(uint64_t hash, const char* bytes, size_t count) {
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof(word), count - at));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

// The names of buckets' gradients: "a, b | c".
std::string Text(const std::vector<std::vector<std::string>>& buckets) {
  std::string text;
  for (const std::vector<std::string>& names : buckets) {
    if (!text.empty()) text += " | ";
    for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : ", ") + names[i];
  }
  return text;
}

}  // namespace

void RankGroup::DescribeStep(const StepProgram& update) {
  step_facts_.clear();
  const ParameterSet& set = parameters_.set();
  const StepOptions& step = options_.step;
  if (options_.ranks.join) {
    for (const TrainingOption& option : TrainingOptionTable()) {
      if (!IsOfOneRank(option.name, setup_.is_ordered()))
        step_facts_.emplace_back(option.name, Text(option.get(options_)));
    }
    for (size_t g = 0; g <= step.groups.size(); ++g) {
      const bool is_last = g == step.groups.size();
      const Optimizer optimizer =
          is_last ? step.optimizer : ForGroup(step.optimizer, step.groups[g]);
      const std::string of = is_last ? "" : " of group " + std::to_string(g);
      const std::string op = DescribeUpdate(optimizer).op_type;
      step_facts_.emplace_back("the optimizer" + of,
                               op.empty() ? "number " + std::to_string(optimizer.index()) : op);
      for (const auto& [name, value] : Coefficients(optimizer))
        step_facts_.emplace_back(name + of, Text(value));
      if (!is_last)
        step_facts_.emplace_back("the scale of the rate" + of,
                                 Text(step.groups[g].learning_rate_scale));
      for (size_t i = 0; !is_last && i < step.groups[g].names.size(); ++i)
        step_facts_.emplace_back("group " + std::to_string(g), step.groups[g].names[i]);
    }
    step_facts_.emplace_back("the class that the loss ignores",
                             std::to_string(step.loss.ignore_index));
    int number = 0;
    for (const auto& node : parameters_.model().graph->nodes()) {
      Hash hash;
      MixNode(hash, *node);
      for (const Value* input : node->inputs()) hash.Mix(input == nullptr ? "" : input->name());
      step_facts_.emplace_back("node " + std::to_string(number++) + " of the model",
                               node->op_type() + " (" + Hex(hash.value()) + ")");
    }
  }
  const int shared = setup_.broadcasts_buffers ? parameters_.statistics() : 0;
  for (int i = 0; i < parameters_.trained() + shared; ++i) {
    const Tensor& tensor = set.tensor(i);
    step_facts_.emplace_back("parameter '" + set.name(i) + "'",
                             DTypeName(tensor.dtype()) + tensor.shape().ToString());
  }
  exchanged_ = update.buckets;
  for (const ParameterShard& shard : update.shards) exchanged_.push_back(shard.members);
  step_facts_.emplace_back("the gradients that a step exchanges", Text(exchanged_));
  step_hash_ = HashOf(step_facts_);
  load_ = LoadOf(update);
  sampled_.clear();
  for (int i = 0; i < parameters_.whole(); ++i) {
    Hash name;
    name.Mix(set.name(i));
    if (IsShared(i)) sampled_.emplace_back(i, name.value());
  }
}

int64_t RankGroup::LoadOf(const StepProgram& update) const {
  const bool may_wait = options_.step.commit == CommitMode::kLate && !setup_.is_ordered() &&
                        update.shards.size() <= 1 && options_.step.rank_parts.empty() &&
                        communicator_->device().is_host();
  if (!may_wait) return 0;
  int64_t bytes = 0;
  for (const auto& node : update.graph->nodes()) {
    const bool exchanges = node->Is("CollectiveStart", kCaesuraDomain) ||
                           node->Is("ReduceScatterStart", kCaesuraDomain);
    if (!exchanges) continue;
    for (const Value* value : node->outputs()) {
      if (!value->type().shape) return 0;
      auto size = static_cast<int64_t>(DTypeSize(value->dtype()));
      for (const Dim& dim : *value->type().shape) {
        if (!dim.known()) return 0;
        size *= dim.value;
      }
      bytes += size + static_cast<int64_t>(kBufferAlignment);
    }
  }
  // Each rank sends its load to all others, where an all-reduce sends parts of sums.
  const int64_t others = setup_.ranks - 1;
  const int64_t more = bytes * others * (others - 1) / setup_.ranks;
  const int64_t words = bytes / static_cast<int64_t>(sizeof(int64_t));
  const bool is_small = words <= Communicator::kMostRoom && bytes <= setup_.bucket_bytes;
  return is_small && more <= kMostMoreBytes ? words : 0;
}

bool RankGroup::IsShared(int i) const {
  const int statistic = i - parameters_.trained();
  const bool is_statistic = statistic >= 0 && statistic < parameters_.statistics();
  // Micro-steps that come before an update leave each rank its own.
  const bool is_own = !setup_.broadcasts_buffers || progress_.micro_steps_to_update != 1;
  return !parameters_.IsAccumulator(i) && !IsRankPart(i) && !(is_statistic && is_own);
}

RankFacts RankGroup::Rates() const {
  RankFacts rates;
  const std::vector<std::string>& fed = options_.step.fed_coefficients;
  if (fed.empty()) rates.emplace_back("learning_rate", Text(progress_.learning_rate()));
  for (size_t i = 0; i < coefficients_.size(); ++i) {
    const std::string of =
        coefficients_.size() > fed.size() ? " of group " + std::to_string(i / fed.size()) : "";
    rates.emplace_back(fed[i % fed.size()] + of, Text(coefficients_[i]));
  }
  if (progress_.scales_loss) rates.emplace_back("the loss scale", Text(progress_.loss_scale()));
  return rates;
}

std::string RankGroup::MicroSteps() const {
  if (progress_.micro_steps_to_update != 0) return std::to_string(progress_.micro_steps);
  // A mean over tokens goes by the sums of all ranks.
  if (progress_.loss_is_mean && !has_divided_sums()) return "";
  return std::to_string(progress_.accumulated() + 1) + (is_update_ ? " to this update" : " so far");
}

uint64_t RankGroup::HashOfSample() const {
  const ParameterSet& set = parameters_.set();
  const int micro_steps = progress_.micro_steps_to_update;
  const auto update = static_cast<size_t>(micro_steps == 0 ? progress_.updates
                                                           : progress_.micro_steps / micro_steps);
  uint64_t sum = 0;
  for (const auto& [i, name] : sampled_) {
    const Tensor& tensor = set.tensor(i);
    if (!tensor.device().is_host()) continue;
    const auto* bytes = static_cast<const char*>(tensor.raw());
    const size_t blocks = (tensor.bytes() + kBlockBytes - 1) / kBlockBytes;
    if (blocks == 0) continue;
    // A small tensor has one block in each update.
    const size_t first = update % std::min(kUpdatesOfASample, blocks);
    uint64_t hash = name;
    for (size_t b = first; b < blocks; b += kUpdatesOfASample) {
      const size_t at = b * kBlockBytes;
      hash = MixBytes(hash, bytes + at, std::min(kBlockBytes, tensor.bytes() - at));
    }
    sum += hash;  // in any order: ranks' programs may have them in others
  }
  return sum;
}

RankFacts RankGroup::StepFacts(const std::string& call) const {
  RankFacts facts = {{"the call", call}};
  facts.insert(facts.end(), step_facts_.begin(), step_facts_.end());
  const RankFacts rates = Rates();
  facts.insert(facts.end(), rates.begin(), rates.end());
  facts.emplace_back("the number of updates", std::to_string(progress_.updates));
  if (const std::string micro_steps = MicroSteps(); !micro_steps.empty())
    facts.emplace_back("the number of micro-steps", micro_steps);
  const ParameterSet& set = parameters_.set();
  for (const auto& [i, name] : sampled_) {
    const Tensor& tensor = set.tensor(i);
    if (!tensor.device().is_host()) continue;
    const auto* bytes = static_cast<const char*>(tensor.raw());
    facts.emplace_back("the hash of the values of '" + set.name(i) + "'",
                       Hex(MixBytes(name, bytes, tensor.bytes())));
  }
  return facts;
}

Status RankGroup::Refusal(const std::string& what, const RankFacts& own) const {
  ASSIGN_OR_RETURN(const std::vector<RankFacts> all, GatherFacts(*communicator_, own, Deadline()));
  const std::string differences = DifferencesOfRanks(all);
  return InvalidArgument(what + ": " +
                         (differences.empty() ? "they are alike again" : differences) +
                         ". Nothing has changed: make them alike, and do it again on all ranks");
}

}  // namespace caesura
