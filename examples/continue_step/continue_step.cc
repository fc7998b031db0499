// SPDX-License-Identifier: Apache-2.0
// Goes on with a step that Python has exported (examples/python/export_step.py), without Python:
//
//   continue_step FOLDER     trains FOLDER/step on FOLDER/digits.npz, and saves it
#include <cstdio>

#include "core/files/npy.h"
#include "training/data/dataset.h"
#include "training/session/exported_step.h"
#include "training/files/progress_bar.h"

using namespace caesura;

static int Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: continue_step FOLDER\n"), 2;
  const std::string folder = argv[1], step = folder + "/step";
  auto session = OpenStep(step);
  if (!session.ok()) return Fail(session.status());
  auto arrays = ReadNpz(folder + "/digits.npz");
  if (!arrays.ok()) return Fail(arrays.status());
  auto data = MakeArrayDataset(*arrays);
  if (!data.ok()) return Fail(data.status());
  auto sampler = Sampler::Create({.size = (*data)->size(), .batch_size = 64});
  if (!sampler.ok()) return Fail(sampler.status());

  constexpr int64_t kEpochs = 10;
  const int64_t batches = kEpochs * sampler->batches_per_epoch();
  ProgressBar bar({.total = batches});
  for (int64_t n = 0; n < batches; ++n) {
    auto batch = (*data)->Batch(sampler->Batch(n));
    if (!batch.ok()) return Fail(batch.status());
    const auto loss = (*session)->Step(NamedValues(batch->begin(), batch->end()));
    if (!loss.ok()) return Fail(loss.status());
    bar.Update(n + 1, "loss " + std::to_string(*loss));
  }
  bar.Finish();
  const Status saved = (*session)->Save(ExportedStatePath(step));
  if (!saved.ok()) return Fail(saved);
  std::printf("%lld updates in all\n", static_cast<long long>((*session)->progress().updates));
  return 0;
}
