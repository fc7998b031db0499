// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/provider/torch_runtime_model.h"

#include <c10/core/Allocator.h>
#include <caffe2/serialize/in_memory_adapter.h>
#include <caffe2/serialize/inline_container.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/plugin/caesura_op.hpp"

namespace caesura::torch {
namespace {

using Options = std::map<std::string, std::string>;
using plugin::Error;

void CheckOptions(const Options& options, const std::string& known) {
  for (const auto& [key, value] : options) {
    if (key == known) continue;
    throw Error(CAESURA_INVALID_ARGUMENT,
                "there is no option '" + key + "'; known are: " + (known.empty() ? "none" : known));
  }
}

// "stem" where there is one, "stem_0" and so on where there are several.
std::vector<std::string> Numbered(const std::string& stem, size_t count) {
  if (count == 1) return {stem};
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.push_back(stem + "_" + std::to_string(i));
  return out;
}

class ScriptModel : public RuntimeModel {
 public:
  explicit ScriptModel(std::shared_ptr<caffe2::serialize::ReadAdapterInterface> bytes)
      : module_(::torch::jit::load(std::move(bytes), ::torch::kCPU)) {
    module_.eval();
    for (const auto& parameter : module_.parameters()) parameter.set_requires_grad(false);
    forward_ = module_.get_method("forward");
    const c10::FunctionSchema& schema = forward_->function().getSchema();
    for (size_t i = 1; i < schema.arguments().size(); ++i)
      inputs_.push_back(schema.arguments()[i].name());
    outputs_ = Numbered("output", CountOutputs(schema));
  }
  // A module's forward keeps nothing: many threads share it.
  std::vector<at::Tensor> Forward(const std::vector<at::Tensor>& inputs) const override {
    const c10::IValue result = (*forward_)({inputs.begin(), inputs.end()});
    if (result.isTensor()) return {result.toTensor()};
    if (result.isTensorList()) return result.toTensorVector();
    if (!result.isTuple())
      throw Error(CAESURA_UNSUPPORTED, "the module returns no tensors but " + result.tagKind());
    std::vector<at::Tensor> out;
    for (const c10::IValue& element : result.toTupleRef().elements()) {
      if (!element.isTensor())
        throw Error(CAESURA_UNSUPPORTED, "the module returns a tuple of other things than tensors");
      out.push_back(element.toTensor());
    }
    return out;
  }
  bool has_gradient() const override { return true; }

 private:
  static size_t CountOutputs(const c10::FunctionSchema& schema) {
    if (schema.returns().size() != 1) return schema.returns().size();
    const auto tuple = schema.returns()[0].type()->cast<c10::TupleType>();
    return tuple == nullptr ? 1 : tuple->elements().size();
  }

  ::torch::jit::Module module_;
  std::optional<::torch::jit::Method> forward_;
};

// Bytes as a file, for readers that take a path.
class TemporaryFile {
 public:
  TemporaryFile(const void* bytes, size_t size)
      : path_(std::filesystem::temp_directory_path() / "caesura-XXXXXX.pt2") {
    const int file = mkstemps(path_.data(), 4);
    if (file < 0)
      throw Error(CAESURA_IO_ERROR, "cannot make a temporary file in " +
                                        std::filesystem::temp_directory_path().string());
    size_t written = 0;
    for (ssize_t n = 1; n > 0 && written < size; written += n > 0 ? n : 0) {
      n = write(file, static_cast<const char*>(bytes) + written, size - written);
    }
    close(file);
    if (written == size) return;
    unlink(path_.c_str());
    throw Error(CAESURA_IO_ERROR, "cannot write " + std::to_string(size) + " bytes to " + path_);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Tensors in a structure as PyTorch describes it ({"type": ..., "children_spec": [...]}; a leaf has
// no type).
size_t CountLeaves(const nlohmann::json& spec) {
  if (spec.at("type").is_null()) return 1;
  size_t count = 0;
  for (const auto& child : spec.at("children_spec")) count += CountLeaves(child);
  return count;
}

size_t TakeRunners(const Options& options) {
  const auto given = options.find("runners");
  if (given == options.end()) return 1;
  const std::string& text = given->second;
  size_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count > 0) return count;
  throw Error(CAESURA_INVALID_ARGUMENT,
              "option runners: expected a number above 0, got '" + text + "'");
}

// Packages need libtorch.so by that name. Nothing else does where PyTorch has CUDA: it is then not
// in the process yet.
void OpenLibtorch() {
  Dl_info c10 = {};
  if (dladdr(reinterpret_cast<void*>(&c10::GetAllocator), &c10) == 0) return;
  const auto path = std::filesystem::path(c10.dli_fname).replace_filename("libtorch.so");
  dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);  // a package that misses it says so
}

class PackageModel : public RuntimeModel {
 public:
  PackageModel(const std::string& path, const std::string& name, size_t runners) {
    OpenLibtorch();
    using Loader = ::torch::inductor::AOTIModelPackageLoader;
    const auto facts = Loader::load_metadata_from_package(path, name);
    const auto device = facts.find("AOTI_DEVICE_KEY");
    if (device != facts.end() && device->second != "cpu") {
      throw Error(CAESURA_UNSUPPORTED, "the AOTInductor package was compiled for " +
                                           device->second + ", and runs on cpu here");
    }
    loader_ = std::make_unique<Loader>(path, name, /*run_single_threaded=*/false, runners);
    const std::vector<std::string> specs = loader_->get_call_spec();
    inputs_ = Numbered("input", CountLeaves(nlohmann::json::parse(specs.at(0)).at(1)));
    outputs_ = Numbered("output", CountLeaves(nlohmann::json::parse(specs.at(1)).at(1)));
  }
  std::vector<at::Tensor> Forward(const std::vector<at::Tensor>& inputs) const override {
    return loader_->run(inputs);
  }
  bool has_gradient() const override { return false; }

 private:
  std::unique_ptr<::torch::inductor::AOTIModelPackageLoader> loader_;
};

// Names of the compiled models in an AOTInductor package; none where it is something else.
std::set<std::string> PackagedModels(
    const std::shared_ptr<caffe2::serialize::ReadAdapterInterface>& bytes) {
  static const std::string folder = "data/aotinductor/";
  caffe2::serialize::PyTorchStreamReader reader(bytes);
  std::set<std::string> names;
  for (const std::string& record : reader.getAllRecords()) {
    const size_t end = record.find('/', folder.size());
    if (record.rfind(folder, 0) == 0 && end != record.npos)
      names.insert(record.substr(folder.size(), end - folder.size()));
  }
  return names;
}

}  // namespace

std::unique_ptr<RuntimeModel> LoadRuntimeModel(const void* bytes, size_t size,
                                               const Options& options) {
  const auto shown =
      std::make_shared<caffe2::serialize::MemoryReadAdapter>(bytes, static_cast<off_t>(size));
  const std::set<std::string> packaged = PackagedModels(shown);
  CheckOptions(options, packaged.empty() ? "" : "runners");
  if (packaged.empty()) return std::make_unique<ScriptModel>(shown);
  if (packaged.size() > 1) {
    std::string names;
    for (const std::string& name : packaged) names += (names.empty() ? "" : ", ") + name;
    throw Error(CAESURA_UNSUPPORTED,
                "the AOTInductor package holds several models (" + names + "), and a node is one");
  }
  const TemporaryFile file(bytes, size);
  return std::make_unique<PackageModel>(file.path(), *packaged.begin(), TakeRunners(options));
}

}  // namespace caesura::torch
