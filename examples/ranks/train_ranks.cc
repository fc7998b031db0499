// SPDX-License-Identifier: Apache-2.0
// The digits on several ranks, in C++ without LibTorch: each process is one, and takes its part of
// every batch.
//
//   mpirun -n 2 train_ranks FOLDER        reads FOLDER/digits.{onnx,npz} (export_digits.py)
#include <cstdio>
#include <iostream>

#include "core/distributed/communicator.h"
#include "core/onnx/model_reader.h"
#include "core/files/npy.h"
#include "training/data/dataset.h"
#include "training/session/training_session.h"

using namespace caesura;

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: mpirun -n RANKS train_ranks FOLDER\n", 2;
  const std::string folder = argv[1];
  const std::shared_ptr<Communicator> ranks = MpiCommunicator().value();
  const int rank = ranks->rank(), size = ranks->size();

  auto arrays = ReadNpz(folder + "/digits.npz").value();
  auto dataset =
      MakeArrayDataset({{"images", arrays["train_images"]}, {"labels", arrays["train_labels"]}})
          .value();
  auto sampler =  // the same order on all ranks
      Sampler::Create({.size = dataset->size(), .batch_size = 64, .seed = 1}).value();

  TrainingOptions options;
  options.step.loss = Loss::CrossEntropy("labels");
  options.step.optimizer = AdamW{.learning_rate = 2e-3};
  options.ranks.communicator = ranks;
  options.threads = 1;
  auto session =
      TrainingSession::Create(ReadModel(folder + "/digits.onnx").value(), options).value();

  double loss = 0;
  for (int64_t step = 0; step < 5 * sampler.batches_per_epoch(); ++step) {
    const auto batch = sampler.Batch(step);
    const size_t part = batch.size() / size;
    const auto mine = dataset->Batch(batch.subspan(part * rank, part)).value();
    loss = session->Step(NamedValues(mine.begin(), mine.end())).value();  // the mean of all ranks
  }
  if (rank == 0) std::printf("%d ranks: loss %.4f\n", size, loss);
} catch (const std::exception& error) {
  std::cerr << "train_ranks: " << error.what() << '\n';
  return 1;
}
