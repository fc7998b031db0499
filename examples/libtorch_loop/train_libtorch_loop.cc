// SPDX-License-Identifier: Apache-2.0
// The net of the digits example in a loop of LibTorch's: its DataLoader feeds, its loss and
// optimizer train, and caesura runs the net forward and backward. Then the same net in whole steps
// of caesura's, from the same loader.
//
//   train_libtorch_loop FOLDER [cuda]      reads FOLDER/digits.{onnx,npz}
//
// With `cuda` both run on the first NVIDIA GPU. This needs a LibTorch with CUDA.
#include <torch/data.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdio>
#include <iostream>

#include "core/onnx/model_reader.h"
#include "core/files/npy.h"
#include "core/providers/cpu_provider.h"
#include "torch_bridge/torch_module.h"
#include "torch_bridge/torch_stream.h"
#include "torch_bridge/torch_tensor.h"

namespace {

using torch::Tensor;
using torch::data::Example;

constexpr int kEpochs = 3;
constexpr double kRate = 2e-3;

// Images and labels that lie in two tensors.
class Digits : public torch::data::datasets::Dataset<Digits> {
 public:
  Digits(Tensor images, Tensor labels) : images_(std::move(images)), labels_(std::move(labels)) {}
  Example<> get(size_t i) override {
    return {images_[static_cast<int64_t>(i)], labels_[static_cast<int64_t>(i)]};
  }
  torch::optional<size_t> size() const override { return images_.size(0); }

 private:
  Tensor images_, labels_;
};

double Accuracy(const Tensor& scores, const Tensor& labels) {
  return scores.argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
}

// The epochs' time and the accuracy that `evaluate` finds; `step` gives the loss of each batch,
// which is on `device`.
template <typename Loader, typename Step, typename Evaluate>
void Train(const char* name, Loader& loader, torch::Device device, Step step, Evaluate evaluate) {
  const auto began = std::chrono::steady_clock::now();
  double loss = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& batch : loader) loss = step(batch.data.to(device), batch.target.to(device));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("%s: last loss %.4f, %.2f%% of held-out digits are read right, %.1f s\n", name, loss,
              100 * evaluate(), seconds);
}

void Run(const std::string& folder, torch::Device device) {
  auto arrays = caesura::ReadNpz(folder + "/digits.npz").value();
  const auto tensor = [&](const char* name) {
    return caesura::torch::ToTorch(arrays.at(name)).value();
  };
  const Tensor test_images = tensor("test_images").to(device);
  const Tensor test_labels = tensor("test_labels").to(device);
  const caesura::Model model = caesura::ReadModel(folder + "/digits.onnx").value();
  torch::manual_seed(1);
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Digits(tensor("train_images"), tensor("train_labels"))
          .map(torch::data::transforms::Stack<>()),
      /*batch_size=*/64);

  auto net = std::make_shared<caesura::torch::Module>(model.Clone());
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(kRate));
  Train(
      "a loop of LibTorch's", *loader, device,
      [&](const Tensor& images, const Tensor& labels) {
        optimizer.zero_grad();
        const Tensor loss = torch::nn::functional::cross_entropy(net->forward(images), labels);
        loss.backward();
        optimizer.step();
        return loss.item<double>();
      },
      [&] {
        const torch::NoGradGuard no_grad;
        net->eval();
        return Accuracy(net->forward(test_images), test_labels);
      });

  caesura::TrainingOptions options;
  options.step.loss = caesura::Loss::CrossEntropy("labels");
  options.step.optimizer = caesura::AdamW{.learning_rate = kRate};
  if (device.is_cuda()) {
    options.providers = {caesura::torch::MakeCudaProviderOnTorch().value(),
                         caesura::MakeCpuProvider()};
  }
  caesura::torch::TrainingStep step(model.Clone(), options);
  Train(
      "whole steps of caesura's", *loader, device,
      [&](const Tensor& images, const Tensor& labels) {
        return step.step({{"images", images}, {"labels", labels}}).item<double>();
      },
      [&] {
        const Tensor scores = step.predict({{"images", test_images}})[0];  // on the host
        return Accuracy(scores, test_labels.cpu());
      });
}

}  // namespace

int main(int argc, char** argv) {
  const bool on_gpu = argc == 3 && std::string(argv[2]) == "cuda";
  if (argc != 2 && !on_gpu) {
    std::cerr << "usage: train_libtorch_loop FOLDER [cuda]\n";
    return 2;
  }
  try {
    Run(argv[1], on_gpu ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU));
  } catch (const std::exception& error) {
    std::cerr << "train_libtorch_loop: " << error.what() << '\n';
    return 1;
  }
}
