// SPDX-License-Identifier: Apache-2.0
// Programs of ranks, each drawn from a seed: all ranks have the same bits and do what one process
// does, or refuse with words that name the difference. CAESURA_RANK_PROGRAM=n: only that program,
// as a failure prints it; n:m: from n to below m. CAESURA_LONG=1: 2,500 programs instead of 60.
#include "tests/training/rank_programs.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/core/distributed/virtual_ranks.h"
#include "tests/temporary_folder.h"
#include "tests/training/simulated_sessions.h"

namespace caesura::testing {
namespace {

// Over all programs so far.
struct ProgramCounts {
  int programs = 0, updates = 0, not_made = 0, create_refusals = 0, step_refusals = 0, feeds = 0,
      restored = 0, by_reference[3] = {};
};

class RankProgramRun {
 public:
  RankProgramRun(uint64_t seed, const std::string& folder, ProgramCounts& counts)
      : program_(DrawProgram(seed)), path_(folder + "/program"), counts_(counts) {}

  void Go() {
    ++counts_.programs;
    Phase(program_.ranks, 0, program_.later_ranks > 0 ? program_.saves_at : program_.updates);
    if (program_.later_ranks > 0 && problems_.empty() && !refused_) {
      if (one_) one_->TakeStatistics();
      ++counts_.restored;
      Phase(program_.later_ranks, program_.saves_at, program_.updates);
    }
    counts_.not_made += refused_;
    counts_.by_reference[static_cast<int>(program_.reference)] += !refused_;
    std::string all;
    for (const std::string& problem : problems_) all += "\n  " + problem;
    EXPECT_TRUE(all.empty()) << all << "\n"
                             << program_.ToString()
                             << "\nAgain: CAESURA_RANK_PROGRAM=" << program_.seed
                             << " caesura_tests --gtest_filter=RankPrograms.*";
  }

 private:
  struct Member {
    std::unique_ptr<TrainingSession> session;
    std::vector<Values> predictions;
    bool has_ended = false;
  };

  void Problem(int rank, const std::string& text) {
    problems_.push_back("rank " + std::to_string(rank) + " of " + std::to_string(ranks_->size()) +
                        ": " + text);
  }

  // Updates first to last, on so many new ranks.
  void Phase(int size, int first, int last) {
    const bool is_first = first == 0;
    VirtualRanks ranks(size, {.seed = program_.seed});
    ranks_ = &ranks;
    first_ = first;
    last_ = last;
    members_ = std::vector<Member>(static_cast<size_t>(size));
    states_.clear();
    losses_.clear();
    made_.clear();
    ranks.Run([this](int r) { Live(r); });
    for (const std::string& complaint : ranks.complaints()) Problem(-1, complaint);
    if (is_first && !made_.empty()) CheckMade();
    for (int r = 0; r < size && !refused_; ++r) {
      if (!members_[r].has_ended) Problem(r, "has not come to the end");
    }
    if (problems_.empty() && !refused_) CheckEnd();
    members_.clear();
  }

  // The ranks' sessions were not made, though nothing was spoiled: all say so in the same words.
  void CheckMade() {
    refused_ = true;
    for (size_t r = 0; r < members_.size(); ++r) {
      const auto found = made_.find(static_cast<int>(r));
      const StatusCode code = found == made_.end() ? StatusCode::kOk : found->second.code();
      if (code != StatusCode::kInvalidArgument && code != StatusCode::kUnsupported)
        Problem(static_cast<int>(r), "is not refused as others are");
      else if (found->second.message() != made_.begin()->second.message())
        Problem(static_cast<int>(r), "is refused in other words: " + found->second.ToString());
    }
  }

