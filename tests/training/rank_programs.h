// SPDX-License-Identifier: Apache-2.0
// Programs of ranks, each drawn from a seed: a model, the options of its steps, and what happens to
// it. And the values that are right: those of one process.
#ifndef CAESURA_TESTS_TRAINING_RANK_PROGRAMS_H_
#define CAESURA_TESTS_TRAINING_RANK_PROGRAMS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/training/rank_session.h"
#include "training/session/option_table.h"

namespace caesura::testing {

class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  int operator()(size_t below) { return static_cast<int>(random_() % below); }
  bool OneIn(size_t chances) { return (*this)(chances) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>((*this)(choices.size()))];
  }
  float Noise() { return static_cast<float>((*this)(2001)) / 1000 - 1; }

 private:
  std::mt19937_64 random_;
};

// One process does this, which is right.
enum class Reference {
  kJoined,   // one step with the rows of all ranks and micro-steps in one batch
  kOrdered,  // each logical shard, in turn; the same bits
  kByHand,   // the mean of the gradients that each rank has for itself, and an update by it
};

// By rank, by micro-step.
using RankBatches = std::vector<std::vector<NamedValues>>;

struct RankProgram {
  uint64_t seed = 0;
  int ranks = 2, later_ranks = 0;  // those that go on from a checkpoint; 0: none do
  int updates = 3, saves_at = 0;
  Reference reference = Reference::kByHand;
  std::string text, other_text;           // of the model; and with another op in it
  std::vector<std::string> vectors = {};  // parameters of rank 1
  TrainingOptions options;
  bool normalizes = false, has_length = false, varies = false, is_smooth = true;
  bool ranks_begin_apart = false;
  int later_shard = 0, restored_by = -1;  // the one rank that opens the checkpoint; -1: all do
  int rate_changes_at = -1;               // before this update all ranks are given another rate
  int create_spoiled_by = -1, step_spoiled_by = -1,
      spoiled_at = 0;  // ranks that come with other facts
  uint64_t spoil = 0;

  bool ordered() const { return reference == Reference::kOrdered; }
  bool over_tokens() const { return options.step.mean_over == MeanOver::kTokens; }
  bool caller_decides() const { return options.step.accumulation_steps == 0; }
  // Half precision in the exchange: a rounding of each gradient, and of each sum of two.
  double tolerance() const {
    return options.step.exchange_dtype == DType::kUndefined ? 2e-5 : 2e-2;
  }
  int micro_steps(int update, int size) const {
    if (ordered()) return options.ranks.logical_shards / size;
    if (!caller_decides()) return options.step.accumulation_steps;
    Draws draw(seed * 1000 + static_cast<uint64_t>(update));
    return 1 + draw(3);
  }

  RealModel Make() const {
    RealModel real = MakeRealModel(text, 1);
    real.options = options;
    real.options.providers = {TrainingCpu()};
    return real;
  }
  NamedValues Batch(int update, int rank, int micro_step) const;
  RankBatches Batches(int update, int size) const {
    RankBatches out(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) {
      for (int m = 0; m < micro_steps(update, size); ++m)
        out[static_cast<size_t>(r)].push_back(Batch(update, r, m));
    }
    return out;
  }
  std::string ToString() const;
};

inline NamedValues RankProgram::Batch(int update, int rank, int micro_step) const {
  Draws draw(seed * 1'000'003 + static_cast<uint64_t>((update * 8 + rank) * 16 + micro_step));
  // A batch norm of one or two rows makes much of roundings.
  const int64_t rows = varies ? (normalizes ? 3 : 1) + draw(5) : 4,
                length = varies ? 1 + draw(4) : 3;
  Tensor x = Tensor::Zeros(DType::kFloat32, has_length ? Shape{rows, length, 3} : Shape{rows, 3});
  for (int64_t e = 0; e < x.elements(); ++e) x.data<float>()[e] = draw.Noise();
  const bool classes = options.step.loss.kind == Loss::Kind::kCrossEntropy;
  Tensor labels = classes ? Tensor::Zeros(DType::kInt64, Shape{rows})
                          : Tensor::Zeros(DType::kFloat32, Shape{rows, 3});
  for (int64_t e = 0; e < labels.elements(); ++e) {
    if (!classes) labels.data<float>()[e] = draw.Noise();
    else labels.data<int64_t>()[e] = e > 0 && varies && draw.OneIn(4) ? -100 : draw(3);
  }
  return {{"x", std::move(x)}, {"labels", std::move(labels)}};
}

