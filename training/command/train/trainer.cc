// SPDX-License-Identifier: Apache-2.0
#include "training/command/train/trainer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/base/env.h"
#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/distributed/communicator.h"
#include "core/files/file_system.h"
#include "core/onnx/model_reader.h"
#include "training/files/checkpoint.h"
#include "training/session/exported_step.h"
#include "training/session/option_table.h"
#include "training/files/progress_bar.h"
#include "training/session/rank_group.h"
#include "training/session/run_control.h"

namespace caesura::command {
namespace {

constexpr double kSmoothing = 0.95;
constexpr size_t kMaxLogBytes = size_t{1} << 30;

// The facts that a checkpoint must share with this run, since the order of the examples follows
// from it.
std::map<std::string, Checkpoint::Property> RunFacts(const TrainOptions& options,
                                                     const TrainData& data) {
  return {{"seed", static_cast<int64_t>(options.training.seed)},
          {"batch", options.batch},
          {"accumulate", int64_t{options.training.step.accumulation_steps}},
          {"examples", data.train->size()}};
}

std::string PropertyText(const Checkpoint::Property& property) {
  const auto* number = std::get_if<int64_t>(&property);
  return number != nullptr ? std::to_string(*number) : "something else";
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::Create(const TrainOptions& options) {
  std::unique_ptr<Trainer> trainer(new Trainer(options));
  RETURN_IF_ERROR(trainer->Prepare());
  return trainer;
}

Status Trainer::Prepare() {
  RETURN_IF_ERROR(CheckOptions());
  RETURN_IF_ERROR(JoinRanks());
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(options_.model));
  ASSIGN_OR_RETURN(Model model,
                   ReadModel(exported ? ExportedModelPath(options_.model) : options_.model));
  std::optional<StepOptions> step;
  if (exported) {
    ASSIGN_OR_RETURN(step, ReadStepOptions(model));
    options_.training.step.loss = step->loss;
    options_.training.step.accumulation_steps = step->accumulation_steps;
  }
  RETURN_IF_ERROR(PrepareData(model));
  RETURN_IF_ERROR(PrepareSession(std::move(model), std::move(step)));
  RETURN_IF_ERROR(Restore());
  first_ = session_->progress().updates;
  if (!options_.tensorboard.empty()) {
    ASSIGN_OR_RETURN(events_, EventWriter::Create(options_.tensorboard));
    RETURN_IF_ERROR(events_->AddText("options", OptionsText(), first_));
  }
  return OpenLog();
}

// Options that need another one, or rule each other out.
Status Trainer::CheckOptions() const {
  if (options_.resume && options_.checkpoint.empty())
    return InvalidArgument("--resume needs --checkpoint");
  if (!options_.record.empty() && !options_.training.step.refuse_nonfinite)
    return InvalidArgument("--record needs --refuse-nonfinite");
  if (!options_.snapshot_on.empty() && options_.checkpoint.empty())
    return InvalidArgument("--snapshot-on needs --checkpoint");
  if (options_.training.ranks.shard > 0 && !options_.best.empty())
    return InvalidArgument(
        "--best: with --shard all ranks save together, and only rank 0 validates");
  const int shards = options_.training.ranks.logical_shards;
  if (shards > 0 && options_.batch % shards != 0) {
    return InvalidArgument("--batch: " + std::to_string(shards) +
                           " logical shards are equal parts of each batch, which " +
                           std::to_string(options_.batch) + " examples do not have");
  }
  return {};
}

// The examples, their order, and how many updates there are.
Status Trainer::PrepareData(const Model& model) {
  ASSIGN_OR_RETURN(data_, LoadTrainData(options_, model));
  if (!is_first_rank_) data_.validation = nullptr;
  if (!options_.best.empty() && data_.validation == nullptr)
    return InvalidArgument("--best needs examples to validate");
  ASSIGN_OR_RETURN(sampler_, Sampler::Create({.size = data_.train->size(),
                                              .batch_size = options_.batch,
                                              .seed = options_.training.seed}));
  const double updates_per_epoch = static_cast<double>(sampler_->batches_per_epoch()) /
                                   options_.training.step.accumulation_steps;
  total_ = options_.steps > 0
               ? options_.steps
               : std::max<int64_t>(1, std::llround(options_.epochs * updates_per_epoch));
  validate_every_ = options_.validate_every;
  if (validate_every_ == 0) validate_every_ = std::max<int64_t>(1, std::llround(updates_per_epoch));
  return {};
}

// `exported`: the options of the exported step that the model is of, whose state is read, too.
Status Trainer::PrepareSession(Model model, std::optional<StepOptions> exported) {
  ASSIGN_OR_RETURN(const Loss loss, MakeLoss(options_, data_.text != nullptr));
  ASSIGN_OR_RETURN(metric_, Metric::Create(options_.metric, loss));
  const auto& outputs = model.graph->outputs();
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const Value* output) {
    return output->name() == loss.prediction;
  });
  prediction_ = found == outputs.end() ? 0 : static_cast<size_t>(found - outputs.begin());
  ASSIGN_OR_RETURN(TrainingOptions training,
                   MakeTrainingOptions(options_, total_, data_.text != nullptr));
  const bool has_state = exported.has_value();
  if (has_state) training.step = *std::move(exported);
  training.ranks.communicator = ranks_;
  ASSIGN_OR_RETURN(session_, TrainingSession::Create(std::move(model), std::move(training)));
  if (!has_state) return {};
  RETURN_IF_ERROR(session_->Restore(ExportedStatePath(options_.model)).status());
  if (options_.learning_rate) session_->runs().set_learning_rate(*options_.learning_rate);
  return {};
}

