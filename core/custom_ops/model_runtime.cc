// SPDX-License-Identifier: Apache-2.0
#include "core/custom_ops/model_runtime.h"

#include <algorithm>
#include <cctype>

#include "core/base/status_macros.h"
#include "core/custom_ops/plugin_op.h"
#include "core/files/external_data.h"
#include "core/plugin/op_context.h"
#include "core/plugin/plugin_library.h"

namespace caesura {
namespace {

constexpr uint64_t kMaxModelBytes = uint64_t{1} << 36;  // of a file, which is read into memory

// A name is looked for as part of a file's name.
bool IsPlainName(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

Result<ModelBytes> ReadBytes(const std::string& folder, const std::string& location) {
  if (folder.empty()) {
    return InvalidModel("names the file '" + location +
                        "', but its model was not read from a folder");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ExternalFolder> opened, ExternalFolder::Open(folder));
  ASSIGN_OR_RETURN(const ExternalFile* file, opened->OpenForReading(location));
  if (file->size() > kMaxModelBytes)
    return InvalidModel("file '" + location + "' is larger than 64 GiB");
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer,
                   HostAllocator().Allocate(static_cast<size_t>(file->size())));
  RETURN_IF_ERROR(file->Read(0, file->size(), static_cast<char*>(buffer->data())));
  return ModelBytes{buffer, buffer->data(), static_cast<size_t>(file->size())};
}

// From attribute `name` or the file that `name`_file names; empty where both are absent.
Result<ModelBytes> BytesOf(const OpNodeInfo& node, const std::string& name) {
  const std::string file = node.Attr<std::string>(name + "_file", "");
  const Tensor tensor = node.Attr<Tensor>(name, {});
  if (!file.empty() && tensor.defined())
    return InvalidModel("has both " + name + " and " + name + "_file");
  if (!file.empty()) return ReadBytes(node.model_folder, file);
  if (!tensor.defined()) return ModelBytes{};
  if (tensor.dtype() != DType::kUInt8)
    return InvalidModel("its " + name + " is no tensor of uint8");
  return ModelBytes{tensor.buffer(), tensor.raw(), tensor.bytes()};
}

// Equal for nodes that can share a model. Tensors of one session's graphs share their bytes.
std::string KeyOf(const OpNodeInfo& node, const std::string& runtime) {
  std::string key = runtime + "\n" + node.options.Serialise();
  for (const char* name : {"model", "weights"}) {
    const Tensor tensor = node.Attr<Tensor>(name, {});
    key += "\n" + node.Attr<std::string>(std::string(name) + "_file", "") + "\n" +
           std::to_string(reinterpret_cast<uintptr_t>(tensor.raw())) + "+" +
           std::to_string(tensor.bytes());
  }
  return key;
}

}  // namespace

LoadedModel::LoadedModel(const CaesuraModelRuntime& runtime, void* model)
    : runtime_(runtime), model_(model, runtime.unload == nullptr ? KeepNothing : runtime.unload) {}

Result<std::shared_ptr<LoadedModel>> LoadedModel::Load(const CaesuraModelRuntime& runtime,
                                                       const OpNodeInfo& node,
                                                       const ModelBytes& model,
                                                       const ModelBytes& weights) {
  void* handle = nullptr;
  const std::string label = std::string("runtime '") + runtime.name + "': ";
  RETURN_IF_ERROR(TakeStatus(runtime.load(ShowNode(node).get(), model.data, model.size,
                                          weights.data, weights.size, &handle))
                      .WithPrefix(label));
  std::shared_ptr<LoadedModel> out(new LoadedModel(runtime, handle));
  CaesuraOpNode description;
  RETURN_IF_ERROR(TakeStatus(runtime.describe(handle, &description)).WithPrefix(label));
  auto take = [&](const std::vector<CaesuraOpNode::Argument>& from, std::vector<std::string>* names,
                  std::vector<ValueType>* types) {
    for (const CaesuraOpNode::Argument& argument : from) {
      names->push_back(argument.name);
      types->push_back(
          description.TypeOf(argument.dtype, argument.has_rank ? &argument.dims : nullptr));
    }
  };
  take(description.inputs, &out->types_.input_names, &out->types_.inputs);
  take(description.outputs, &out->types_.output_names, &out->types_.outputs);
  return out;
}

Status LoadedModel::CheckGradient() const {
  if (runtime_.check_gradient == nullptr) return {};
  return TakeStatus(runtime_.check_gradient(model_.get()))
      .WithPrefix(std::string("runtime '") + runtime_.name + "': ");
}

Status LoadedModel::Run(CaesuraStatus* (*function)(void*, CaesuraContext*),
                        CaesuraContext& context) const {
  auto open = [this]() -> Result<std::unique_ptr<RunState>> {
    void* run = nullptr;
    RETURN_IF_ERROR(TakeStatus(runtime_.create_run(model_.get(), &run)));
    const auto destroy = runtime_.destroy_run == nullptr ? KeepNothing : runtime_.destroy_run;
    return std::make_unique<RunState>(RunState{Handle(run, destroy)});
  };
  ASSIGN_OR_RETURN(std::unique_ptr<RunState> run, runs_.Borrow(open));
  RETURN_IF_ERROR(TakeStatus(function(run->handle.get(), &context)));
  runs_.Return(std::move(run));
  return context.CheckOutputs();
}

Result<CaesuraModelRuntime> ModelRuntimes::Find(const std::string& name) {
  if (!IsPlainName(name))
    return InvalidModel("names the runtime '" + name + "': expected letters, digits and '_'");
  std::lock_guard<std::mutex> lock(mutex_);
  for (const CaesuraModelRuntime& runtime : given_) {
    if (name == runtime.name) return runtime;
  }
  if (auto it = found_.find(name); it != found_.end()) return it->second;
  const std::string path = FindPluginLibrary("caesura_runtime_" + name);
  auto library = LoadPluginLibrary(path);
  if (!library.ok()) {
    return library.status().WithPrefix("there is no runtime '" + name +
                                       "' (a plug-in in a folder of CAESURA_PLUGIN_PATH, "
                                       "or beside libcaesura): ");
  }
  for (const CaesuraModelRuntime& runtime : library->model_runtimes) {
    if (name == runtime.name) return found_[name] = runtime;
  }
  return NotFound("plug-in '" + path + "' has no runtime '" + name + "'");
}

Result<std::shared_ptr<LoadedModel>> ModelRuntimes::Load(const OpNodeInfo& node) {
  const std::string name = node.Attr<std::string>("runtime", "");
  ASSIGN_OR_RETURN(const CaesuraModelRuntime runtime, Find(name));
  if (runtime.load == nullptr || runtime.describe == nullptr || runtime.create_run == nullptr ||
      runtime.run == nullptr) {
    return InvalidArgument("runtime '" + name + "' lacks a function");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<LoadedModel>& slot = loaded_[KeyOf(node, name)];
  if (std::shared_ptr<LoadedModel> there = slot.lock()) return there;
  ASSIGN_OR_RETURN(const ModelBytes model, BytesOf(node, "model"));
  if (model.data == nullptr) return InvalidModel("has neither model nor model_file");
  ASSIGN_OR_RETURN(const ModelBytes weights, BytesOf(node, "weights"));
  ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> loaded,
                   LoadedModel::Load(runtime, node, model, weights));
  loaded->Keep({node.Attr<Tensor>("model", {}), node.Attr<Tensor>("weights", {})});
  slot = loaded;
  return loaded;
}

}  // namespace caesura