inline std::string RankProgram::ToString() const {
  std::ostringstream out;
  out << ranks << " ranks, then " << later_ranks << " at update " << saves_at << ", reference "
      << static_cast<int>(reference) << (varies ? ", sizes vary" : "")
      << (ranks_begin_apart ? ", begin apart" : "") << ", later shard " << later_shard << "\n";
  const TrainingOptions plain;
  for (const TrainingOption& option : TrainingOptionTable()) {
    if (option.get(options) == option.get(plain)) continue;
    out << option.name << " = ";
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::vector<std::string>>) {
            for (const std::string& name : value) out << name << " ";
          } else {
            out << value;
          }
        },
        option.get(options));
    out << "; ";
  }
  out << DescribeUpdate(options.step.optimizer).op_type << " " << options.step.optimizer.index()
      << ", " << options.step.groups.size() << " groups; spoiled " << create_spoiled_by << " "
      << step_spoiled_by << " at " << spoiled_at << "\n"
      << text;
  return out.str();
}

inline bool IsStatistic(const std::string& name) {
  return name.rfind("mean", 0) == 0 || name.rfind("var", 0) == 0;
}

// The text of a model, layer by layer.
inline void DrawModel(Draws& draw, RankProgram& program, bool per_row) {
  std::ostringstream inputs, nodes;
  std::vector<std::string> names;
  const auto parameter = [&](const std::string& type, const std::string& name) {
    inputs << ", " << type << " " << name;
    names.push_back(name);
    if (type.find(',') == type.npos) program.vectors.push_back(name);
  };
  program.has_length = !per_row && draw.OneIn(3);
  std::string h = "x", weight;
  int width = 3, tied_in = 0, tied_out = 0;
  for (int i = 0, depth = 1 + draw(3); i < depth; ++i) {
    const std::string n = std::to_string(i);
    const int out = draw.OneIn(2) && i > 0 ? width : 4 + draw(3);
    const bool is_tied = tied_in == width && tied_out == out && draw.OneIn(2);
    if (!is_tied) {
      weight = "w" + n;
      parameter("float[" + std::to_string(width) + "," + std::to_string(out) + "]", weight);
      tied_in = width;
      tied_out = out;
    }
    const std::string vector = "float[" + std::to_string(out) + "]";
    nodes << "m" << n << " = MatMul (" << h << ", " << weight << ")\n";
    std::string a = "a" + n;
    const bool normalizes = !per_row && !program.has_length && draw.OneIn(4);
    if (!normalizes) {
      parameter(vector, "b" + n);
      nodes << "a" << n << " = Add (m" << n << ", b" << n << ")\n";
    }
    if (normalizes) {  // no bias before it: its gradient would be roundings
      program.normalizes = true;
      a = "m" + n;
      for (const char* kind : {"scale", "shift", "mean", "var"}) parameter(vector, kind + n);
      nodes << "n" << n << " = BatchNormalization (" << a << ", scale" << n << ", shift" << n
            << ", mean" << n << ", var" << n << ")\n";
      a = "n" + n;
    } else if (draw.OneIn(4)) {
      parameter(vector, "lnscale" + n);
      parameter(vector, "lnbias" + n);
      nodes << "n" << n << " = LayerNormalization <epsilon = 0.01> (" << a << ", lnscale" << n
            << ", lnbias" << n << ")\n";
      a = "n" + n;
    }
    const std::string op = draw.Of<std::string>({"Tanh", "Sigmoid", "Softplus"});
    nodes << "r" << n << " = " << op << " (" << a << ")\n";
    if (width == out && draw.OneIn(2)) {
      nodes << "s" << n << " = Add (r" << n << ", " << h << ")\n";
      h = "s" + n;
    } else {
      h = "r" + n;
    }
    width = out;
  }
  const std::string square = "float[" + std::to_string(width) + "," + std::to_string(width) + "]";
  if (program.has_length) {
    nodes << "p = ReduceMean <keepdims = 0> (" << h << ", axis1)\n";
    h = "p";
  }
  if (!per_row && draw.OneIn(4)) {  // an expert, which is given the rows that values choose
    parameter(square, "we");
    nodes << "gate = ReduceMean <keepdims = 0> (" << h
          << ", axis1) chosen = Greater (gate, level)\n"
          << "taken = Compress <axis = 0> (" << h << ", chosen) em = MatMul (taken, we)\n"
          << "et = Tanh (em) es = ReduceSum <keepdims = 1> (et, axis0) he = Add (" << h
          << ", es)\n";
    h = "he";
  }
  const std::string head = "float[" + std::to_string(width) + ",3]";
  parameter(head, "head");
  parameter("float[3]", "head_bias");
  nodes << "sm = MatMul (" << h << ", head) scores = Add (sm, head_bias)\n";
  std::string outputs = "float[batch,3] scores";
  if (draw.OneIn(3)) {  // another head, which no gradient reaches
    inputs << ", " << head << " spare";
    nodes << "aux = MatMul (" << h << ", spare)\n";
    outputs += ", float[batch,3] aux";
  }
  const auto text = [&](const std::string& body) {
    return "net (float[batch," + std::string(program.has_length ? "length," : "") + "3] x" +
           inputs.str() + ") => (" + outputs +
           ") <int64[1] axis0 = {0}, int64[1] axis1 = {1}, float level = {0.2}> {\n" + body + "}";
  };
  program.text = text(nodes.str());
  std::string other = nodes.str();
  for (const auto& [op, instead] : {std::pair<std::string, std::string>("Tanh (", "Relu ("),
                                    {"Sigmoid (", "Relu ("},
                                    {"Softplus (", "Relu ("}}) {
    if (const size_t at = other.find(op); at != other.npos) {
      other.replace(at, op.size(), instead);
      break;
    }
  }
  program.other_text = text(other);
  for (const std::string& name : names) {
    if (name != "head" && !IsStatistic(name) && draw.OneIn(6))
      program.options.step.frozen.push_back(name);
  }
}