Status Trainer::JoinRanks() {
  if (env::LaunchedRanks() == 1) return {};
  if (!options_.record.empty())
    return InvalidArgument("--record: a step of several ranks cannot be recorded");
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ranks, MpiCommunicator());
  if (options_.batch % ranks->size() != 0) {
    return InvalidArgument("--batch: " + std::to_string(ranks->size()) +
                           " ranks take equal parts of each batch, which " +
                           std::to_string(options_.batch) + " examples do not have");
  }
  ASSIGN_OR_RETURN(ranks_, JoinGpus(std::move(ranks), &options_.provider));
  is_first_rank_ = ranks_->rank() == 0;
  if (is_first_rank_) return {};
  for (std::string* file :
       {&options_.log, &options_.best, &options_.output, &options_.report, &options_.tensorboard})
    file->clear();
  return {};
}

Status Trainer::Restore() {
  if (!options_.resume) return {};
  ASSIGN_OR_RETURN(const bool exists, PosixFileSystem().Exists(options_.checkpoint));
  if (!exists) return {};
  ASSIGN_OR_RETURN(auto properties, session_->Restore(options_.checkpoint));
  std::string differing;
  for (const auto& [name, property] : RunFacts(options_, data_)) {
    if (properties[name] == property) continue;
    differing += (differing.empty() ? "" : ", ") + name + " " + PropertyText(properties[name]) +
                 " instead of " + PropertyText(property);
  }
  if (!differing.empty())
    return InvalidArgument("checkpoint '" + options_.checkpoint + "' is of a run with " +
                           differing);
  if (const double* best = std::get_if<double>(&properties["best_loss"])) best_loss_ = *best;
  if (const int64_t* update = std::get_if<int64_t>(&properties["best_update"]))
    best_update_ = *update;
  if (const double* loss = std::get_if<double>(&properties["unrecorded_loss"]))
    unrecorded_loss_ = *loss;
  for (const std::string& difference : session_->runs().differences())
    LogWarning("the step that waits was begun with other " + difference +
               "; it may round otherwise than without the pause");
  return {};
}

// The log without the rows of updates that come again: after the checkpoint that the run goes on
// from it may have run further before it was killed.
Status Trainer::CutLog() const {
  FileSystem& files = PosixFileSystem();
  ASSIGN_OR_RETURN(const bool exists, files.Exists(options_.log));
  if (!exists) return {};
  ASSIGN_OR_RETURN(const std::string rows, ReadWholeFile(files, options_.log, kMaxLogBytes));
  const int64_t last = first_ - (unrecorded_loss_ ? 1 : 0);
  size_t end = rows.find('\n');
  while (end != std::string::npos && end + 1 < rows.size() &&
         std::atoll(rows.c_str() + end + 1) <= last) {
    end = rows.find('\n', end + 1);
  }
  if (end == std::string::npos || end + 1 == rows.size()) return {};
  return WriteFileAtomically(files, options_.log, [&](WritableFile& file) {
    return file.Write(std::string_view(rows).substr(0, end + 1));
  });
}

