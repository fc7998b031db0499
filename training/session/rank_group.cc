// SPDX-License-Identifier: Apache-2.0
#include "training/session/rank_group.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/base/status_macros.h"
#include "core/distributed/run_collectives.h"
#include "core/graph/fingerprint.h"
#include "core/plan/device_constants.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/tensor_copy.h"
#include "training/session/option_table.h"

namespace caesura {
namespace {

// The words with which ranks join. The first one is 0, or kRefuses.
constexpr size_t kJoinWords = 5;
constexpr int64_t kRefuses = 1;

std::shared_ptr<const ExecutionProvider> ProviderOn(Device device, const ProviderList& providers) {
  const auto found = std::find_if(providers.begin(), providers.end(),
                                  [&](const auto& p) { return p->device() == device; });
  return found == providers.end() ? nullptr : *found;
}

// "'NAME' exchanges that of DEVICE"
std::string Exchanges(const Communicator& communicator) {
  return "'" + communicator.name() + "' exchanges that of " + communicator.device().ToString();
}

// `others`: null where there are none.
Status CheckShard(int shard, const Communicator* others) {
  if (shard == 3) {
    return Unsupported(
        "shard = 3: parameters are whole on each rank; PyTorch's fully_shard(module) divides them, "
        "too");
  }
  if (shard < 0 || shard > 2)
    return InvalidArgument("shard: expected 0, 1 or 2, got " + std::to_string(shard));
  if (shard == 0 || others == nullptr || others->device().is_host()) return {};
  return Unsupported("shard: parts of the state are exchanged in host memory, but " +
                     Exchanges(*others));
}

Status CheckLogicalShards(const TrainingOptions& options, const RankSetup& setup,
                          const Communicator* others) {
  const int shards = options.ranks.logical_shards, ranks = setup.ranks;
  if (shards == 0) return {};
  const std::string given = "logical_shards = " + std::to_string(shards) + ": ";
  if (shards < 0) return InvalidArgument(given + "expected 0 (any order of sums) or more");
  const auto own = static_cast<unsigned>(shards / ranks);
  if (shards % ranks != 0 || (others != nullptr && !std::has_single_bit(own))) {
    return InvalidArgument(given + "expected " + std::to_string(ranks) +
                           " ranks times a power of two: each rank sums its own shards in pairs");
  }
  if (others == nullptr || others->device().is_host()) return {};
  return Unsupported(given + "ordered sums are made in host memory, but " + Exchanges(*others));
}

}  // namespace

Result<RankSetup> SetUpRanks(const TrainingOptions& options, const Communicator* communicator,
                             const ProviderList& providers) {
  RankSetup setup;
  setup.ranks = communicator == nullptr ? 1 : communicator->size();
  setup.bucket_bytes = options.ranks.bucket_bytes;
  setup.logical_shards = options.ranks.logical_shards;
  setup.broadcasts_buffers = options.ranks.broadcast_buffers;
  const Communicator* others = setup.has_others() ? communicator : nullptr;
  RETURN_IF_ERROR(CheckLogicalShards(options, setup, others));
  RETURN_IF_ERROR(CheckShard(options.ranks.shard, others));
  if (setup.bucket_bytes < 1) {
    return InvalidArgument("bucket_bytes: expected 1 or more, got " +
                           std::to_string(setup.bucket_bytes));
  }
  RETURN_IF_ERROR(CheckConflicts(options, setup.has_others()));
  if (others == nullptr) return setup;
  const bool skips = options.step.skips_unused;
  if (skips && (options.step.buckets.empty() || std::ssize(options.step.groups) > kMostRows)) {
    return InvalidArgument("skips_unused: needs buckets and at most " + std::to_string(kMostRows) +
                           " groups, got " + std::to_string(options.step.groups.size()));
  }
  if (options.failures.action != OnFailure::kStop) {
    return InvalidArgument(
        "failures, on_failure: with other ranks a failed step stops; all ranks would have to do it "
        "again");
  }
  setup.divides_state = options.ranks.shard > 0;
  setup.divides_sums = options.ranks.shard == 2;
  const Device device = others->device();
  const auto provider = ProviderOn(device, providers);
  if (!device.is_host() && provider == nullptr) {
    return InvalidArgument("the communicator '" + others->name() + "' exchanges the memory of " +
                           device.ToString() + ", where no provider of the session runs nodes");
  }
  setup.provider = device.is_host() ? kCpuProviderName : provider->name();
  return setup;
}

RankGroup::RankGroup(const TrainingOptions& options, RankSetup setup, RunControl& control,
                     SessionParameters& parameters, TrainingProgress& progress,
                     std::shared_ptr<const ProviderFallback> providers)
    : options_(options),
      communicator_(options.ranks.communicator),
      setup_(std::move(setup)),
      control_(control),
      parameters_(parameters),
      progress_(progress),
      providers_(std::move(providers)) {
  if (setup_.has_others()) state_rank_ = rank();
}

void RefuseToJoin(const RankOptions& options, Communicator* communicator, const Status& reason) {
  if (!options.join || communicator == nullptr || communicator->size() == 1) return;
  const auto deadline = Clock::now() + options.timeout.value_or(communicator->timeout());
  const std::array<int64_t, kJoinWords> words = {kRefuses};
  if (communicator->Gather(words, deadline).ok() &&
      GatherTexts(*communicator, reason.message(), deadline).ok())
    return;
  communicator->Abort(reason.message());
}

Status RankGroup::Join() {
  const std::array<int64_t, kJoinWords> own = {0, static_cast<int64_t>(step_hash_),
                                               parameters_.lost() ? -1 : progress_.updates,
                                               progress_.micro_steps, state_rank_};
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, communicator_->Gather(own, Deadline()));
  bool differs = false, refuses = false;
  size_t root = 0;
  std::vector<int64_t> updates, state_ranks;
  for (size_t r = 0; r < all.size() / kJoinWords; ++r) {
    const int64_t* const of_rank = &all[r * kJoinWords];
    refuses |= of_rank[0] == kRefuses;
    differs |= of_rank[1] != own[1];
    updates.push_back(of_rank[2]);
    state_ranks.push_back(of_rank[4]);
    if (updates[r] > updates[root]) root = r;
  }
  if (refuses) {
    ASSIGN_OR_RETURN(const auto reasons, GatherTexts(*communicator_, "", Deadline()));
    size_t rank = 0;
    while (rank + 1 < reasons.size() && reasons[rank].empty()) ++rank;
    return InvalidArgument("rank " + std::to_string(rank) +
                           " does not join, and nothing has changed: " + reasons[rank]);
  }
  if (differs) return Refusal("the ranks' steps differ", step_facts_);
  if (is_divided()) RETURN_IF_ERROR(CheckParts(updates, state_ranks));
  if (updates[root] < 0)
    return InvalidArgument("no rank has whole parameters: Restore a checkpoint first");
  RETURN_IF_ERROR(TakeParameters(static_cast<int>(root)));
  RETURN_IF_ERROR(TakeFrozen(static_cast<int>(root)));
  state_rank_ = rank();
  progress_.updates = updates[root];
  progress_.micro_steps = all[root * kJoinWords + 3];
  return {};
}

