// SPDX-License-Identifier: Apache-2.0
// A process of the kill sweep (kill_sweep_test.cc).
//   kill_sweep_child begin MODEL K FILE   stops the first step before node K, saves, kills itself
//   kill_sweep_child end MODEL FILE OUT   takes that up, ends it and two more steps, saves to OUT
//   kill_sweep_child train FILE AT        trains a hundred steps from where FILE is, saves them to
//                                         FILE; AT >= 0: stops the 38th before node AT instead,
//                                         saves, kills itself
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "tests/training/kill_sweep.h"
#include "training/data/dataset.h"
#include "training/files/checkpoint.h"

namespace caesura::testing {
namespace {

int Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

int Begin(const std::string& model, int at, const std::string& file) {
  const RealModel real = KilledModel(model);
  auto session = SessionOf(real);
  session->control().SuspendAt(at);
  const Status status = session->Step(real.batches[0]).status();
  if (status.code() != StatusCode::kSuspended) return Fail(status);
  if (const Status saved = session->Save(file); !saved.ok()) return Fail(saved);
  std::raise(SIGKILL);
  return 1;
}

int End(const std::string& model, const std::string& file, const std::string& out) {
  const RealModel real = KilledModel(model);
  auto session = SessionOf(real);
  const auto restored = session->Restore(file);
  if (!restored.ok()) return Fail(restored.status());
  if (!session->runs().differences().empty())
    return Fail(Internal("differs: " + session->runs().differences()[0]));
  std::map<std::string, Checkpoint::Property> losses;
  for (int i = 0; i < kUpdatesAfterTheKill; ++i) {
    const auto loss = i == 0 ? session->ResumeStep() : session->Step(real.batches[i]);
    if (!loss.ok()) return Fail(loss.status());
    losses["loss" + std::to_string(i)] = *loss;
  }
  const Status saved = session->Save(out, std::move(losses));
  return saved.ok() ? 0 : Fail(saved);
}

// Data in a shuffled order, each batch with noise of its own; dropout; a rate that changes with
// each step.
int Train(const std::string& file, int at) {
  RealModel real = DigitsWithDropout();
  real.options.schedule = {.decay = CosineDecay{.steps = kHundredSteps}, .warmup_steps = 5};
  auto session = SessionOf(real);
  std::map<std::string, Tensor> examples;
  for (const auto& [name, value] :
       RandomBatch(3, "images", Shape{40, 1, 8, 8}, false, "labels", Shape{40}, 10))
    examples.emplace(name, value.tensor());
  const auto data = MakeArrayDataset(std::move(examples)).value();
  Sampler sampler = Sampler::Create({.size = 40, .batch_size = 6, .seed = 5}).value();
  int64_t done = 0;
  if (std::filesystem::exists(file)) {
    const auto properties = session->Restore(file);
    if (!properties.ok()) return Fail(properties.status());
    done = std::get<int64_t>(properties->at("batches"));
  }
  double loss = 0;
  for (int64_t n = done; n < kHundredSteps; ++n) {
    NamedValues batch;
    const auto rows = data->Batch(sampler.Batch(n)).value();
    for (const auto& [name, tensor] : rows) batch[name] = tensor;
    std::mt19937 noise(static_cast<uint32_t>(n));
    const Tensor& images = batch["images"].tensor();
    for (int64_t e = 0; e < images.elements(); ++e)
      images.data<float>()[e] += static_cast<float>(noise() % 100) / 1000;
    if (n == 37 && at >= 0) session->control().SuspendAt(at);
    const auto result = session->runs().suspended() ? session->ResumeStep() : session->Step(batch);
    if (result.status().code() == StatusCode::kSuspended) {
      if (const Status saved = session->Save(file, {{"batches", n}}); !saved.ok())
        return Fail(saved);
      std::raise(SIGKILL);
    }
    if (!result.ok()) return Fail(result.status());
    loss = *result;
  }
  const Status saved = session->Save(file, {{"batches", int64_t{kHundredSteps}}, {"loss", loss}});
  return saved.ok() ? 0 : Fail(saved);
}

}  // namespace
}  // namespace caesura::testing

int main(int argc, char** argv) {
  using namespace caesura::testing;
  const std::string mode = argc == 5 ? argv[1] : "";
  if (mode == "begin") return Begin(argv[2], std::atoi(argv[3]), argv[4]);
  if (mode == "end") return End(argv[2], argv[3], argv[4]);
  if (argc == 4 && std::string(argv[1]) == "train") return Train(argv[2], std::atoi(argv[3]));
  return 2;
}
