// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/plugin_provider.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/plugin/graph_view.h"
#include "core/plugin/plugin_library.h"
#include "core/providers/compiled_subgraph.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/cuda/cuda_provider.h"

// One call of run: who makes outputs whose shapes show there.
struct CaesuraRun {
  const caesura::CompiledSubgraph::MakeOutput& make_output;
  size_t outputs;
};

namespace caesura {
namespace {

constexpr char kMinNodesOption[] = "min_nodes";
constexpr char kProviderSuffix[] = "ExecutionProvider";

// The result of the plug-in's create. Compiled parts and buffers hold it, so that it is released
// last.
struct Instance {
  Instance(const CaesuraProvider& described, void* made) : plugin(described), handle(made) {}
  ~Instance() { plugin.release(handle); }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const CaesuraProvider plugin;
  void* const handle;
};

class PluginAllocator : public Allocator {
 public:
  PluginAllocator(std::shared_ptr<Instance> instance, Device device)
      : instance_(std::move(instance)), device_(device) {}

  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    void* data = nullptr;
    Status status = TakeStatus(instance_->plugin.allocate(instance_->handle, size, &data));
    if (!status.ok() && status.code() != StatusCode::kOutOfMemory)
      return ProviderFailure(status.message());
    RETURN_IF_ERROR(status);
    auto release = [instance = instance_](void* p) { instance->plugin.free(instance->handle, p); };
    return std::make_shared<Buffer>(data, size, device_, std::move(release));
  }
  Device device() const override { return device_; }

 private:
  std::shared_ptr<Instance> instance_;
  const Device device_;
};

CaesuraTensor TensorOf(const SubgraphArgument& argument, Device device) {
  CaesuraTensor out = {};
  out.data = argument.data;
  out.rank = -1;
  if (argument.shape != nullptr) {
    out.dims = argument.shape->begin();
    out.rank = argument.shape->rank();
  }
  out.dtype = static_cast<int32_t>(argument.dtype);
  out.device_type = static_cast<int32_t>(device.type);
  out.device_index = device.index;
  return out;
}

class PluginSubgraph : public CompiledSubgraph {
 public:
  PluginSubgraph(std::shared_ptr<Instance> instance, Device device, void* compiled)
      : instance_(std::move(instance)), device_(device), compiled_(compiled) {}
  ~PluginSubgraph() override { instance_->plugin.release_compiled(compiled_); }

  Status Run(const std::vector<SubgraphArgument>& inputs,
             const std::vector<SubgraphArgument>& outputs,
             const MakeOutput& make_output) const override {
    std::vector<CaesuraTensor> given, wanted;
    for (const SubgraphArgument& input : inputs) given.push_back(TensorOf(input, device_));
    for (const SubgraphArgument& output : outputs) wanted.push_back(TensorOf(output, device_));
    CaesuraRun run{make_output, outputs.size()};
    return TakeStatus(instance_->plugin.run(compiled_, &run, given.data(), given.size(),
                                            wanted.data(), wanted.size()));
  }

 private:
  const std::shared_ptr<Instance> instance_;
  const Device device_;
  void* const compiled_;
};

class PluginCompiler : public SubgraphCompiler {
 public:
  PluginCompiler(std::shared_ptr<Instance> instance, Device device, int min_nodes)
      : instance_(std::move(instance)), device_(device), min_nodes_(min_nodes) {}

