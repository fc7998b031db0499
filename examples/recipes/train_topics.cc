// SPDX-License-Identifier: Apache-2.0
// Trains the model of onnx_topics.py without Python, with the options of the command there.
//
//   train_topics FOLDER [STEPS]    reads FOLDER/model.onnx and FOLDER/train.npz, writes
//       FOLDER/trained.onnx and FOLDER/log.csv; goes on from FOLDER/run.ckpt if it is there
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/files/npy.h"
#include "core/onnx/model_reader.h"
#include "training/data/dataset.h"
#include "training/files/progress_bar.h"
#include "training/session/training_session.h"

using namespace caesura;

namespace {

void Check(const Status& status) {
  if (!status.ok()) ThrowStatus(status);
}

void Train(const std::string& folder, int64_t steps) {
  auto data = MakeArrayDataset(ReadNpz(folder + "/train.npz").value()).value();
  auto sampler = Sampler::Create({.size = data->size(), .batch_size = 16}).value();

  TrainingOptions options;
  options.step.loss = Loss::CrossEntropy("labels");
  options.step.optimizer = AdamW{.learning_rate = 1e-4};
  options.step.clip_norm = 1.0;
  options.schedule.decay = PolynomialDecay{.steps = steps};
  auto session =
      TrainingSession::Create(ReadModel(folder + "/model.onnx").value(), options).value();
  const std::string checkpoint = folder + "/run.ckpt";
  if (std::filesystem::exists(checkpoint)) session->Restore(checkpoint).value();

  std::ofstream log(folder + "/log.csv", std::ios::app);
  if (session->progress().updates == 0) log << "update,loss\n";
  ProgressBar bar({.label = "topics", .total = steps});
  while (session->progress().updates < steps) {
    const auto batch = data->Batch(sampler.Batch(session->progress().updates)).value();
    const double loss = session->Step(NamedValues(batch.begin(), batch.end())).value();
    const int64_t update = session->progress().updates;
    log << update << ',' << loss << std::endl;
    bar.Update(update, "loss " + std::to_string(loss));
    if (update % 10 == 0) Check(session->Save(checkpoint));
  }
  bar.Finish();
  Check(session->ExportModel(folder + "/trained.onnx"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) return std::fprintf(stderr, "usage: train_topics FOLDER [STEPS]\n"), 2;
  try {
    Train(argv[1], argc == 3 ? std::atoll(argv[2]) : 40);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "train_topics: %s\n", error.what()), 1;
  }
}
