// SPDX-License-Identifier: Apache-2.0
// cudnn_graph.h: graphs of operations, by way of the stand-in driver's streams.
//
// Each graph has two engines. The first is not deterministic, and says so: each of its runs is off
// by another hundredth. The second computes what the graph says.
#include "cudnn/descriptor.h"
#include "standin.h"

using namespace standin_cudnn;

namespace {

int refusals = 0;
int uneven_runs = 0;

struct Handle {
  void* stream = nullptr;
};
Handle& Of(cudnnHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }
DescriptorPtr& Of(cudnnBackendDescriptor_t descriptor) {
  return *static_cast<DescriptorPtr*>(descriptor);
}

constexpr std::int64_t kWorkspace = 4096;
// Attributes that only the library sets.
constexpr int kIsUneven = -1, kGraph = -2;

// A descriptor that the library fills in.
void Fill(Descriptor& descriptor, const DescriptorPtr& graph, bool uneven) {
  descriptor.attributes[kGraph].descriptors = {graph};
  descriptor.attributes[kIsUneven].bytes = {uneven ? '\1' : '\0'};
  descriptor.is_final = true;
}
bool IsUneven(const Descriptor& descriptor) { return descriptor.Get<char>(kIsUneven) != 0; }

cudnnStatus_t GiveConfigs(const Descriptor& heuristic, std::int64_t most, std::int64_t* count,
                          void* to) {
  if (most == 0) {
    const bool refuses = refusals > 0;
    if (refuses) --refusals;
    *count = refuses ? 0 : 2;
    return CUDNN_STATUS_SUCCESS;
  }
  const auto graph = heuristic.Part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  *count = std::min<std::int64_t>(most, 2);
  for (std::int64_t i = 0; i < *count; ++i)
    Fill(*Of(static_cast<cudnnBackendDescriptor_t*>(to)[i]), graph, i == 0);
  return CUDNN_STATUS_SUCCESS;
}

// A plan with the addresses of its tensors.
struct Run {
  std::vector<Operation> graph;
  std::map<std::int64_t, void*> memory;
  std::vector<float> numbers;  // copies of what is given by value
  double factor = 1;
};

// Fills in the run, and the ranges that it reads and writes.
cudnnStatus_t Bind(const Descriptor& pack, Run& run, std::vector<standin_range>& ranges) {
  const auto ids = pack.All<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto addresses = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (ids.size() != addresses.size()) return CUDNN_STATUS_BAD_PARAM;
  for (std::size_t i = 0; i < ids.size(); ++i) run.memory[ids[i]] = addresses[i];
  run.numbers.reserve(ids.size());
  std::map<std::int64_t, float*> copies;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  const auto bind = [&](const Tensor& tensor, bool writes) {
    if (tensor.is_virtual) return;
    const auto found = run.memory.find(tensor.uid);
    if (found == run.memory.end() || found->second == nullptr) {
      status = CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    } else if (tensor.is_number) {
      float*& copy = copies[tensor.uid];
      if (copy == nullptr)
        copy = &run.numbers.emplace_back(*static_cast<const float*>(found->second));
      found->second = copy;
    } else if (reinterpret_cast<std::uintptr_t>(found->second) %
                   static_cast<std::uintptr_t>(tensor.alignment) !=
               0) {
      status = CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    } else {
      ranges.push_back({found->second, tensor.span(), writes ? 1 : 0});
    }
  };
  for (const Operation& op : run.graph) {
    for (const TensorPtr& input : op.inputs) bind(*input, false);
    bind(*op.output, true);
  }
  return status;
}

}  // namespace

extern "C" {

void standin_cudnn_refuse(int n) { refusals = n; }

std::size_t cudnnGetVersion(void) { return 91900; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (standin_called("cudnnCreate") != 0) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete &Of(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  Of(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                           cudnnBackendDescriptor_t* descriptor) {
  auto made = std::make_shared<Descriptor>();
  made->kind = kind;
  *descriptor = new DescriptorPtr(std::move(made));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete &Of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* from) {
  return Of(descriptor)->Set(attribute, type, count, from);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return Of(descriptor)->Finalize();
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t attribute,
                                       cudnnBackendAttributeType_t type, std::int64_t most,
                                       std::int64_t* count, void* to) {
  const Descriptor& of = *Of(descriptor);
  if (!of.is_final) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  if (attribute == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    return GiveConfigs(of, most, count, to);
  if (most < 1 || to == nullptr) return CUDNN_STATUS_BAD_PARAM;
  if (attribute == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    Fill(*Of(*static_cast<cudnnBackendDescriptor_t*>(to)), of.Part(kGraph), IsUneven(of));
    *count = 1;
  } else if (attribute == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE) {
    *count = IsUneven(of) ? 1 : 0;
    if (*count == 1)
      *static_cast<cudnnBackendNumericalNote_t*>(to) = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
  } else if (attribute == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
    *static_cast<std::int64_t*>(to) = kWorkspace;
    *count = 1;
  } else {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (standin_called("cudnnBackendExecute") != 0) return CUDNN_STATUS_EXECUTION_FAILED;
  if (!Of(plan)->is_final || !Of(pack)->is_final) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  const Descriptor& config = *Of(plan)->Part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  auto run = std::make_unique<Run>();
  run->graph = config.Part(kGraph)->graph;
  if (IsUneven(config)) run->factor = 1 + 0.01 * ++uneven_runs;
  std::vector<standin_range> ranges;
  const cudnnStatus_t status = Bind(*Of(pack), *run, ranges);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  void* workspace = Of(pack)->Get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (workspace == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  ranges.push_back({workspace, kWorkspace, 1});
  const int error = standin_enqueue(
      Of(handle).stream, "cudnnBackendExecute", ranges.data(), ranges.size(),
      [](void* argument) {
        const Run& to_run = *static_cast<Run*>(argument);
        Compute(to_run.graph, to_run.memory, to_run.factor);
        return 0;
      },
      [](void* argument) { delete static_cast<Run*>(argument); }, run.release());
  return error == 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