  RealModel ModelOf(int r) const {
    RealModel real = program_.Make();
    if (ranks_->size() > 1) real.options.ranks.communicator = ranks_->communicator(r);
    if (first_ > 0 && program_.options.ranks.shard > 0)
      real.options.ranks.shard = program_.later_shard;
    Draws draw(program_.seed + static_cast<uint64_t>(r));
    real.options.undo ^= draw.OneIn(4);  // options of one rank
    real.options.memory_budget = draw.OneIn(4) ? size_t{1} << 30 : 0;
    if (program_.ranks_begin_apart && r > 0) SetApart(*real.model.graph, draw);
    return real;
  }
  // Parameters, frozen ones and statistics that rank 0 does not have.
  static void SetApart(Graph& graph, Draws& draw) {
    std::map<std::string, Value*> values;  // in the same order in each process
    for (const auto& [value, tensor] : graph.initializers())
      values.emplace(value->name(), graph.FindValue(value->name()));
    for (const auto& [name, value] : values) {
      const Tensor& own = *graph.Initializer(value);
      if (own.dtype() != DType::kFloat32 || own.shape().rank() == 0) continue;
      Tensor other = own.Clone().value();
      for (int64_t e = 0; e < other.elements(); ++e)
        other.data<float>()[e] += 0.5f * (1 + draw.Noise());
      graph.SetInitializer(value, std::move(other));
    }
  }

  void Live(int r) {
    Member& own = members_[r];
    if (!Make(r, own)) return;
    TrainingSession& session = *own.session;
    if (first_ > 0 && !Open(r, session)) return;
    for (int u = first_; u < last_; ++u) {
      if (u == program_.rate_changes_at) session.runs().set_learning_rate(kLaterRate);
      const int micro_steps = program_.micro_steps(u, ranks_->size());
      for (int m = 0; m < micro_steps; ++m) {
        const bool is_last = m + 1 == micro_steps;
        const NamedValues batch = program_.Batch(u, r, m);
        if (m == spoiled_micro_step(micro_steps) && first_ == 0 && u == program_.spoiled_at &&
            program_.step_spoiled_by >= 0 && !Spoil(r, session, batch, is_last))
          return;
        const auto loss =
            program_.caller_decides() && !is_last ? session.Accumulate(batch) : session.Step(batch);
        if (!loss.ok())
          return Problem(r, "update " + std::to_string(u) + ": " + loss.status().ToString());
      }
      Compare(r, u, session);
    }
    own.predictions.push_back(session.Predict({{"x", program_.Batch(0, 0, 0).at("x")}}).value());
    const bool is_divided = program_.options.ranks.shard > 0 && ranks_->size() > 1;
    if (last_ < program_.updates && (is_divided || r == 0)) {
      const Status saved = session.Save(path_);
      if (!saved.ok()) return Problem(r, saved.ToString());
    }
    own.has_ended = true;
  }

  // Opens the checkpoint, on all ranks or on one, whose values the others take.
  bool Open(int r, TrainingSession& session) {
    const bool all = program_.restored_by < 0;
    Status status;
    if (all || r == program_.restored_by) status = session.Restore(path_).status();
    if (status.ok() && !all) status = session.Regroup(ranks_->communicator(r));
    if (program_.rate_changes_at >= 0 && program_.rate_changes_at < first_)
      session.runs().set_learning_rate(kLaterRate);
    if (!status.ok()) Problem(r, status.ToString());
    return status.ok();
  }

  // --- making sessions ---
  bool Make(int r, Member& own) {
    if (first_ == 0 && program_.create_spoiled_by >= 0 && !RefuseToMake(r)) return false;
    RealModel real = ModelOf(r);
    auto made = TrainingSession::Create(std::move(real.model), real.options);
    if (made.ok()) return own.session = *std::move(made), true;
    made_.emplace(r, made.status());
    if (first_ > 0) Problem(r, made.status().ToString());
    return false;
  }

  // One rank comes with another option or model.
  bool RefuseToMake(int r) {
    RealModel real = ModelOf(r);
    RealModel spoiled = ModelOf(r);
    const std::string words = SpoilModel(spoiled);
    if (words.empty()) return true;
    if (r == program_.create_spoiled_by) real = std::move(spoiled);
    const auto made = TrainingSession::Create(std::move(real.model), real.options);
    ExpectRefusal(r, "Create", made.status(), words, program_.create_spoiled_by);
    if (r == 0) ++counts_.create_refusals;
    return problems_.empty();
  }