// Steep ones make large steps of small roundings.
inline Optimizer DrawOptimizer(Draws& draw, bool smooth) {
  const bool flag = draw.OneIn(2);
  const double decay = draw.OneIn(2) ? 0 : 0.1;
  switch (draw(smooth ? 11 : 16)) {
    case 0: return Sgd{.learning_rate = 0.1, .weight_decay = decay};
    case 1: return Sgd{.learning_rate = 0.1, .momentum = 0.9, .nesterov = flag};
    case 2: return Adam{.learning_rate = 0.01, .epsilon = 1e-3, .amsgrad = flag};
    case 3: return AdamW{.learning_rate = 0.01, .epsilon = 1e-3, .weight_decay = decay};
    case 4: return Adamax{.learning_rate = 0.01, .epsilon = 1e-3, .weight_decay = decay};
    case 5: return Adagrad{.learning_rate = 0.1, .epsilon = 1e-3};
    case 6: return Adadelta{.learning_rate = 1, .epsilon = 1e-3};
    case 7:
      return Rmsprop{
          .learning_rate = 0.01, .epsilon = 1e-2, .momentum = flag ? 0.9 : 0, .centered = flag};
    case 8: return RAdam{.learning_rate = 0.01, .epsilon = 1e-3};
    case 9: return NAdam{.learning_rate = 0.01, .epsilon = 1e-3};
    case 10: return Asgd{.learning_rate = 0.1};
    case 11: return Lamb{.learning_rate = 0.01, .epsilon = 1e-3};
    case 12: return Adafactor{.learning_rate = 0.01};
    case 13: return Rprop{.learning_rate = 0.01};
    case 14: return Muon{.learning_rate = 0.01};
    default: return Lion{.learning_rate = 0.01};
  }
}

// True if its state may be divided among ranks.
inline bool IsDivisible(const Optimizer& optimizer) {
  return !std::holds_alternative<NAdam>(optimizer) && !std::holds_alternative<Asgd>(optimizer) &&
         !std::holds_alternative<Lamb>(optimizer) && !std::holds_alternative<Muon>(optimizer) &&
         !std::holds_alternative<Adafactor>(optimizer);
}

