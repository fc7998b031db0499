// SPDX-License-Identifier: Apache-2.0
// Goes on with the step that chgnet_forces.py has exported, without Python.
//
//   continue_forces FOLDER    trains FOLDER/step on FOLDER/batches/0.npz, 1.npz, ..., prints the
//       losses, and saves the step
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "core/files/npy.h"
#include "training/session/exported_step.h"

using namespace caesura;

namespace {

void Train(const std::string& folder) {
  auto session = OpenStep(folder + "/step").value();
  for (int i = 0;; ++i) {
    const std::string file = folder + "/batches/" + std::to_string(i) + ".npz";
    if (!std::filesystem::exists(file)) break;
    const auto batch = ReadNpz(file).value();
    const double loss = session->Step(NamedValues(batch.begin(), batch.end())).value();
    std::printf("%.9g\n", loss);
  }
  const Status saved = session->Save(ExportedStatePath(folder + "/step"));
  if (!saved.ok()) ThrowStatus(saved);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: continue_forces FOLDER\n"), 2;
  try {
    Train(argv[1]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "continue_forces: %s\n", error.what()), 1;
  }
  return 0;
}
