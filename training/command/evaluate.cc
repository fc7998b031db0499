// SPDX-License-Identifier: Apache-2.0
// `caesura evaluate`: the loss and a metric of a model over a file of examples.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "training/command/command.h"
#include "training/command/train/metric.h"
#include "training/command/train/train_data.h"
#include "training/command/train/train_options.h"
#include "training/command/train/trained_model.h"
#include "training/data/dataset.h"
#include "training/session/exported_step.h"
#include "training/files/progress_bar.h"

namespace caesura::command {
namespace {

struct EvaluateOptions {
  TrainOptions train;  // only what the options below set
  std::string checkpoint, json;
};

struct Scores {
  double loss = 0;
  Metric metric;
  int64_t examples = 0;
};

// The loss is a mean over the examples: batches of different sizes weigh by their size.
Result<Scores> Evaluate(Session& session, const Dataset& data, const TrainOptions& options,
                        const Loss& loss, const std::string& prediction,
                        const std::string& loss_output) {
  ASSIGN_OR_RETURN(Metric metric, Metric::Create(options.metric, loss));
  ASSIGN_OR_RETURN(Sampler order, Sampler::Create({.size = data.size(),
                                                   .batch_size = options.batch,
                                                   .shuffle = false,
                                                   .drop_last = false}));
  ProgressBar bar({.label = "evaluate", .total = order.batches_per_epoch()});
  std::vector<std::string> wanted = {loss_output};
  if (metric.kind() != Metric::Kind::kNone) wanted.push_back(prediction);
  double sum = 0;
  for (int64_t n = 0; n < order.batches_per_epoch(); ++n) {
    const auto indices = order.Batch(n);
    ASSIGN_OR_RETURN(const auto batch, data.Batch(indices));
    const NamedValues feeds(batch.begin(), batch.end());
    ASSIGN_OR_RETURN(const std::vector<RuntimeValue> outputs, session.Run(feeds, wanted));
    sum += outputs[0].tensor().ToVector<double>()[0] * static_cast<double>(indices.size());
    if (outputs.size() > 1) {
      RETURN_IF_ERROR(metric.Add(outputs[1].tensor(), feeds.at(kTargetInput).tensor()));
    }
    bar.Update(n + 1, metric.Text());
  }
  bar.Finish();
  return Scores{sum / static_cast<double>(data.size()), metric, data.size()};
}

Status Evaluate(EvaluateOptions& options) {
  TrainOptions& train = options.train;
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(train.model));
  ASSIGN_OR_RETURN(Model model, ReadTrainedModel(train.model, options.checkpoint));
  if (exported) {
    ASSIGN_OR_RETURN(const StepOptions step, ReadStepOptions(model));
    train.training.step.loss = step.loss;
  }
  train.validation_part = 0;
  ASSIGN_OR_RETURN(const TrainData data, LoadTrainData(train, model));
  ASSIGN_OR_RETURN(const Loss loss, MakeLoss(train, data.text != nullptr));
  if (model.graph->outputs().empty()) return InvalidArgument("'" + train.model + "' has no output");
  const std::string prediction =
      loss.prediction.empty() ? model.graph->outputs()[0]->name() : loss.prediction;
  ASSIGN_OR_RETURN(Value * value, AddLoss(*model.graph, loss));
  if (loss.kind != Loss::Kind::kOutput) model.graph->AddOutput(value);
  const std::string loss_output = value->name();
  ASSIGN_OR_RETURN(const auto session, MakeSession(std::move(model), train));
  ASSIGN_OR_RETURN(const Scores scores,
                   Evaluate(*session, *data.train, train, loss, prediction, loss_output));
  const std::string metric = scores.metric.Text();
  if (!OnlyJson(options.json)) {
    std::printf("loss %.6g%s%s over %lld examples\n", scores.loss, metric.empty() ? "" : ", ",
                metric.c_str(), static_cast<long long>(scores.examples));
  }
  nlohmann::json json = {{"loss", scores.loss}, {"examples", scores.examples}};
  if (scores.metric.kind() != Metric::Kind::kNone)
    json[scores.metric.Name()] = scores.metric.Mean();
  return WriteJson(json, options.json);
}

constexpr char kEvaluateExamples[] = R"(Examples
    caesura evaluate trained.onnx --data test.npz --feed x=images --target labels
    caesura evaluate net.onnx --checkpoint run.ckpt --data test.npz --target labels --json -
    caesura evaluate step --data test.npz       the folder of an exported step, which knows its loss)";

}  // namespace

void AddEvaluate(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* sub =
      app.add_subcommand("evaluate", "Print a model's loss and accuracy on a file of examples");
  sub->add_option("model", options->train.model,
                  "The ONNX model, or the folder of an exported step")
      ->required();
  sub->add_option("--checkpoint", options->checkpoint, "Take the parameters of this checkpoint");
  AddDataOptions(*sub, &options->train);
  AddLossOptions(*sub, &options->train);
  AddMetricOption(*sub, &options->train);
  sub->add_option("--batch", options->train.batch, "Examples to a batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddPlacementOptions(*sub, &options->train);
  AddJsonOption(*sub, &options->json);
  sub->footer(kEvaluateExamples);
  sub->callback([=] { *run = [=] { return ExitCodeOf(Evaluate(*options)); }; });
}

}  // namespace caesura::command