inline RankProgram DrawProgram(uint64_t seed) {
  Draws draw(seed * 0x9e3779b97f4a7c15ull + 1);
  RankProgram out;
  out.seed = seed;
  out.ranks = 2 + draw(3);
  const int kind = draw(8);
  out.reference = kind == 0  ? Reference::kOrdered
                  : kind < 4 ? Reference::kJoined
                             : Reference::kByHand;
  TrainingOptions& options = out.options;
  StepOptions& step = options.step;
  options.threads = 1;
  options.seed = 11;
  const bool joined = out.reference != Reference::kByHand;
  DrawModel(draw, out, joined);
  step.loss = draw.OneIn(3) ? Loss::MeanSquaredError("labels") : Loss::CrossEntropy("labels");
  step.optimizer = DrawOptimizer(draw, out.reference == Reference::kJoined || out.normalizes);
  step.mean_over = kind == 1 ? MeanOver::kTokens : MeanOver::kBatches;
  out.varies = kind == 1 || (!joined && draw.OneIn(2));
  step.accumulation_steps = out.ordered() ? 1 : draw.Of<int>({1, 1, 1, 2, 3, 0});
  if (out.over_tokens() && out.caller_decides()) step.accumulation_steps = 2;
  step.commit = !out.ordered() && draw.OneIn(4) ? CommitMode::kEagerConsume : CommitMode::kLate;
  const bool late = step.commit == CommitMode::kLate;
  step.clip_norm = late && draw.OneIn(3) ? draw.Of<double>({0.05, 0.3, 10}) : 0;
  const bool plain = late && !out.ordered();
  if (!joined && draw.OneIn(5))
    step.precision = late && draw.OneIn(2) ? DType::kFloat16 : DType::kBFloat16;
  step.loss_scaling.initial_scale = 1024;
  options.ranks.shard = plain && draw.OneIn(2) ? 1 + draw(2) : 0;
  if (!IsDivisible(step.optimizer) && !draw.OneIn(16)) options.ranks.shard = 0;
  out.later_shard = options.ranks.shard > 0 ? draw(3) : 0;
  if (std::holds_alternative<Sgd>(step.optimizer) && options.ranks.shard == 0 && !out.ordered() &&
      draw.OneIn(3))
    step.exchange_dtype = DType::kBFloat16;
  options.ranks.bucket_bytes = draw.Of<int64_t>({1, 40, 100, 250, 1 << 20});
  options.ranks.broadcast_buffers = !out.normalizes || !draw.OneIn(3);
  options.undo = draw.OneIn(4);
  if (draw.OneIn(3)) {
    ParameterGroup group{.names = {"head*"}, .learning_rate_scale = draw.Of<double>({0.5, 1, 2})};
    if (draw.OneIn(2)) group.weight_decay = 0.05;
    step.groups.push_back(group);
  }
  if (std::holds_alternative<Muon>(step.optimizer)) {  // it takes matrices
    std::vector<std::string> names;
    for (const std::string& name : out.vectors) {
      const bool is_frozen = std::count(step.frozen.begin(), step.frozen.end(), name) > 0;
      if (!is_frozen && !IsStatistic(name)) names.push_back(name);
    }
    step.groups = {{.names = names, .optimizer = Sgd{.learning_rate = 0.1}}};
  }
  out.saves_at = 1 + draw(2);
  out.later_ranks = draw.OneIn(2) ? 1 + draw(4) : 0;
  if (out.ordered()) {
    const int shards = out.ranks << draw(2);
    options.ranks.logical_shards = shards;
    const int later = std::max(out.later_ranks, 1);
    const bool fits = shards % later == 0 &&
                      (later == 1 || std::has_single_bit(static_cast<unsigned>(shards / later)));
    if (!fits) out.later_ranks = 1;
  }
  if (out.later_ranks > 1 && options.ranks.shard == 0 && draw.OneIn(2))
    out.restored_by = draw(static_cast<size_t>(out.later_ranks));
  out.ranks_begin_apart = draw.OneIn(2);
  if (draw.OneIn(4)) out.rate_changes_at = draw(3);
  const bool is_refused = options.ranks.shard > 0 && !IsDivisible(step.optimizer);
  if (!is_refused && draw.OneIn(4)) out.create_spoiled_by = draw(static_cast<size_t>(out.ranks));
  if (draw.OneIn(2)) out.step_spoiled_by = draw(static_cast<size_t>(out.ranks));
  out.spoiled_at = draw(static_cast<size_t>(out.later_ranks > 0 ? out.saves_at : out.updates));
  out.spoil = static_cast<uint64_t>(draw(1'000'000));
  return out;
}

// Tensors one after the other along their first dimension.
inline NamedValues Joined(const RankBatches& batches) {
  NamedValues out;
  for (const char* name : {"x", "labels"}) {
    std::vector<const Tensor*> parts;
    int64_t rows = 0;
    for (const auto& of_rank : batches) {
      for (const NamedValues& batch : of_rank) {
        parts.push_back(&batch.at(name).tensor());
        rows += parts.back()->shape().dims()[0];
      }
    }
    std::vector<int64_t> dims = parts.front()->shape().dims();
    dims[0] = rows;
    Tensor all = Tensor::Zeros(parts.front()->dtype(), Shape(dims));
    char* at = static_cast<char*>(all.raw());
    for (const Tensor* part : parts) {
      std::memcpy(at, part->raw(), part->bytes());
      at += part->bytes();
    }
    out.emplace(name, std::move(all));
  }
  return out;
}