Result<Tensor> RankGroup::OnExchangedDevice(const Tensor& tensor) const {
  const Device device = communicator_->device();
  if (tensor.device() == device) return tensor;
  const ProviderList providers = providers_->providers();
  ASSIGN_OR_RETURN(Tensor here, ToHost(tensor, providers));
  if (device.is_host()) return here;
  const std::shared_ptr<const ExecutionProvider> provider = ProviderOn(device, providers);
  if (provider == nullptr) return Internal("no provider on the communicator's device");
  ASSIGN_OR_RETURN(Tensor there, CopyToDevice(here, *provider));
  RETURN_IF_ERROR(provider->Synchronise());
  return there;
}

bool RankGroup::IsRankPart(int parameter) const {
  std::string name = parameters_.set().name(parameter);
  if (parameter >= parameters_.trained() + parameters_.statistics()) {
    // "accumulator.NAME", "optimizer.STATE.NAME"
    const int prefixes = parameters_.IsAccumulator(parameter) ? 1 : 2;
    for (int i = 0; i < prefixes; ++i) name = name.substr(name.find('.') + 1);
  }
  const std::vector<std::string>& parts = options_.step.rank_parts;
  return std::find(parts.begin(), parts.end(), name) != parts.end();
}

Status RankGroup::TakeParameters(int root) {
  std::vector<Tensor> exchanged;
  std::vector<int> taken;
  Status status;
  for (int i = 0; i < parameters_.whole() && status.ok(); ++i) {
    if (IsRankPart(i)) continue;
    Result<Tensor> tensor = OnExchangedDevice(parameters_.set().tensor(i));
    status = tensor.status();
    if (!status.ok()) break;
    exchanged.push_back(*std::move(tensor));
    taken.push_back(i);
  }
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < exchanged.size() && status.ok(); ++i) {
    const Tensor& tensor = exchanged[i];
    auto work = communicator_->Start(
        Collective::Broadcast(tensor.dtype(), tensor.raw(), tensor.elements(), root));
    status = work.status();
    if (status.ok()) works.push_back(*std::move(work));
  }
  for (const auto& work : works) {
    if (status.ok()) status = work->Wait(Deadline());
  }
  for (size_t i = 0; i < exchanged.size() && status.ok(); ++i) {
    const Tensor& own = parameters_.set().tensor(taken[i]);
    if (own.device() != exchanged[i].device())
      status = CopyElements(exchanged[i], own, providers_->providers());
  }
  parameters_.ForRun().TouchAll();
  if (status.ok()) return {};
  if (rank() != root)  // some are those of another rank
    parameters_.set_lost(std::vector<std::string>());
  communicator_->Abort(status.message());
  return status;
}