Status Trainer::OpenLog() {
  if (options_.log.empty()) return {};
  if (first_ > 0) RETURN_IF_ERROR(CutLog());
  log_.reset(std::fopen(options_.log.c_str(), first_ > 0 ? "a" : "w"));
  if (log_ == nullptr)
    return IoError("'" + options_.log + "' cannot be written: " + std::strerror(errno));
  if (std::ftell(log_.get()) == 0)
    std::fprintf(log_.get(), "update,learning_rate,loss,validation_loss,metric\n");
  return {};
}

void Trainer::PrintRanks() const {
  constexpr double kMiB = 1 << 20;
  const RankMemory memory = session_->Memory();
  std::printf(
      "; %d ranks, each with %.1f MiB (parameters %.1f, gradients %.1f, optimizer state %.1f) and "
      "activations",
      ranks_->size(), static_cast<double>(memory.total()) / kMiB,
      static_cast<double>(memory.parameters) / kMiB, static_cast<double>(memory.gradients) / kMiB,
      static_cast<double>(memory.optimizer_state) / kMiB);
}

void Trainer::PrintHead() {
  if (!is_first_rank_) return;
  size_t values = 0;
  for (const std::string& name : session_->parameters().Names()) {
    values += static_cast<size_t>(session_->parameters().Get(name).value().elements());
  }
  std::printf("%zu values in %zu parameters; %lld examples to train on, %lld to validate with",
              values, session_->parameters().Names().size(),
              static_cast<long long>(data_.train->size()),
              static_cast<long long>(data_.validation == nullptr ? 0 : data_.validation->size()));
  if (ranks_ != nullptr) PrintRanks();
  if (data_.text != nullptr) std::printf("; %zu characters", data_.text->vocabulary().size());
  if (session_->runs().suspended() || first_ > 0) {
    std::printf("\ngoing on %s update %lld",
                session_->runs().suspended() ? "in the middle of" : "after",
                static_cast<long long>(first_ + (session_->runs().suspended() ? 1 : 0)));
  }
  std::printf("\n");
  std::fflush(stdout);
}

int64_t Trainer::MicroSteps() const {
  return session_->ranks().setup().MicroSteps(options_.training.step.accumulation_steps);
}

std::span<const int64_t> Trainer::Part(std::span<const int64_t> batch, int64_t micro_step) const {
  const bool ordered = session_->ranks().setup().is_ordered();
  const int64_t rank = ranks_ == nullptr ? 0 : ranks_->rank();
  const int64_t parts =
      ordered ? options_.training.ranks.logical_shards : session_->ranks().setup().ranks;
  const int64_t part = ordered ? rank * MicroSteps() + micro_step : rank;
  const size_t size = batch.size() / static_cast<size_t>(parts);
  return batch.subspan(size * static_cast<size_t>(part), size);
}

Result<NamedValues> Trainer::Feeds(const Dataset& data, std::span<const int64_t> indices) const {
  ASSIGN_OR_RETURN(const auto batch, data.Batch(indices));
  return NamedValues(batch.begin(), batch.end());
}

Result<double> Trainer::Update() {
  const int64_t micro_steps = MicroSteps();
  for (auto i = session_->progress().accumulated(); i < micro_steps; ++i) {
    int64_t batch = session_->progress().updates * options_.training.step.accumulation_steps;
    if (!session_->ranks().setup().is_ordered()) batch += i;
    ASSIGN_OR_RETURN(const NamedValues feeds, Feeds(*data_.train, Part(sampler_->Batch(batch), i)));
    const bool is_last = session_->progress().updates + 1 == total_ && i + 1 == micro_steps;
    std::vector<ExecutionObserver*> observers;
    if (is_last && !options_.report.empty()) observers.push_back(&last_step_);
    const Result<double> ran = session_->runs().suspended()
                                   ? session_->ResumeStep(std::move(observers))
                                   : session_->Step(feeds, std::move(observers));
    const bool refused = !ran.ok() && ran.status().code() == StatusCode::kInvalidArgument;
    if (refused && !options_.record.empty()) return Record(feeds, ran.status());
    ASSIGN_OR_RETURN(const double loss, ran);
    if (!std::isfinite(loss)) {
      return InvalidArgument("the loss is " + Number(loss) + " in batch " + std::to_string(batch) +
                             "; a lower --lr, --warmup or --clip may help");
    }
  }
  return session_->progress().update_loss;
}

// The refused step has changed nothing: it is begun once more, and written before its first node.
Status Trainer::Record(const NamedValues& feeds, const Status& refused) {
  session_->control().SuspendAt(0);
  const Status stopped = session_->Step(feeds).status();
  if (stopped.code() != StatusCode::kSuspended) return stopped;
  RETURN_IF_ERROR(Save(options_.record));
  RETURN_IF_ERROR(session_->DropStep());
  return refused.WithPrefix("recorded in '" + options_.record + "' for 'caesura replay': ");
}

