// SPDX-License-Identifier: Apache-2.0
// A process of the kill sweep (kill_sweep_test.cc).
//   kill_sweep_child begin MODEL K FILE   stops the first step before node K, saves, kills itself
//   kill_sweep_child end MODEL FILE OUT   takes that up, ends it and two more steps, saves to OUT
#include <csignal>
#include <cstdio>

#include "tests/training/kill_sweep.h"

namespace caesura::testing {
namespace {

int Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

int Begin(const std::string& model, int at, const std::string& file) {
  const RealModel real = KilledModel(model);
  auto session = SessionOf(real);
  session->SuspendAt(at);
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
  if (!session->StepDifferences().empty())
    return Fail(Internal("differs: " + session->StepDifferences()[0]));
  std::map<std::string, Checkpoint::Property> losses;
  for (int i = 0; i < kUpdatesAfterTheKill; ++i) {
    const auto loss = i == 0 ? session->ResumeStep() : session->Step(real.batches[i]);
    if (!loss.ok()) return Fail(loss.status());
    losses["loss" + std::to_string(i)] = *loss;
  }
  const Status saved = session->Save(out, std::move(losses));
  return saved.ok() ? 0 : Fail(saved);
}

}  // namespace
}  // namespace caesura::testing

int main(int argc, char** argv) {
  using namespace caesura::testing;
  const std::string mode = argc == 5 ? argv[1] : "";
  if (mode == "begin") return Begin(argv[2], std::atoi(argv[3]), argv[4]);
  if (mode == "end") return End(argv[2], argv[3], argv[4]);
  return 2;
}