  // The difference in the words of the refusal; empty: nothing may be spoiled.
  std::string SpoilModel(RealModel& real) const {
    TrainingOptions& options = real.options;
    StepOptions& step = options.step;
    const TrainingOptions before = options;
    // Refused by one rank, before it compares: no test of the comparison.
    for (uint64_t i = 0; i < 16; ++i) {
      options = before;
      std::string words;
      switch ((program_.spoil + i) % 16) {
        case 0: words = "clip_norm", step.clip_norm += 1; break;
        case 1: words = "accumulation_steps", step.accumulation_steps += 1; break;
        case 2:
          words = "shard",
          options.ranks.shard = options.ranks.shard == 0 && IsDivisible(step.optimizer) ? 1 : 0;
          break;
        case 3: words = "bucket_bytes", options.ranks.bucket_bytes += 8; break;
        case 4: words = "learning_rate", step.optimizer = WithRate(step.optimizer, 0.02); break;
        case 5:
          words = "group",
          step.groups.insert(step.groups.begin(), {.names = {"head"}, .weight_decay = 0.3});
          break;
        case 6: words = "precision", step.precision = Other(step.precision); break;
        case 7: words = "frozen", step.frozen.push_back("head_bias"); break;
        case 8:
          words = "commit";
          step.commit =
              step.commit == CommitMode::kLate ? CommitMode::kEagerConsume : CommitMode::kLate;
          break;
        case 9:
          words = "the optimizer";
          if (step.optimizer.index() == 0) step.optimizer = Adagrad{};
          else step.optimizer = Sgd{};
          break;
        case 10:
          words = "node ";
          real = WithText(real, program_.other_text);
          break;
        case 11: words = "mean_over", step.mean_over = MeanOver::kTokens; break;
        case 12: words = "exchange_dtype", step.exchange_dtype = DType::kBFloat16; break;
        case 13:
          words = "the scale of the rate of group 0";
          if (!step.groups.empty()) step.groups[0].learning_rate_scale *= 1.5;
          break;
        case 14: words = "the class that the loss ignores", step.loss.ignore_index = 1; break;
        default: words = "broadcast_buffers", options.ranks.broadcast_buffers ^= true; break;
      }
      const bool is_same = Same(before, options) && words != "node ";
      const bool fits = CheckConflicts(options, true).ok() && IsMade(real);
      if (!is_same && fits) return words;
      if (words == "node ") real = WithText(real, program_.text);
    }
    return "";
  }
  static DType Other(DType precision) {
    return precision == DType::kBFloat16 ? DType::kFloat32 : DType::kBFloat16;
  }
  static Optimizer WithRate(Optimizer optimizer, double rate) {
    std::visit([&](auto& own) { own.learning_rate = rate; }, optimizer);
    return optimizer;
  }
  static RealModel WithText(const RealModel& real, const std::string& text) {
    RealModel out = MakeRealModel(text, 1);
    out.options = real.options;
    return out;
  }
  static bool Same(const TrainingOptions& a, const TrainingOptions& b) {
    for (const TrainingOption& option : TrainingOptionTable()) {
      if (option.get(a) != option.get(b)) return false;
    }
    const auto scale = [](const TrainingOptions& o) {
      return o.step.groups.empty() ? 0 : o.step.groups[0].learning_rate_scale;
    };
    return a.step.optimizer.index() == b.step.optimizer.index() && scale(a) == scale(b) &&
           a.step.groups.size() == b.step.groups.size() &&
           LearningRate(a.step.optimizer) == LearningRate(b.step.optimizer) &&
           a.step.loss.ignore_index == b.step.loss.ignore_index;
  }
  // A rank by itself takes it.
  static bool IsMade(const RealModel& real) {
    RealModel copy = real.Clone();
    copy.options.ranks.communicator = nullptr;
    return TrainingSession::Create(std::move(copy.model), copy.options).ok();
  }

  void ExpectRefusal(int r, const std::string& call, const Status& status, const std::string& words,
                     int by) {
    const std::string& text = status.message();
    const bool names = text.find(words) != text.npos || text.find(" more.") != text.npos;
    const std::string on_rank = "on rank " + std::to_string(std::max(by, 1));
    if (status.code() != StatusCode::kInvalidArgument || !names || text.find(on_rank) == text.npos)
      Problem(r, call + " should be refused, naming '" + words + "' " + on_rank + ": " +
                     status.ToString());
  }

