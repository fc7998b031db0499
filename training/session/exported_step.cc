// SPDX-License-Identifier: Apache-2.0
#include "training/session/exported_step.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

using Json = nlohmann::json;

// Reads the entries of one JSON object, and lists all that are missing or of another kind.
class Entries {
 public:
  Entries(const Json& object, std::string* problems) : object_(object), problems_(problems) {}

  template <typename T>
  T Get(const char* name, bool (Json::*is)() const noexcept) {
    auto it = object_.find(name);
    if (it != object_.end() && ((*it).*is)()) return it->get<T>();
    Complain(name);
    return T();
  }
  double Number(const char* name) { return Get<double>(name, &Json::is_number); }
  std::string Text(const char* name) { return Get<std::string>(name, &Json::is_string); }

  std::vector<std::string> Texts(const char* name) {
    std::vector<std::string> out;
    for (const Json& item : List(name)) {
      if (item.is_string()) out.push_back(item.get<std::string>());
      else Complain(name);
    }
    return out;
  }
  std::map<std::string, double> Numbers(const char* name) {
    std::map<std::string, double> out;
    auto it = object_.find(name);
    if (it == object_.end() || !it->is_object()) return Complain(name), out;
    for (const auto& [key, value] : it->items()) {
      if (value.is_number()) out[key] = value.get<double>();
      else Complain(key.c_str());
    }
    return out;
  }
  Json List(const char* name) {
    auto it = object_.find(name);
    if (it != object_.end() && it->is_array()) return *it;
    Complain(name);
    return Json::array();
  }
  void Complain(const char* name) {
    *problems_ += (problems_->empty() ? "'" : ", '") + std::string(name) + "'";
  }

 private:
  const Json& object_;
  std::string* problems_;
};

}  // namespace

std::string ExportedModelPath(const std::string& folder) { return folder + "/model.onnx"; }
std::string ExportedStatePath(const std::string& folder) { return folder + "/state.safetensors"; }

Result<bool> IsExportedStep(const std::string& path) {
  return PosixFileSystem().Exists(ExportedModelPath(path));
}

Result<StepOptions> ReadStepOptions(const Model& model) {
  auto found = model.metadata.find(kStepMetadata);
  if (found == model.metadata.end()) {
    return NotFound(std::string("the model has no metadata '") + kStepMetadata +
                    "': it is no exported step");
  }
  const Json json = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  const std::string where = std::string("metadata '") + kStepMetadata + "'";
  if (!json.is_object()) return InvalidModel(where + " is no JSON object");
  std::string problems;
  Entries entries(json, &problems);
  StepOptions out;
  out.unbiased_statistics = true;  // such steps come from PyTorch
  out.loss = Loss::Output(entries.Text("loss"));
  out.trainable = entries.Texts("trainable");
  out.clip_norm = entries.Number("clip_norm");
  const double accumulation = entries.Number("accumulation_steps");
  const std::string optimizer = entries.Text("optimizer"), precision = entries.Text("precision");
  const std::map<std::string, double> coefficients = entries.Numbers("coefficients");
  for (const Json& item : entries.List("groups")) {
    if (!item.is_object()) {
      entries.Complain("groups");
      continue;
    }
    Entries group(item, &problems);
    ParameterGroup& made = out.groups.emplace_back();
    made.names = group.Texts("names");
    made.learning_rate_scale = group.Number("learning_rate_scale");
    auto own = MakeOptimizer(group.Text("optimizer"), group.Numbers("coefficients"));
    if (!own.ok()) return InvalidModel(where + ": " + own.status().message());
    made.optimizer = *own;
  }
  if (!(accumulation >= 1 && accumulation <= 1e6 && accumulation == std::trunc(accumulation)))
    entries.Complain("accumulation_steps");
  if (!(out.clip_norm >= 0)) entries.Complain("clip_norm");
  if (!problems.empty())
    return InvalidModel(where + ": entries that are missing or not as they should be: " + problems);
  out.accumulation_steps = static_cast<int>(accumulation);
  auto made = MakeOptimizer(optimizer, coefficients);
  if (!made.ok()) return InvalidModel(where + ": " + made.status().message());
  out.optimizer = *made;
  auto named = PrecisionByName(precision);
  if (!named.ok()) return InvalidModel(where + ": " + named.status().message());
  out.precision = *named;
  return out;
}

Result<std::unique_ptr<TrainingSession>> OpenStep(const std::string& folder,
                                                  TrainingOptions options) {
  ASSIGN_OR_RETURN(Model model, ReadModel(ExportedModelPath(folder)));
  ASSIGN_OR_RETURN(options.step, ReadStepOptions(model));
  ASSIGN_OR_RETURN(std::unique_ptr<TrainingSession> session,
                   TrainingSession::Create(std::move(model), std::move(options)));
  RETURN_IF_ERROR(session->Restore(ExportedStatePath(folder)).status());
  return session;
}

}  // namespace caesura
