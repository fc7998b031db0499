// SPDX-License-Identifier: Apache-2.0
// `caesura predict`: a model's outputs for a file of examples.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "training/command/command.h"
#include "training/command/tensor_files.h"
#include "training/command/train/train_data.h"
#include "training/command/train/train_options.h"
#include "training/command/train/trained_model.h"
#include "training/data/dataset.h"
#include "training/files/progress_bar.h"

namespace caesura::command {
namespace {

struct PredictOptions {
  TrainOptions train;  // only what the options below set
  std::string checkpoint, output;
  std::vector<std::string> outputs;
};

// One output for all examples, filled batch by batch.
class Rows {
 public:
  explicit Rows(int64_t examples) : examples_(examples) {}

  // `value` holds the rows of `count` examples, after those that were added before.
  Status Add(const std::string& name, const RuntimeValue& value, int64_t count) {
    if (!value.is_tensor())
      return Unsupported("output '" + name + "' is no tensor: only tensors can be written");
    const Tensor& part = value.tensor();
    const std::string found = DTypeName(part.dtype()) + part.shape().ToString();
    if (part.shape().rank() < 1 || part.shape()[0] != count) {
      return InvalidArgument(
          "output '" + name + "' is " + found + " for " + std::to_string(count) +
          " examples: expected one row for each; choose others by --outputs, or say --batch 1");
    }
    std::vector<int64_t> dims = part.shape().dims();
    dims[0] = examples_;
    if (!all_.defined()) {
      ASSIGN_OR_RETURN(all_, Tensor::Allocate(part.dtype(), Shape(dims)));
    } else if (all_.dtype() != part.dtype() || all_.shape() != Shape(dims)) {
      return InvalidArgument("output '" + name + "' is " + found + " in a later batch, after " +
                             DTypeName(all_.dtype()) + all_.shape().ToString() +
                             " for all examples: its rows must be of one size");
    }
    const size_t row_bytes = part.bytes() / static_cast<size_t>(count);
    CopyElements(part.dtype(), part.raw(),
                 all_.data<char>() + static_cast<size_t>(done_) * row_bytes, part.elements());
    done_ += count;
    return {};
  }

  const Tensor& all() const { return all_; }

 private:
  int64_t examples_, done_ = 0;
  Tensor all_;
};

Status Predict(PredictOptions& options) {
  TrainOptions& train = options.train;
  ASSIGN_OR_RETURN(Model model, ReadTrainedModel(train.model, options.checkpoint));
  train.training.step.loss.kind =
      Loss::Kind::kOutput;  // nothing to compare with: no target is looked for
  train.validation_part = 0;
  ASSIGN_OR_RETURN(const TrainData data, LoadTrainData(train, model));
  std::vector<std::string> names = options.outputs;
  if (names.empty()) {
    for (const Value* output : model.graph->outputs()) names.push_back(output->name());
  }
  ASSIGN_OR_RETURN(const auto session, MakeSession(std::move(model), train));
  const Dataset& examples = *data.train;
  ASSIGN_OR_RETURN(Sampler order, Sampler::Create({.size = examples.size(),
                                                   .batch_size = train.batch,
                                                   .shuffle = false,
                                                   .drop_last = false}));
  std::vector<Rows> rows(names.size(), Rows(examples.size()));
  ProgressBar bar({.label = "predict", .total = order.batches_per_epoch()});
  for (int64_t n = 0; n < order.batches_per_epoch(); ++n) {
    const auto indices = order.Batch(n);
    ASSIGN_OR_RETURN(auto batch, examples.Batch(indices));
    batch.erase(kTargetInput);  // a text brings the next characters along
    ASSIGN_OR_RETURN(const auto outputs,
                     session->Run(NamedValues(batch.begin(), batch.end()), names));
    for (size_t i = 0; i < names.size(); ++i) {
      RETURN_IF_ERROR(rows[i].Add(names[i], outputs[i], static_cast<int64_t>(indices.size())));
    }
    bar.Update(n + 1, "");
  }
  bar.Finish();
  TensorFile file;
  for (size_t i = 0; i < names.size(); ++i) {
    file.tensors[names[i]] = rows[i].all();
    std::printf("%s  %s%s\n", names[i].c_str(), DTypeName(rows[i].all().dtype()),
                rows[i].all().shape().ToString().c_str());
  }
  return WriteTensorFile(options.output, file);
}

constexpr char kPredictExamples[] = R"(Examples
    caesura predict trained.onnx --data new.npz --feed x=images --output scores.npz
    caesura predict net.onnx --checkpoint run.ckpt --data new.safetensors --outputs logits --output logits.npy)";

}  // namespace

void AddPredict(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<PredictOptions>();
  CLI::App* sub = app.add_subcommand("predict", "Write a model's outputs for a file of examples");
  sub->add_option("model", options->train.model,
                  "The ONNX model, or the folder of an exported step")
      ->required();
  sub->add_option("--checkpoint", options->checkpoint, "Take the parameters of this checkpoint");
  AddInputOptions(*sub, &options->train);
  sub->add_option("--output", options->output, "The file to write: .npz, .npy or .safetensors")
      ->required();
  sub->add_option("--outputs", options->outputs, "Names of the outputs to write; by default all");
  sub->add_option("--batch", options->train.batch, "Examples to a batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddPlacementOptions(*sub, &options->train);
  sub->footer(kPredictExamples);
  sub->callback([=] { *run = [=] { return ExitCodeOf(Predict(*options)); }; });
}

}  // namespace caesura::command