// Programs are made of frozen values: those that were others are made again.
Status RankGroup::TakeFrozen(int root) {
  Status status;
  for (const std::string& name : parameters_.FrozenNames()) {
    ASSIGN_OR_RETURN(const Tensor own, parameters_.Get(name));
    ASSIGN_OR_RETURN(const Tensor copy, own.Clone());
    ASSIGN_OR_RETURN(const Tensor there, OnExchangedDevice(copy));
    auto work = communicator_->Start(
        Collective::Broadcast(there.dtype(), there.raw(), there.elements(), root));
    status = work.ok() ? (*work)->Wait(Deadline()) : work.status();
    if (!status.ok()) break;
    ASSIGN_OR_RETURN(const Tensor taken, ToHost(there, providers_->providers()));
    if (std::memcmp(taken.raw(), own.raw(), own.bytes()) != 0)
      RETURN_IF_ERROR(parameters_.SetOwn(name, taken));
  }
  if (!status.ok()) communicator_->Abort(status.message());
  return status;
}

Status RankGroup::Replace(std::shared_ptr<Communicator> communicator) {
  const int ranks = communicator == nullptr ? 1 : communicator->size();
  if (!options_.step.rank_parts.empty()) {
    return Unsupported(
        "rank_parts: each rank has its own part of parameters, and the part of a lost rank is "
        "gone: make a session again, and set the last parameters");
  }
  if (options_.ranks.shard > 0 && ranks != setup_.ranks) {
    return InvalidArgument(
        "the optimizer state is divided among " + std::to_string(setup_.ranks) +
        " ranks, and the part of a rank that was lost is gone: make a session for these " +
        std::to_string(ranks) +
        " and Restore the last checkpoint, which any number of ranks reads");
  }
  if (setup_.is_ordered() && ranks != setup_.ranks) {
    return InvalidArgument("the " + std::to_string(setup_.logical_shards) +
                           " logical shards are divided among " + std::to_string(setup_.ranks) +
                           " ranks: Save, make a session for " + std::to_string(ranks) +
                           " and Restore there");
  }
  ASSIGN_OR_RETURN(setup_, SetUpRanks(options_, communicator.get(), providers_->providers()));
  communicator_ = std::move(communicator);
  if (setup_.has_others() && state_rank_ < 0) state_rank_ = rank();
  control_.set_rank_asked(false);
  return {};
}