  // --- a step that differs ---
  // The last one; with shard=2 also others exchange.
  int spoiled_micro_step(int micro_steps) const {
    const bool any = program_.options.ranks.shard == 2;
    return any ? static_cast<int>(program_.spoil / 7 % static_cast<uint64_t>(micro_steps))
               : micro_steps - 1;
  }
  // True if the ranks go on.
  bool Spoil(int r, TrainingSession& session, const NamedValues& batch, bool is_last) {
    const bool is_mine = r == program_.step_spoiled_by;
    TrainingProgress& progress = session.progress();
    std::string words, name;
    switch (program_.spoil % 6) {
      case 0: return Misfeed(r, session);
      case 1: words = "learning_rate"; break;
      case 2: words = "the number of updates"; break;
      case 3:
        words = "the number of micro-steps";
        if (program_.caller_decides() && program_.over_tokens()) return true;
        break;
      default: {
        const std::vector<std::string> names = session.parameters().Names();
        name = names[program_.spoil / 6 % static_cast<size_t>(session.parameters().trained())];
        const ParameterSet& set = session.parameters().set();
        for (int i = 0; program_.spoil % 6 == 5 && i < session.parameters().whole(); ++i) {
          if (set.name(i).rfind("optimizer.", 0) == 0 && set.tensor(i).dtype() == DType::kFloat32)
            name = set.name(i);
        }
        words = "the hash of the values of '" + name + "'";
      }
    }
    const double rate = progress.base_rate;
    std::optional<Tensor> value;
    if (is_mine && words == "learning_rate") session.runs().set_learning_rate(rate * 1.5);
    if (is_mine && words == "the number of updates") progress.updates += 3;
    int64_t& micro_steps = program_.caller_decides() ? progress.since_update : progress.micro_steps;
    const int64_t more = program_.caller_decides() ? program_.options.ranks.shard != 2
                                                   : progress.micro_steps_to_update;
    if (is_mine && words == "the number of micro-steps") micro_steps += more;
    if (is_mine && !name.empty()) {
      value = session.parameters().Get(name).value().Clone().value();
      Tensor other = value->Clone().value();
      for (int64_t e = 0; e < other.elements(); ++e) other.data<float>()[e] += 1;
      EXPECT_TRUE(session.parameters().Set(name, other).ok());
    }
    const RankState before(session);
    // A rank that updates too early, or not, where micro-steps exchange, too.
    const bool turns =
        is_mine && words == "the number of micro-steps" && program_.options.ranks.shard == 2;
    const bool adds = program_.caller_decides() && is_last == turns;
    const Status status = (adds ? session.Accumulate(batch) : session.Step(batch)).status();
    ExpectRefusal(r, "Step", status, words, program_.step_spoiled_by);
    for (const std::string& changed : RankState(session).Differences(before, true, true))
      Problem(r, "a refused step has changed " + changed);
    if (is_mine && words == "learning_rate") session.runs().set_learning_rate(rate);
    if (is_mine && words == "the number of updates") progress.updates -= 3;
    if (is_mine && words == "the number of micro-steps") micro_steps -= more;
    if (value) {
      EXPECT_TRUE(session.parameters().Set(name, *value).ok());
    }
    if (r == 0) ++counts_.step_refusals;
    return problems_.empty();
  }
  // Feeds that do not fit fail on their rank only, and the others wait.
  bool Misfeed(int r, TrainingSession& session) {
    if (r != program_.step_spoiled_by) return true;
    const Status status = session.Step({{"x", Tensor::Zeros(DType::kInt64, Shape{2, 3})}}).status();
    if (status.code() != StatusCode::kInvalidArgument)
      Problem(r, "wrong feeds: " + status.ToString());
    ++counts_.feeds;
    return problems_.empty();
  }