Status Trainer::Validate() {
  const Dataset& data = *data_.validation;
  metric_->Reset();
  double sum = 0;
  ASSIGN_OR_RETURN(Sampler order, Sampler::Create({.size = data.size(),
                                                   .batch_size = options_.batch,
                                                   .shuffle = false,
                                                   .drop_last = false}));
  for (int64_t n = 0; n < order.batches_per_epoch(); ++n) {
    const auto indices = order.Batch(n);
    ASSIGN_OR_RETURN(const NamedValues feeds, Feeds(data, indices));
    ASSIGN_OR_RETURN(const Evaluation evaluation, session_->Evaluate(feeds));
    sum += evaluation.loss * static_cast<double>(indices.size());
    if (metric_->kind() == Metric::Kind::kNone) continue;
    RETURN_IF_ERROR(
        metric_->Add(evaluation.outputs[prediction_].tensor(), feeds.at(kTargetInput).tensor()));
  }
  validation_loss_ = sum / static_cast<double>(data.size());
  if (!(validation_loss_ < best_loss_)) return {};
  best_loss_ = validation_loss_;
  best_update_ = session_->progress().updates;
  return options_.best.empty() ? Status() : Save(options_.best);
}

Status Trainer::Save(const std::string& path) const {
  if (!is_first_rank_ && options_.training.ranks.shard == 0) return {};
  if (log_ != nullptr) std::fflush(log_.get());  // the log reaches as far as the checkpoint
  auto properties = RunFacts(options_, data_);
  properties["best_loss"] = best_loss_;
  properties["best_update"] = best_update_;
  if (unrecorded_loss_) properties["unrecorded_loss"] = *unrecorded_loss_;
  return session_->Save(path, std::move(properties));
}

void Trainer::Log(double loss, bool validated) {
  if (log_ == nullptr) return;
  std::fprintf(log_.get(), "%lld,%.9g,%.9g,", static_cast<long long>(session_->progress().updates),
               session_->progress().learning_rate(), loss);
  if (validated) std::fprintf(log_.get(), "%.9g,", validation_loss_);
  else std::fprintf(log_.get(), ",");
  if (validated && metric_->kind() != Metric::Kind::kNone)
    std::fprintf(log_.get(), "%.9g", metric_->Mean());
  std::fprintf(log_.get(), "\n");
  if (validated) std::fflush(log_.get());
}

Status Trainer::AfterUpdate(double loss) {
  unrecorded_loss_ = loss;
  smooth_loss_ =
      std::isnan(smooth_loss_) ? loss : kSmoothing * smooth_loss_ + (1 - kSmoothing) * loss;
  const int64_t done = session_->progress().updates;
  const bool is_last = done >= total_;
  const bool validates = data_.validation != nullptr && (is_last || done % validate_every_ == 0);
  if (validates) {
    RETURN_IF_ERROR(Validate());
  }
  Log(loss, validates);
  if (validates && !options_.report.empty())
    validations_.push_back({done, validation_loss_, MetricMean()});
  RETURN_IF_ERROR(WriteEvents(loss, validates));
  unrecorded_loss_.reset();
  const bool saves = is_last || done % validate_every_ == 0 ||
                     (options_.save_every > 0 && done % options_.save_every == 0);
  return saves && !options_.checkpoint.empty() ? Save(options_.checkpoint) : Status();
}

std::string Trainer::Note() const {
  std::string note = "loss " + Number(smooth_loss_);
  if (std::isnan(validation_loss_)) return note;
  note += "  validation " + Number(validation_loss_);
  return metric_->Text().empty() ? note : note + " " + metric_->Text();
}

void Trainer::PrintEnd(double seconds) const {
  if (!is_first_rank_) return;
  std::printf("%lld updates in %s: loss %s",
              static_cast<long long>(session_->progress().updates - first_),
              ClockText(seconds).c_str(), Number(smooth_loss_).c_str());
  if (!std::isnan(validation_loss_)) {
    std::printf("; validation loss %s%s%s; lowest %s after update %lld",
                Number(validation_loss_).c_str(), metric_->Text().empty() ? "" : ", ",
                metric_->Text().c_str(), Number(best_loss_).c_str(),
                static_cast<long long>(best_update_));
  }
  std::printf("\n");
}