  Result<std::vector<int>> Capability(const CapabilityRequest& request) const override {
    const CaesuraGraph view(request.graph, request.offered, request.changing);
    std::vector<int32_t> groups(view.nodes.size(), 0);
    RETURN_IF_ERROR(
        TakeStatus(instance_->plugin.capability(instance_->handle, &view, groups.data())));
    return std::vector<int>(groups.begin(), groups.end());
  }
  int min_nodes() const override { return min_nodes_; }
  bool any_shape() const override {
    return instance_->plugin.any_shape != nullptr &&
           instance_->plugin.any_shape(instance_->handle) != 0;
  }
  Result<std::shared_ptr<const CompiledSubgraph>> Compile(const Model& subgraph,
                                                          int threads) const override {
    const std::unordered_set<std::string> none;
    const CaesuraGraph view(*subgraph.graph, {}, none);
    void* compiled = nullptr;
    RETURN_IF_ERROR(
        TakeStatus(instance_->plugin.compile(instance_->handle, &view, threads, &compiled)));
    return std::shared_ptr<const CompiledSubgraph>(
        std::make_shared<PluginSubgraph>(instance_, device_, compiled));
  }

 private:
  const std::shared_ptr<Instance> instance_;
  const Device device_;
  const int min_nodes_;
};

class PluginProvider : public ExecutionProvider {
 public:
  PluginProvider(std::shared_ptr<Instance> instance, Device device, int min_nodes)
      : instance_(instance),
        name_(instance->plugin.name),
        device_(device),
        compiler_(instance, device, min_nodes) {
    kernels_.Add(CompiledSubgraphKernel(compiler_, name_));
    if (!device.is_host())
      allocator_ = std::make_unique<PluginAllocator>(std::move(instance), device);
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return device_; }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return allocator_ ? *allocator_ : HostAllocator(); }
  std::string rounding() const override {
    return name_ + (instance_->plugin.version == nullptr ? "" : instance_->plugin.version);
  }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    if (device_.is_host()) return ExecutionProvider::Copy(kind, to, from, bytes);
    if (bytes == 0) return {};
    return Failed("copy", instance_->plugin.copy(instance_->handle, static_cast<int32_t>(kind), to,
                                                 from, bytes));
  }
  Status Synchronise() const override {
    if (device_.is_host()) return {};
    return Failed("synchronise", instance_->plugin.synchronise(instance_->handle));
  }
  void* stream() const override {
    return instance_->plugin.stream == nullptr ? nullptr
                                               : instance_->plugin.stream(instance_->handle);
  }
  const SubgraphCompiler* compiler() const override { return &compiler_; }

 private:
  Status Failed(const char* what, CaesuraStatus* given) const {
    const Status status = TakeStatus(given);
    return status.ok() ? status
                       : ProviderFailure(name_ + " failed to " + what + ": " + status.message());
  }

  const std::shared_ptr<Instance> instance_;
  const std::string name_;
  const Device device_;
  PluginCompiler compiler_;
  KernelRegistry kernels_;
  std::unique_ptr<PluginAllocator> allocator_;
};

static_assert(static_cast<int>(CopyKind::kToDevice) == CAESURA_TO_DEVICE &&
              static_cast<int>(CopyKind::kToHost) == CAESURA_TO_HOST &&
              static_cast<int>(CopyKind::kWithin) == CAESURA_WITHIN);
static_assert(static_cast<int>(DeviceType::kCpu) == CAESURA_CPU &&
              static_cast<int>(DeviceType::kCuda) == CAESURA_CUDA &&
              static_cast<int>(DeviceType::kOther) == CAESURA_OTHER);

Status CheckDescription(const CaesuraProvider& p) {
  const std::string who = "provider " + std::string(p.name);
  const bool complete = p.create != nullptr && p.release != nullptr && p.capability != nullptr &&
                        p.compile != nullptr && p.release_compiled != nullptr && p.run != nullptr;
  if (!complete)
    return Unsupported(who +
                       " lacks one of create, release, capability, compile, release_compiled, run");
  const int memory = (p.device != nullptr) + (p.allocate != nullptr) + (p.free != nullptr) +
                     (p.copy != nullptr) + (p.synchronise != nullptr);
  if (memory == 0 || memory == 5) return {};
  return Unsupported(who +
                     " has some of device, allocate, free, copy and synchronise, but not all");
}

