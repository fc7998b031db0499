// SPDX-License-Identifier: Apache-2.0
// Trains layers before and after a model that another runtime runs, frozen, as one node of the
// net; compares the gradients with those of the same net without that node, and says how well the
// trained net reads digits.
//
//   train_around FOLDER RUNTIME [EPOCHS]     reads FOLDER/around_{plain,RUNTIME}.onnx and
//   digits.npz
//
// The gradient comes through an OpenVINO node from its gradient model, through a LibTorch node from
// LibTorch.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "core/onnx/model_reader.h"
#include "core/files/npy.h"
#include "training/data/dataset.h"
#include "training/session/training_session.h"

using namespace caesura;

namespace {

std::unique_ptr<TrainingSession> Session(const std::string& path) {
  TrainingOptions options;
  options.step.loss = Loss::CrossEntropy("labels");
  options.step.optimizer = AdamW{.learning_rate = 3e-3};
  options.step.trainable = {"front.*", "back.*"};
  options.step.keep_gradients = true;
  return TrainingSession::Create(ReadModel(path).value(), options).value();
}

// The largest difference of gradients, as a share of the largest gradient.
double Difference(const TrainingSession& a, const TrainingSession& b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.runs().gradients().size(); ++i) {
    const auto x = a.runs().gradients()[i].tensor().ToVector<double>(),
               y = b.runs().gradients()[i].tensor().ToVector<double>();
    for (size_t k = 0; k < x.size(); ++k) {
      worst = std::max(worst, std::abs(x[k] - y[k]));
      largest = std::max(largest, std::abs(y[k]));
    }
  }
  return worst / largest;
}

double Accuracy(TrainingSession& session, const Tensor& images, const Tensor& labels) {
  const Tensor scores = session.Predict({{"images", images}}).value()[0].tensor();
  int64_t right = 0;
  for (int64_t i = 0; i < labels.elements(); ++i) {
    const float* row = scores.data<float>() + 10 * i;
    right += std::max_element(row, row + 10) - row == labels.data<int64_t>()[i];
  }
  return static_cast<double>(right) / static_cast<double>(labels.elements());
}

void Train(const std::string& folder, const std::string& runtime, int64_t epochs) {
  auto arrays = ReadNpz(folder + "/digits.npz").value();
  auto dataset =
      MakeArrayDataset({{"images", arrays["train_images"]}, {"labels", arrays["train_labels"]}})
          .value();
  auto sampler = Sampler::Create({.size = dataset->size(), .batch_size = 64, .seed = 1}).value();
  auto session = Session(folder + "/around_" + runtime + ".onnx"),
       plain = Session(folder + "/around_plain.onnx");
  double first = 0, sum = 0;
  for (int64_t step = 0; step < epochs * sampler.batches_per_epoch(); ++step) {
    const auto batch = dataset->Batch(sampler.Batch(step)).value();
    const NamedValues feeds(batch.begin(), batch.end());
    const double loss = session->Step(feeds).value();
    if (step == 0) {
      first = loss;
      static_cast<void>(plain->Step(feeds).value());
      const double difference = Difference(*session, *plain);
      std::printf("%s: gradients differ from those of the plain net by %.1e of the largest\n",
                  runtime.c_str(), difference);
      if (!(difference < 1e-4)) throw std::runtime_error("the gradients are wrong");
    }
    if (step >= (epochs - 1) * sampler.batches_per_epoch()) sum += loss;
  }
  const double last = sum / static_cast<double>(sampler.batches_per_epoch());
  std::printf("%s: loss %.3f, in the last epoch %.3f; %.1f%% of held-out digits are read right\n",
              runtime.c_str(), first, last,
              100 * Accuracy(*session, arrays["test_images"], arrays["test_labels"]));
  if (!(last < first)) throw std::runtime_error("the loss has not fallen");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::cerr << "usage: train_around FOLDER openvino|torch [EPOCHS]\n";
    return 2;
  }
  try {
    Train(argv[1], argv[2], argc == 4 ? std::atoll(argv[3]) : 20);
  } catch (const std::exception& error) {
    std::cerr << "train_around: " << error.what() << '\n';
    return 1;
  }
}