std::optional<double> Trainer::MetricMean() const {
  return metric_->kind() == Metric::Kind::kNone ? std::nullopt
                                                : std::optional<double>(metric_->Mean());
}

Status Trainer::WriteEvents(double loss, bool validated) {
  if (events_ == nullptr) return {};
  const int64_t update = session_->progress().updates;
  RETURN_IF_ERROR(events_->AddScalar("loss/train", loss, update));
  RETURN_IF_ERROR(
      events_->AddScalar("learning_rate", session_->progress().learning_rate(), update));
  if (!validated) return {};
  RETURN_IF_ERROR(events_->AddScalar("loss/validation", validation_loss_, update));
  const std::optional<double> metric = MetricMean();
  return metric ? events_->AddScalar(metric_->Name(), *metric, update) : Status();
}

std::vector<std::pair<std::string, std::string>> Trainer::Options() const {
  const std::string rate =
      options_.learning_rate ? Number(*options_.learning_rate) : "the optimizer's own";
  const auto text = [&](const char* option) {
    return std::get<std::string>(FindTrainingOption(option)->get(options_.training));
  };
  return {{"model", options_.model},
          {"loss", text("loss")},
          {"optimizer", options_.optimizer},
          {"learning rate", rate + ", " + options_.schedule},
          {"batch", std::to_string(options_.batch)},
          {"batches to an update", std::to_string(options_.training.step.accumulation_steps)},
          {"updates", std::to_string(total_)},
          {"precision", text("precision")},
          {"seed", std::to_string(options_.training.seed)}};
}

std::string Trainer::OptionsText() const {
  std::string text = "| option | value |\n|---|---|\n";
  for (const auto& [name, value] : Options()) text += "| " + name + " | " + value + " |\n";
  return text;
}

Status Trainer::WriteRunReport() const {
  if (options_.report.empty()) return {};
  TrainingCurves curves = session_->runs().curves();
  for (const auto& validation : validations_) curves.AddValidation(validation);
  if (metric_->kind() != Metric::Kind::kNone) curves.set_metric_name(metric_->Name());
  return WriteReport({.title = options_.model,
                      .options = Options(),
                      .curves = std::move(curves),
                      .runs = last_step_.Runs(),
                      .cpu_fallback = session_->runs().cpu_fallback()},
                     options_.report);
}

Status Trainer::Run(const volatile std::sig_atomic_t* stop) {
  const Status trained = Train(stop);
  const Status written = WriteRunReport();  // also of a run that has failed: its curves say why
  return trained.ok() ? written : trained;
}

Status Trainer::Pause() {
  const std::string update =
      std::to_string(session_->progress().updates + (session_->runs().suspended() ? 1 : 0));
  const std::string where =
      (session_->runs().suspended() ? "in the middle of update " : "after update ") + update;
  if (options_.checkpoint.empty()) return Cancelled("stopped " + where);
  RETURN_IF_ERROR(Save(options_.checkpoint));
  return Cancelled("stopped " + where + "; --resume goes on from '" + options_.checkpoint + "'");
}

Status Trainer::Train(const volatile std::sig_atomic_t* stop) {
  using Clock = std::chrono::steady_clock;
  PrintHead();
  const auto begin = Clock::now();
  ProgressBar bar({.total = total_, .begin = first_});
  std::optional<SuspendOnSignals> signals;
  if (!options_.snapshot_on.empty()) signals.emplace(session_.get(), options_.snapshot_on);
  Status status = unrecorded_loss_ ? AfterUpdate(*unrecorded_loss_) : Status();
  while (status.ok() && session_->progress().updates < total_) {
    if (*stop != 0 && ranks_ == nullptr) break;
    if (*stop != 0) session_->control().set_suspend(true);  // all ranks end after the same update
    const int64_t before = session_->progress().updates;
    const Result<double> loss = Update();
    status = loss.status();
    // If gradients have overflowed, the same batches come again at a smaller scale.
    if (status.ok() && session_->progress().updates > before) status = AfterUpdate(*loss);
    if (status.ok() && is_first_rank_) bar.Update(session_->progress().updates, Note());
  }
  if (is_first_rank_) bar.Finish();
  if (status.code() == StatusCode::kSuspended || (status.ok() && *stop != 0)) return Pause();
  RETURN_IF_ERROR(status);
  PrintEnd(std::chrono::duration<double>(Clock::now() - begin).count());
  return options_.output.empty() ? Status() : session_->ExportModel(options_.output);
}

}  // namespace caesura::command