Status RankGroup::BeginStep(RunOptions& run, bool is_update, std::span<const double> coefficients) {
  differs_ = failed_alone_ = false;
  is_update_ = is_update;
  if (control_.rank_asked()) return Suspended("no step has begun: a rank was asked to suspend");
  if (control_.TakeSuspendAt() != INT_MAX)
    return InvalidArgument("SuspendAt: with several ranks a step is suspended before it begins");
  if (!setup_.is_ordered()) {  // each rank draws random numbers of its own
    run.seed = run.seed.value_or(0) + static_cast<uint64_t>(rank()) * 0x9e3779b97f4a7c15ull;
  } else if (!progress_.next_seed) {
    run.step = static_cast<uint64_t>(progress_.random_step(rank()));
  }
  const auto timeout = options_.ranks.timeout.value_or(communicator_->timeout());
  collectives_ = std::make_shared<RunCollectives>(*communicator_, timeout, control_.suspend_flag());
  collectives_->Share(progress_.loss_sum);
  if (control_.deadline() && Clock::now() >= *control_.deadline()) collectives_->RaiseFlag();
  coefficients_.assign(coefficients.begin(), coefficients.end());
  Hash rates;
  rates.Mix(std::bit_cast<uint64_t>(progress_.learning_rate()));
  rates.Mix(std::bit_cast<uint64_t>(progress_.loss_scale()));
  for (const double value : coefficients) rates.Mix(std::bit_cast<uint64_t>(value));
  Hash micro_steps;
  micro_steps.Mix(MicroSteps());
  const int64_t words[] = {0,
                           static_cast<int64_t>(step_hash_),
                           static_cast<int64_t>(callers_facts_ + writes_),
                           static_cast<int64_t>(rates.value()),
                           progress_.updates,
                           static_cast<int64_t>(micro_steps.value()),
                           static_cast<int64_t>(HashOfSample())};
  static_assert(std::size(words) == kAlikeWords);
  collectives_->Compare(words, uses_, is_update, is_update ? load_ : 0);
  run.collectives = collectives_;
  return {};
}

void RankGroup::set_uses(const std::vector<int>& rows) {
  uses_ = {};
  assert(
      std::all_of(rows.begin(), rows.end(), [](int row) { return row >= 0 && row < kMostRows; }));
  for (const int row : rows) uses_[row / 64] |= int64_t{1} << (row % 64);
  used_.assign(options_.step.skips_unused ? options_.step.groups.size() : 0, false);
}

void RankGroup::TellOthers(const Status& failure) const {
  const std::array<int64_t, kComparedWords> words = {kFailed};
  RankFacts facts = StepFacts();
  facts.emplace_back("the failure of the step", failure.message());
  if (communicator_->Meet(words, Deadline()).ok() &&
      GatherFacts(*communicator_, facts, Deadline()).ok())
    return;
  communicator_->Abort(failure.message());
}

void RankGroup::EndStep(RunResult& result) {
  const std::shared_ptr<RunCollectives> collectives = std::exchange(collectives_, nullptr);
  if (collectives == nullptr) return;  // a step of a checkpoint, which began alone
  if (collectives->flag_raised()) control_.set_rank_asked(true);
  for (size_t row = 0; row < used_.size(); ++row)
    used_[row] = collectives->used(static_cast<int64_t>(row));
  // The losses of this update's other micro-steps: their mean over the ranks, too.
  if (collectives->agreed()) progress_.loss_sum = collectives->shared_sum() / setup_.ranks;
  if (result.status.ok()) return;
  if (collectives->differs()) {
    differs_ = true;
    if (options_.ranks.join) result.status = Refusal("the ranks' steps differ", StepFacts());
    return;
  }
  if (result.refused_feeds()) return;  // the others wait for better ones
  if (!result.has_begun && result.status.code() != StatusCode::kRankFailure) {
    failed_alone_ = true;
    if (options_.ranks.join) TellOthers(result.status);
    return;
  }
  // After Agree all ranks have the same gradients, and refuse them for the same reason.
  const bool refused = result.status.code() == StatusCode::kInvalidArgument;
  if (collectives->agreed() && refused) return;
  // The others have done the step. With divided state they may not have: CheckParts decides.
  if (collectives->agreed() && !is_divided() && !parameters_.lost())
    parameters_.set_lost(std::vector<std::string>());
  communicator_->Abort(result.status.message());
}

}  // namespace caesura
