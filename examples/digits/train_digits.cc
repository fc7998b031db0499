// SPDX-License-Identifier: Apache-2.0
// Trains the convolutional net of digits.onnx on digits.npz in a C++ loop and says how well it
// reads digits that it
// has not seen.
//
//   train_digits FOLDER        reads FOLDER/digits.{onnx,npz}, writes
//       FOLDER/digits_{trained.onnx,loss.csv}
#include <cstdio>
#include <fstream>
#include <iostream>

#include "core/onnx/model_reader.h"
#include "core/files/npy.h"
#include "training/data/dataset.h"
#include "training/files/progress_bar.h"
#include "training/session/training_session.h"

using namespace caesura;

namespace {

// The share of images whose highest score is their label's.
double Accuracy(TrainingSession& session, const Tensor& images, const Tensor& labels) {
  const std::vector<RuntimeValue> outputs = session.Predict({{"images", images}}).value();
  const Tensor& scores = outputs[0].tensor();
  const int64_t classes = scores.shape()[1];
  int64_t right = 0;
  for (int64_t i = 0; i < labels.elements(); ++i) {
    const float* row = scores.data<float>() + i * classes;
    right += std::max_element(row, row + classes) - row == labels.data<int64_t>()[i];
  }
  return static_cast<double>(right) / static_cast<double>(labels.elements());
}

void Train(const std::string& folder) {
  constexpr int64_t kEpochs = 15, kBatch = 64;
  auto arrays = ReadNpz(folder + "/digits.npz").value();
  auto dataset =
      MakeArrayDataset({{"images", arrays["train_images"]}, {"labels", arrays["train_labels"]}})
          .value();
  auto sampler =
      Sampler::Create({.size = dataset->size(), .batch_size = kBatch, .seed = 1}).value();
  const int64_t steps = kEpochs * sampler.batches_per_epoch();

  TrainingOptions options;
  options.step.loss = Loss::CrossEntropy("labels");
  options.step.optimizer = AdamW{.learning_rate = 2e-3};
  options.schedule.decay = CosineDecay{.steps = steps};
  auto session =
      TrainingSession::Create(ReadModel(folder + "/digits.onnx").value(), options).value();

  std::ofstream curve(folder + "/digits_loss.csv");
  ProgressBar bar({.label = "digits", .total = steps});
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = dataset->Batch(sampler.Batch(step)).value();
    const double loss = session->Step(NamedValues(batch.begin(), batch.end())).value();
    curve << step << ',' << loss << '\n';
    char note[64];
    std::snprintf(note, sizeof(note), "loss %.4f", loss);
    bar.Update(step + 1, note);
  }
  bar.Finish();
  const double accuracy = Accuracy(*session, arrays["test_images"], arrays["test_labels"]);
  const Status exported = session->ExportModel(folder + "/digits_trained.onnx");
  if (!exported.ok()) ThrowStatus(exported);
  std::printf("digits: %.2f%% of %lld held-out digits are read right\n", 100 * accuracy,
              static_cast<long long>(arrays["test_labels"].elements()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: train_digits FOLDER\n";
    return 2;
  }
  try {
    Train(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "train_digits: " << error.what() << '\n';
    return 1;
  }
}
