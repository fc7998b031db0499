// SPDX-License-Identifier: Apache-2.0
// Trains the character GPT of chargpt.onnx on corpus.txt in a C++ loop until its loss is below 2.0
// nats, then lets it write a few lines.
//
//   train_chargpt FOLDER       reads FOLDER/{chargpt.onnx,corpus.txt}, writes
//   FOLDER/chargpt_{loss.csv,sample.txt}
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>

#include "core/onnx/model_reader.h"
#include "training/data/dataset.h"
#include "training/files/progress_bar.h"
#include "training/session/training_session.h"

using namespace caesura;

namespace {

constexpr int64_t kContext = 128, kBatch = 16, kMaxSteps = 600;
constexpr double kGoal = 1.95;  // of the running mean, so that single lucky batches do not count

// Draws the next character from softmax(scores / temperature).
int64_t Draw(const float* scores, int64_t count, double temperature, std::mt19937& random) {
  const float top = *std::max_element(scores, scores + count);
  std::vector<double> weights;
  for (int64_t i = 0; i < count; ++i) weights.push_back(std::exp((scores[i] - top) / temperature));
  return std::discrete_distribution<int64_t>(weights.begin(), weights.end())(random);
}

std::string Write(TrainingSession& session, const TextCorpus& corpus, const std::string& beginning,
                  int length) {
  std::mt19937 random(7);
  std::vector<int64_t> text = corpus.Encode(beginning).value();
  while (static_cast<int>(text.size()) < length) {
    const int64_t time = std::min<int64_t>(kContext, static_cast<int64_t>(text.size()));
    const Tensor window = Tensor::Of<int64_t>(Shape{1, time}, {text.end() - time, text.end()});
    const Tensor scores = session.Predict({{"tokens", window}}).value()[0].tensor();
    const int64_t vocabulary = scores.shape()[2];
    text.push_back(Draw(scores.data<float>() + (time - 1) * vocabulary, vocabulary, 0.7, random));
  }
  return corpus.Decode(text);
}

void Train(const std::string& folder) {
  std::stringstream text;
  text << std::ifstream(folder + "/corpus.txt").rdbuf();
  auto corpus = std::make_shared<const TextCorpus>(text.str());
  auto dataset =
      MakeTextDataset(corpus, {.length = kContext, .input_name = "tokens", .target_name = "next"})
          .value();
  auto sampler =
      Sampler::Create({.size = dataset->size(), .batch_size = kBatch, .seed = 1}).value();

  TrainingOptions options;
  options.step.loss = Loss::CrossEntropy("next");
  options.step.loss.class_axis = -1;
  options.step.optimizer = AdamW{.learning_rate = 2e-3, .beta2 = 0.99, .weight_decay = 0.1};
  options.step.clip_norm = 1.0;
  options.schedule = {.decay = CosineDecay{.steps = kMaxSteps, .end = 0.1}, .warmup_steps = 20};
  auto session =
      TrainingSession::Create(ReadModel(folder + "/chargpt.onnx").value(), options).value();

  std::ofstream curve(folder + "/chargpt_loss.csv");
  ProgressBar bar({.label = "chargpt", .total = kMaxSteps});
  double mean = 0;
  for (int64_t step = 0; step < kMaxSteps && (step < 10 || mean > kGoal); ++step) {
    const auto batch = dataset->Batch(sampler.Batch(step)).value();
    const double loss = session->Step(NamedValues(batch.begin(), batch.end())).value();
    mean = step == 0 ? loss : 0.9 * mean + 0.1 * loss;
    curve << step << ',' << loss << '\n';
    char note[64];
    std::snprintf(note, sizeof(note), "loss %.3f mean %.3f", loss, mean);
    bar.Update(step + 1, note);
  }
  bar.Finish();
  const std::string sample = Write(*session, *corpus, "def ", 400);
  std::ofstream(folder + "/chargpt_sample.txt") << sample << '\n';
  const Status exported = session->ExportModel(folder + "/chargpt_trained.onnx");
  if (!exported.ok()) ThrowStatus(exported);
  std::printf("chargpt: mean loss %.3f nats after %lld steps; it writes:\n%s\n", mean,
              static_cast<long long>(session->progress().updates), sample.c_str());
  if (mean >= 2.0) throw std::runtime_error("the loss did not fall below 2.0 nats");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: train_chargpt FOLDER\n";
    return 2;
  }
  try {
    Train(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "train_chargpt: " << error.what() << '\n';
    return 1;
  }
}
