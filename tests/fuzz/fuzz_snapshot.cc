// SPDX-License-Identifier: Apache-2.0
// A snapshot of a small training step with changes that the bytes decide on: in the manifest and in
// the tensors. It is read, taken up, and run to its end.
#include <nlohmann/json.hpp>

#include "core/runtime/snapshot_file.h"
#include "tests/core/execute/training_step.h"
#include "tests/fuzz/target.h"

namespace caesura::fuzz {
namespace {

using Json = nlohmann::json;

constexpr char kManifest[] = "caesura.snapshot";
constexpr size_t kMaxChanges = 8;

struct Seeds {
  testing::TrainingStep step;
  std::shared_ptr<const ExecutionPlan> plan = step.Plan();
  std::vector<TensorFile> snapshots;  // before each step, and at the yield
  Seeds() {
    ParameterSet parameters = step.Parameters();
    for (int at = 0; at < static_cast<int>(plan->steps().size()); ++at) {
      ExecutionState state(plan);
      Require(state.Start(step.feeds, {.parameters = &parameters}).ok(), "a run starts");
      auto outcome = PartialExecutor::Run(state, at);
      if (*outcome == RunOutcome::kYielded) {
        Add(state);
        Require(state.Resume(step.gradients).ok(), "a run resumes");
        outcome = PartialExecutor::Run(state, at);
      }
      Add(state);
    }
  }
  void Add(const ExecutionState& state) {
    TensorFile contents;
    Require(AddSnapshot(state.Capture().value(), &contents).ok(), "a snapshot is written");
    for (auto& [name, tensor] : contents.tensors) tensor = tensor.Clone().value();
    snapshots.push_back(std::move(contents));
  }
};

// All values of the manifest, its own lists and objects among them.
void Collect(Json& json, std::vector<Json*>* out) {
  out->push_back(&json);
  if (json.is_structured()) {
    for (Json& element : json) Collect(element, out);
  }
}

Json Replacement(Bytes& bytes) {
  switch (bytes.Byte() % 8) {
    case 0: return nullptr;
    case 1: return bytes.Byte() % 2 == 0;
    case 2: return bytes.Text(16);
    case 3: return Json::array();
    case 4: return Json::object();
    case 5: return 1.5;
    case 6: return static_cast<uint64_t>(bytes.Raw());
    default: return bytes.Int();
  }
}

void Change(Bytes& bytes, Json& manifest, TensorFile* contents) {
  std::vector<Json*> all;
  Collect(manifest, &all);
  const auto pick = [&] {
    const size_t number = bytes.Byte() | bytes.Byte() << 8;
    return all[number % all.size()];
  };
  Json& target = *pick();
  switch (bytes.Byte() % 6) {
    case 0:
    case 1: target = Replacement(bytes); break;
    case 2: target = Json(*pick()); break;
    case 3:
      if (target.is_array()) target.push_back(target.empty() ? Json() : Json(target.front()));
      break;
    case 4:
      if (target.is_structured() && !target.empty()) target.erase(target.begin());
      break;
    default: {  // a tensor of another dtype, or of fewer dims
      if (contents->tensors.empty()) break;
      auto it = std::next(contents->tensors.begin(), bytes.Byte() % contents->tensors.size());
      const Shape shape = bytes.Byte() % 2 == 0 ? it->second.shape() : Shape{2};
      it->second = Tensor::Zeros(bytes.Byte() % 2 == 0 ? DType::kFloat32 : DType::kInt64, shape);
    }
  }
}

void RunOn(const Seeds& seeds, const StateSnapshot& snapshot) {
  ParameterSet parameters = seeds.step.Parameters();
  ExecutionState state(seeds.plan);
  if (!state.Restore(snapshot, {.parameters = &parameters}).ok()) {
    Require(state.stage() == ExecutionState::Stage::kIdle, "a refused snapshot leaves the state");
    return;
  }
  if (state.stage() == ExecutionState::Stage::kYielded && !state.Resume(seeds.step.gradients).ok())
    return;
  auto outcome = PartialExecutor::Run(state);
  if (!outcome.ok() || *outcome != RunOutcome::kYielded) return;
  if (state.Resume(seeds.step.gradients).ok()) static_cast<void>(PartialExecutor::Run(state));
}

}  // namespace
}  // namespace caesura::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace caesura;
  static const fuzz::Seeds seeds;
  fuzz::Bytes bytes(data, size);
  TensorFile contents = seeds.snapshots[bytes.Byte() % seeds.snapshots.size()];
  nlohmann::json manifest = nlohmann::json::parse(contents.metadata.at(fuzz::kManifest));
  for (size_t i = 0; i < fuzz::kMaxChanges && bytes.left() > 0; ++i)
    fuzz::Change(bytes, manifest, &contents);
  contents.metadata[fuzz::kManifest] =
      manifest.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const Result<StateSnapshot> snapshot = TakeSnapshot(&contents);
  if (snapshot.ok()) fuzz::RunOn(seeds, *snapshot);
  return 0;
}
