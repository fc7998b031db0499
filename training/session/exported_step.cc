// SPDX-License-Identifier: Apache-2.0
#include "training/session/exported_step.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/files/file_system.h"
#include "core/onnx/model_reader.h"
#include "training/session/option_table.h"

namespace caesura {
namespace {

using Json = nlohmann::json;

constexpr double kMaxCount = 1e6;

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
  // A value of this option's type.
  OptionValue Value(const TrainingOption& option) {
    const char* name = option.name.c_str();
    return std::visit(
        [&](const auto& other) -> OptionValue {
          using T = std::decay_t<decltype(other)>;
          if constexpr (std::is_same_v<T, bool>) {
            return Get<bool>(name, &Json::is_boolean);
          } else if constexpr (std::is_same_v<T, int64_t>) {
            const double count = Number(name);
            const bool fits = count == std::trunc(count) && std::abs(count) <= kMaxCount;
            if (!fits) Complain(name);
            return fits ? static_cast<int64_t>(count) : 0;
          } else if constexpr (std::is_same_v<T, double>) {
            return Number(name);
          } else if constexpr (std::is_same_v<T, std::string>) {
            return Text(name);
          } else {
            return Texts(name);
          }
        },
        option.other);
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

const std::vector<std::string>& StepEntries() {
  static const std::vector<std::string> names = {"trainable", "clip_norm", "accumulation_steps",
                                                 "precision"};
  return names;
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
  TrainingOptions options;
  StepOptions& out = options.step;
  out.unbiased_statistics = true;  // such steps come from PyTorch
  out.loss = Loss::Output(entries.Text("loss"));
  Status set;
  for (const std::string& name : StepEntries()) {
    const Status one = SetOption(name, entries.Value(*FindTrainingOption(name)), &options);
    if (set.ok()) set = one;
  }
  const std::string optimizer = entries.Text("optimizer");
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
  if (out.accumulation_steps < 1) entries.Complain("accumulation_steps");
  if (!(out.clip_norm >= 0)) entries.Complain("clip_norm");
  if (!problems.empty())
    return InvalidModel(where + ": entries that are missing or not as they should be: " + problems);
  if (!set.ok()) return InvalidModel(where + ": " + set.message());
  auto made = MakeOptimizer(optimizer, coefficients);
  if (!made.ok()) return InvalidModel(where + ": " + made.status().message());
  out.optimizer = *made;
  return std::move(out);
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
