// SPDX-License-Identifier: Apache-2.0
#include "training/adapters/adapter_files.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/base/status_macros.h"
#include "core/files/file_system.h"
#include "core/files/safetensors.h"
#include "training/adapters/linear_layers.h"

namespace caesura {
namespace {

using Json = nlohmann::json;

constexpr char kPrefix[] = "base_model.model.";
constexpr size_t kMaxConfigBytes = size_t{1} << 24;

std::string ConfigPath(const std::string& folder) { return folder + "/adapter_config.json"; }
std::string TensorPath(const std::string& folder) { return folder + "/adapter_model.safetensors"; }

// The layer of a tensor's name, and whether it is A's; an empty name where it is neither A's nor
// B's.
std::pair<std::string, bool> LayerOf(const std::string& tensor) {
  const size_t begin = std::string(kPrefix).size();
  if (!tensor.starts_with(kPrefix)) return {};
  for (const char* end : {kLoraA, kLoraB}) {
    const size_t length = tensor.size() - begin, tail = std::string(end).size();
    if (length > tail && tensor.ends_with(end))
      return {tensor.substr(begin, length - tail), end == kLoraA};
  }
  return {};
}

// True for what PEFT writes where an option is not used.
bool IsUnused(const Json& value) {
  return value.is_null() || value == false || value == "none" ||
         (value.is_structured() && value.empty());
}

Status ReadConfig(const std::string& path, FileSystem& files, Adapter* adapter) try {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(files, path, kMaxConfigBytes));
  const Json config = Json::parse(text);
  if (!config.is_object()) return InvalidModel("'" + path + "' holds no JSON object");
  const std::string type = config.value("peft_type", std::string());
  if (type != "LORA")
    return Unsupported("'" + path + "': peft_type: expected \"LORA\", got \"" + type + "\"");
  for (const char* option : {"use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "bias",
                             "lora_bias", "modules_to_save", "layer_replication"}) {
    if (config.contains(option) && !IsUnused(config[option]))
      return Unsupported("'" + path + "': " + option + " is not supported, got " +
                         config[option].dump());
  }
  adapter->rank = config.value("r", int64_t{8});
  adapter->alpha = config.value("lora_alpha", 8.0);
  if (adapter->rank < 1 || !std::isfinite(adapter->alpha))
    return InvalidModel("'" + path + "': r: expected at least 1, got " +
                        std::to_string(adapter->rank) + " with lora_alpha " +
                        std::to_string(adapter->alpha));
  return {};
} catch (const Json::exception& error) {
  return InvalidModel("'" + path + "': " + error.what());
}

}  // namespace

Status SaveAdapter(const Adapter& adapter, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return IoError("cannot make the folder '" + folder + "': " + error.message());
  TensorFile file{{}, {{"format", "pt"}}};
  Json targets = Json::array();
  for (const auto& [name, layer] : adapter.layers) {
    file.tensors[kPrefix + name + kLoraA] = layer.a;
    file.tensors[kPrefix + name + kLoraB] = layer.b;
    targets.push_back(name);
  }
  RETURN_IF_ERROR(WriteSafetensors(TensorPath(folder), file));
  const Json config = {{"peft_type", "LORA"},
                       {"r", adapter.rank},
                       {"lora_alpha", adapter.alpha},
                       {"target_modules", targets},
                       {"bias", "none"},
                       {"fan_in_fan_out", false},
                       {"inference_mode", true},
                       {"base_model_name_or_path", nullptr},
                       {"task_type", nullptr}};
  const std::string text = config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return WriteFileAtomically(PosixFileSystem(), ConfigPath(folder),
                             [&](WritableFile& out) { return out.Write(text); });
}

Result<Adapter> ReadAdapter(const std::string& folder) {
  return ReadAdapter(folder, PosixFileSystem());
}

Result<Adapter> ReadAdapter(const std::string& folder, FileSystem& files) {
  Adapter adapter;
  RETURN_IF_ERROR(ReadConfig(ConfigPath(folder), files, &adapter));
  const std::string path = TensorPath(folder);
  ASSIGN_OR_RETURN(TensorFile file, ReadSafetensors(path, files));
  for (auto& [name, tensor] : file.tensors) {
    const auto [layer, is_a] = LayerOf(name);
    if (layer.empty())
      return Unsupported("'" + path + "': tensor '" + name + "': expected " + kPrefix + "LAYER" +
                         kLoraA + " or " + kLoraB);
    const int64_t rank = tensor.shape().rank() == 2 ? tensor.shape()[is_a ? 0 : 1] : -1;
    if (rank != adapter.rank || !IsDifferentiable(tensor.dtype()))
      return InvalidModel("'" + path + "': tensor '" + name + "': expected floats of rank " +
                          std::to_string(adapter.rank) + ", got " + DTypeName(tensor.dtype()) +
                          tensor.shape().ToString());
    Adapter::Layer& matrices = adapter.layers[layer];
    (is_a ? matrices.a : matrices.b) = std::move(tensor);
  }
  for (const auto& [name, layer] : adapter.layers) {
    if (!layer.a.defined() || !layer.b.defined())
      return InvalidModel("'" + path + "': layer '" + name + "' has no " +
                          (layer.a.defined() ? kLoraB : kLoraA));
  }
  if (adapter.layers.empty()) return InvalidModel("'" + path + "' has no tensors");
  return adapter;
}

}  // namespace caesura
