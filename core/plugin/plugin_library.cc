// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/plugin_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "core/base/env.h"
#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/plugin/op_node.h"
#include "core/plugin/plugin_provider.h"

struct CaesuraStatus {
  caesura::Status status;
};

struct CaesuraPlugin {
  caesura::PluginLibrary library;
};

namespace caesura {
namespace {

constexpr int32_t kFirstCode = static_cast<int32_t>(StatusCode::kInvalidArgument);
constexpr int32_t kLastCode = static_cast<int32_t>(StatusCode::kInternal);
static_assert(kFirstCode == CAESURA_INVALID_ARGUMENT && kLastCode == CAESURA_INTERNAL);
static_assert(static_cast<int32_t>(StatusCode::kProviderFailure) == CAESURA_PROVIDER_FAILURE);

CaesuraStatus* MakeStatus(int32_t code, const char* message) {
  const bool known = code >= kFirstCode && code <= kLastCode;
  return new CaesuraStatus{
      Status(known ? static_cast<StatusCode>(code) : StatusCode::kInternal, message)};
}

// A description as its writer knew it; what the writer did not know is zero.
template <typename T>
CaesuraStatus* Add(std::vector<T>& list, const T* given, const char* T::* name, const char* what) {
  T copy = {};
  if (given == nullptr || given->size < sizeof(size_t) + sizeof(const char*)) {
    return MakeStatus(CAESURA_INVALID_ARGUMENT, (std::string(what) + " has no size").c_str());
  }
  std::memcpy(&copy, given, std::min(given->size, sizeof(T)));
  if (copy.*name == nullptr || *(copy.*name) == '\0') {
    return MakeStatus(CAESURA_INVALID_ARGUMENT, (std::string(what) + " has no name").c_str());
  }
  list.push_back(copy);
  return nullptr;
}

// The folder of the library that this function is in.
std::string OwnFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(&OwnFolder), &info) == 0 || info.dli_fname == nullptr)
    return {};
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

struct Folders {
  std::mutex mutex;
  std::vector<std::string> folders;
};

Folders& AddedFolders() {
  static auto* folders = new Folders;
  return *folders;
}

}  // namespace

CaesuraStatus* GiveStatus(Status status) {
  return status.ok() ? nullptr : new CaesuraStatus{std::move(status)};
}

Status TakeStatus(CaesuraStatus* status) {
  if (status == nullptr) return {};
  Status taken = std::move(status->status);
  delete status;
  return taken;
}

const CaesuraApi& PluginApi() {
  static const CaesuraOpApi op = [] {
    CaesuraOpApi out = {};
    out.size = sizeof(out);
    AddNodeFunctions(&out);
    AddContextFunctions(&out);
    AddGradientFunctions(&out);
    return out;
  }();
  static const CaesuraApi api = {
      .size = sizeof(CaesuraApi),
      .version = CAESURA_PLUGIN_VERSION,
      .make_status = MakeStatus,
      .status_code =
          [](const CaesuraStatus* s) {
            return s == nullptr ? 0 : static_cast<int32_t>(s->status.code());
          },
      .status_message =
          [](const CaesuraStatus* s) { return s == nullptr ? "" : s->status.message().c_str(); },
      .release_status = [](CaesuraStatus* s) { delete s; },
      .log_warning = [](const char* message) { LogWarning(message); },
      .add_op =
          [](CaesuraPlugin* plugin, const CaesuraOp* op) {
            return Add(plugin->library.ops, op, &CaesuraOp::op_type, "an op");
          },
      .add_model_runtime =
          [](CaesuraPlugin* plugin, const CaesuraModelRuntime* runtime) {
            return Add(plugin->library.model_runtimes, runtime, &CaesuraModelRuntime::name,
                       "a model runtime");
          },
      .add_provider =
          [](CaesuraPlugin* plugin, const CaesuraProvider* provider) {
            return Add(plugin->library.providers, provider, &CaesuraProvider::name, "a provider");
          },
      .op = &op,
      .provider = &PluginProviderApi(),
  };
  return api;
}

Result<PluginLibrary> CallPluginMain(CaesuraPluginMainFunction* main, const std::string& name) {
  CaesuraPlugin plugin;
  plugin.library.path = name;
  RETURN_IF_ERROR(TakeStatus(main(&PluginApi(), &plugin)).WithPrefix("plug-in '" + name + "': "));
  return std::move(plugin.library);
}

void AddPluginFolder(const std::string& folder) {
  std::lock_guard<std::mutex> lock(AddedFolders().mutex);
  AddedFolders().folders.push_back(folder);
}

std::string FindPluginLibrary(const std::string& stem) {
  const std::string file = "lib" + stem + ".so";
  std::vector<std::string> folders = env::PluginPath();
  folders.push_back(OwnFolder());
  {
    std::lock_guard<std::mutex> lock(AddedFolders().mutex);
    const auto& added = AddedFolders().folders;
    folders.insert(folders.end(), added.begin(), added.end());
  }
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + file;
    std::error_code error;
    if (!folder.empty() && std::filesystem::exists(path, error)) return path;
  }
  return file;
}

Result<PluginLibrary> LoadPluginLibrary(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotFound("plug-in '" + path + "' cannot be opened: " + dlerror());
  void* found = dlsym(library, "CaesuraPluginMain");
  if (found == nullptr) {
    dlclose(library);
    return Unsupported("'" + path + "' is no plug-in: it exports no CaesuraPluginMain");
  }
  return CallPluginMain(reinterpret_cast<CaesuraPluginMainFunction*>(found), path);
}

}  // namespace caesura