// Trains in this process as the ranks of a program should.
class OneProcess {
 public:
  explicit OneProcess(const RankProgram& program) : program_(program) {
    RealModel real = program.Make();
    real.options.ranks = {};
    real.options.undo = false;
    StepOptions& step = real.options.step;
    step.exchange_dtype = DType::kUndefined;
    step.commit = CommitMode::kLate;
    if (program.reference != Reference::kByHand) {
      if (program.ordered())
        real.options.ranks.logical_shards = program.options.ranks.logical_shards;
      else step.accumulation_steps = 1;
      updating_ = SessionOf(real);
      return;
    }
    step.accumulation_steps = 1;
    step.clip_norm = 0;
    step.groups.clear();
    step.optimizer = Sgd{.learning_rate = 0};
    step.keep_gradients = true;
    for (int r = 0; r < 4; ++r) own_.push_back(SessionOf(real));
    MakeUpdating();
  }

  // One update. Returns the loss that ranks tell of it.
  double Update(const RankBatches& batches) {
    if (program_.ordered()) {
      double loss = 0;
      for (const auto& of_rank : batches) {
        for (const NamedValues& batch : of_rank) loss = updating_->Step(batch).value();
      }
      return loss;
    }
    if (program_.reference == Reference::kJoined) return updating_->Step(Joined(batches)).value();
    NamedValues feeds = {{"zero", Tensor::Scalar<float>(0)}};
    double loss = 0;
    for (size_t r = 0; r < batches.size(); ++r) {
      double of_rank = 0;
      for (const NamedValues& batch : batches[r]) {
        of_rank += own_[r]->Step(batch).value();
        for (size_t i = 0; i < trained_.size(); ++i) {
          const Tensor& g = own_[r]->runs().gradients()[i].tensor();
          auto [sum, is_new] = feeds.emplace("gradient." + trained_[i], RuntimeValue());
          if (is_new) sum->second = Tensor::Zeros(DType::kFloat32, g.shape());
          const auto share = 1 / static_cast<double>(batches.size() * batches[r].size());
          for (int64_t e = 0; e < g.elements(); ++e)
            sum->second.tensor().data<float>()[e] += static_cast<float>(g.data<float>()[e] * share);
        }
      }
      loss += of_rank / static_cast<double>(batches[r].size() * batches.size());
    }
    EXPECT_TRUE(updating_->Step(feeds).ok());
    for (const std::string& name : trained_) {
      for (const auto& own : own_)
        EXPECT_TRUE(own->parameters().Set(name, updating_->parameters().Get(name).value()).ok());
    }
    return loss;
  }
  void set_learning_rate(double rate) { updating_->runs().set_learning_rate(rate); }
  // All ranks have the running statistics of rank 0.
  void TakeStatistics() {
    for (const std::string& name :
         own_.empty() ? std::vector<std::string>() : own_[0]->parameters().Names()) {
      for (const auto& own : own_)
        EXPECT_TRUE(own->parameters()
                        .Set(name, own_[0]->parameters().Get(name).value().Clone().value())
                        .ok());
    }
  }
  // A parameter or a statistic of a rank.
  Tensor Get(const std::string& name, int rank) const {
    const bool is_updated =
        own_.empty() || std::find(trained_.begin(), trained_.end(), name) != trained_.end();
    return (is_updated ? *updating_ : *own_[static_cast<size_t>(rank)])
        .parameters()
        .Get(name)
        .value();
  }

 private:
  // A session that is fed gradients.
  void MakeUpdating() {
    RealModel update =
        MakeRealModel("update (float zero) => (float none) { none = Neg (zero) }", 1);
    update.options = program_.options;
    update.options.providers = {TrainingCpu()};
    update.options.ranks = {};
    StepOptions& step = update.options.step;
    const SessionParameters& parameters = own_[0]->parameters();
    const std::vector<std::string> names = parameters.Names();
    trained_.assign(names.begin(), names.begin() + parameters.trained());
    for (const std::string& name : trained_)
      update.model.graph->AddInitializer(name, parameters.Get(name).value().Clone().value());
    step.loss = Loss::Output("none");
    step.trainable = trained_;
    step.frozen = {};
    step.accumulation_steps = 1;
    step.precision = DType::kFloat32;
    step.exchange_dtype = DType::kUndefined;
    step.commit = CommitMode::kLate;
    step.gradient_inputs = true;
    updating_ = SessionOf(update);
  }

  const RankProgram& program_;
  std::vector<std::string> trained_;
  std::vector<std::unique_ptr<TrainingSession>> own_;  // by rank: gradients and statistics
  std::unique_ptr<TrainingSession> updating_;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_RANK_PROGRAMS_H_