Result<Device> DeviceOf(const Instance& instance) {
  if (instance.plugin.device == nullptr) return Device{};
  int32_t type = CAESURA_OTHER, index = 0;
  RETURN_IF_ERROR(TakeStatus(instance.plugin.device(instance.handle, &type, &index)));
  if (type != CAESURA_CUDA && type != CAESURA_OTHER) {
    return Unsupported("provider " + std::string(instance.plugin.name) +
                       " has memory of its own, but device type " + std::to_string(type));
  }
  return Device{static_cast<DeviceType>(type), static_cast<int16_t>(index)};
}

Result<int> TakeMinNodes(ProviderOptions* options, int fallback) {
  const auto found = options->find(kMinNodesOption);
  if (found == options->end()) return std::max(1, fallback);
  const std::string text = found->second;
  options->erase(found);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    return InvalidArgument("option min_nodes: expected a number above 0, got '" + text + "'");
  }
  return value;
}

}  // namespace

const CaesuraProviderApi& PluginProviderApi() {
  static const CaesuraProviderApi api = [] {
    CaesuraProviderApi out = {};
    out.size = sizeof(out);
    FillGraphFunctions(&out);
    out.make_output = [](CaesuraRun* run, size_t i, int32_t dtype, const int64_t* dims,
                         int32_t rank, void** data) {
      const bool known =
          dtype > 0 && dtype < kDTypeCount && dtype != static_cast<int32_t>(DType::kString);
      const bool sized =
          rank == 0 || (rank > 0 && dims != nullptr && *std::min_element(dims, dims + rank) >= 0);
      if (i >= run->outputs || !known || !sized)
        return GiveStatus(InvalidArgument("make_output: no such output"));
      auto made = run->make_output(static_cast<int>(i), static_cast<DType>(dtype),
                                   Shape(std::vector<int64_t>(dims, dims + rank)));
      if (made.ok()) *data = made->raw();
      return GiveStatus(made.status());
    };
    return out;
  }();
  return api;
}

Result<std::shared_ptr<const ExecutionProvider>> MakePluginProvider(
    const CaesuraProvider& description, const ProviderOptions& options) {
  RETURN_IF_ERROR(CheckDescription(description));
  ProviderOptions own = options;
  ASSIGN_OR_RETURN(const int min_nodes, TakeMinNodes(&own, description.min_nodes));
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : own) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  const CaesuraOptions given = {keys.data(), values.data(), keys.size()};
  void* handle = nullptr;
  RETURN_IF_ERROR(TakeStatus(description.create(&given, &handle))
                      .WithPrefix(std::string(description.name) + ": "));
  auto instance = std::make_shared<Instance>(description, handle);
  ASSIGN_OR_RETURN(const Device device, DeviceOf(*instance));
  return std::shared_ptr<const ExecutionProvider>(
      std::make_shared<PluginProvider>(std::move(instance), device, min_nodes));
}

Result<std::shared_ptr<const ExecutionProvider>> ProviderByName(const std::string& name,
                                                                const ProviderOptions& options) {
  if (name == kCpuProviderName) {
    if (options.empty()) return MakeCpuProvider();
    return InvalidArgument(name + " has no option '" + options.begin()->first + "'");
  }
  if (name == kCudaProviderName) {
    ASSIGN_OR_RETURN(const CudaOptions parsed, ParseCudaOptions(options));
    return MakeCudaProvider(parsed);
  }
  std::string path = name;
  if (name.find('/') == std::string::npos) {
    std::string stem = name;
    if (stem.ends_with(kProviderSuffix)) stem.resize(stem.size() - std::size(kProviderSuffix) + 1);
    std::transform(stem.begin(), stem.end(), stem.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    path = FindPluginLibrary("caesura_" + stem);
  }
  ASSIGN_OR_RETURN(const PluginLibrary library, LoadPluginLibrary(path));
  for (const CaesuraProvider& provider : library.providers) {
    if (path == name || provider.name == name) return MakePluginProvider(provider, options);
  }
  return NotFound("plug-in '" + path + "' offers no provider" + (path == name ? "" : " " + name));
}

}  // namespace caesura