  // --- what is right ---
  // After an update: with the first rank that has come so far.
  void Compare(int r, int update, const TrainingSession& session) {
    const RankState state(session);
    const auto [first, is_new] = states_.emplace(update, state);
    for (const std::string& name : state.Differences(first->second, false, false)) {
      if (!IsStatistic(name) || program_.options.ranks.broadcast_buffers)
        Problem(r,
                "update " + std::to_string(update) + ": " + name + " is not that of another rank");
    }
    const auto loss = losses_.emplace(update, session.progress().update_loss).first->second;
    if (loss != session.progress().update_loss)
      Problem(r, "update " + std::to_string(update) + " has another loss than on another rank");
  }
  void CheckEnd() {
    if (one_ == nullptr) one_ = std::make_unique<OneProcess>(program_);
    for (int u = first_; u < last_; ++u) {
      if (u == program_.rate_changes_at) one_->set_learning_rate(kLaterRate);
      ++counts_.updates;
      const double want = one_->Update(program_.Batches(u, ranks_->size())), got = losses_.at(u);
      const double error = std::abs(got - want) / (1 + std::abs(want));
      if (!(program_.ordered() ? got == want : error <= program_.tolerance()))
        Problem(0, "update " + std::to_string(u) + " has the loss " + std::to_string(got) +
                       ", and one process " + std::to_string(want));
    }
    const bool alike = program_.options.ranks.broadcast_buffers || !program_.normalizes;
    for (int r = 0; r < ranks_->size(); ++r) {
      const SessionParameters& parameters = members_[r].session->parameters();
      for (const std::string& name : parameters.Names())
        CheckValue(r, name, parameters.Get(name).value(), one_->Get(name, alike ? 0 : r));
      if (alike && !SameBits(members_[r].predictions[0], members_[0].predictions[0]))
        Problem(r, "predicts otherwise than rank 0");
      RealModel own = program_.Make();
      for (const std::string& name : parameters.FrozenNames()) {
        const Tensor* want = own.model.graph->Initializer(own.model.graph->FindValue(name));
        if (!SameBits(RuntimeValue(parameters.Get(name).value()), RuntimeValue(*want)))
          Problem(r, "frozen '" + name + "' is not that of rank 0");
      }
    }
  }
  void CheckValue(int r, const std::string& name, const Tensor& got, const Tensor& want) {
    if (program_.ordered()) {
      if (!SameBits(RuntimeValue(got), RuntimeValue(want)))
        Problem(r, name + " has not the bits of one process");
      return;
    }
    double difference = 0;
    for (int64_t e = 0; e < want.elements(); ++e) {
      const double error = std::abs(got.data<float>()[e] - want.data<float>()[e]) /
                           (1 + std::abs(want.data<float>()[e]));
      if (!(error <= difference)) difference = error;  // a NaN stays
    }
    if (!(difference <= program_.tolerance()))
      Problem(r, name + " is " + std::to_string(difference) + " from that of one process");
  }

  static constexpr double kLaterRate = 0.03;
  const RankProgram program_;
  const std::string path_;
  ProgramCounts& counts_;
  VirtualRanks* ranks_ = nullptr;
  int first_ = 0, last_ = 0;  // updates of the phase
  std::vector<Member> members_;
  std::unique_ptr<OneProcess> one_;
  std::map<int, RankState> states_;  // by update
  std::map<int, double> losses_;
  std::map<int, Status> made_;  // refusals to make a session, by rank
  bool refused_ = false;
  std::vector<std::string> problems_;
};

TEST(RankPrograms, DoWhatOneProcessDoesOrAreRefused) {
  const TemporaryFolder folder;
  ProgramCounts counts;
  const char* const some = std::getenv("CAESURA_RANK_PROGRAM");
  char* rest = nullptr;
  const uint64_t first = some != nullptr ? std::strtoull(some, &rest, 10) : 0;
  uint64_t last = std::getenv("CAESURA_LONG") != nullptr ? 2500 : 60;
  if (some != nullptr) last = *rest == ':' ? std::strtoull(rest + 1, nullptr, 10) : first + 1;
  for (uint64_t seed = first; seed < last; ++seed) {
    RankProgramRun(seed, folder.path(), counts).Go();
    if (HasFailure()) break;
  }
  std::printf(
      "%d programs (%d joined, %d ordered, %d by hand), %d refused; %d updates; %d refusals to "
      "make "
      "sessions, %d of steps, %d wrong feeds, %d checkpoints\n",
      counts.programs, counts.by_reference[0], counts.by_reference[1], counts.by_reference[2],
      counts.not_made, counts.updates, counts.create_refusals, counts.step_refusals, counts.feeds,
      counts.restored);
  if (some != nullptr) return;
  for (const int count :
       {counts.by_reference[0], counts.by_reference[1], counts.by_reference[2],
        counts.create_refusals, counts.step_refusals, counts.feeds, counts.restored})
    EXPECT_GT(count, 0);
  EXPECT_LE(counts.not_made, counts.programs / 10);
}

}  // namespace
}  // namespace caesura::testing
