// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/cuda_device.h"

#include <cassert>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/cuda/cuda_source.h"
#include "core/cuda/kernel_program.h"

namespace caesura {
namespace {

// Errors after which no call in the context works any more.
bool LosesContext(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: return true;
    default: return false;
  }
}

}  // namespace

#define RETURN_IF_CUDA_FAILS(call, ...)                                  \
  do {                                                                   \
    const CUresult cuda_result = libraries_->driver.call(__VA_ARGS__);   \
    if (cuda_result != CUDA_SUCCESS) return Failure(#call, cuda_result); \
  } while (false)

Status CudaDevice::Failure(const char* call, CUresult result) const {
  const char *name = nullptr, *text = nullptr;
  libraries_->driver.cuGetErrorName(result, &name);
  libraries_->driver.cuGetErrorString(result, &text);
  std::string message = std::string(call) + " failed on cuda:" + std::to_string(index_) + ": " +
                        (name == nullptr ? std::to_string(result) : name) +
                        (text == nullptr ? "" : std::string(", ") + text);
  if (LosesContext(result))
    message += "; the process has lost the device's context, and with it all memory on the device";
  return Status(StatusCode::kProviderFailure, std::move(message));
}

Result<std::shared_ptr<CudaDevice>> CudaDevice::Create(const CudaOptions& options) {
  ASSIGN_OR_RETURN(auto libraries, OpenCudaLibraries(options.libraries));
  std::shared_ptr<CudaDevice> out(new CudaDevice(std::move(libraries)));
  RETURN_IF_ERROR(out->Open(options));
  return out;
}

Status CudaDevice::Open(const CudaOptions& options) {
  index_ = options.device_id;
  tf32_ = options.tf32;
  const CUresult ready = libraries_->driver.cuInit(0);
  if (ready != CUDA_SUCCESS)
    return Unsupported("the CUDA provider has no device: " + Failure("cuInit", ready).message());
  int count = 0;
  RETURN_IF_CUDA_FAILS(cuDeviceGetCount, &count);
  if (index_ < 0 || index_ >= count) {
    return Unsupported("the CUDA provider has no device " + std::to_string(index_) + ": there " +
                       (count == 1 ? "is 1" : "are " + std::to_string(count)));
  }
  RETURN_IF_CUDA_FAILS(cuDeviceGet, &handle_, index_);
  int major = 0, minor = 0;
  RETURN_IF_CUDA_FAILS(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                       handle_);
  RETURN_IF_CUDA_FAILS(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                       handle_);
  RETURN_IF_CUDA_FAILS(cuDeviceGetAttribute, &multiprocessors_,
                       CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle_);
  architecture_ = "sm_" + std::to_string(major) + std::to_string(minor);
  // The primary context is that of CUDA's runtime library too: PyTorch's tensors are in it.
  RETURN_IF_CUDA_FAILS(cuDevicePrimaryCtxRetain, &context_, handle_);
  RETURN_IF_ERROR(MakeCurrent());
  stream_ = static_cast<CUstream>(options.stream);
  if (stream_ == nullptr) {
    RETURN_IF_CUDA_FAILS(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
    owns_stream_ = true;
  }
  CUmemPoolProps pool = {};
  pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index_};
  RETURN_IF_CUDA_FAILS(cuMemPoolCreate, &pool_, &pool);
  // Steps allocate the same sizes again and again: the pool gives nothing back to the driver.
  cuuint64_t keep = UINT64_MAX;
  RETURN_IF_CUDA_FAILS(cuMemPoolSetAttribute, pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
  memory_limit_ = options.memory_limit;
  allocate_ = options.allocate;
  const cublas_lt::Status status = libraries_->cublas_lt.Create(&cublas_lt_);
  if (status != cublas_lt::kSuccess) {
    return Unsupported("the CUDA provider cannot start cuBLASLt: cublasLtCreate returned " +
                       std::to_string(status));
  }
  RETURN_IF_ERROR(StartCudnn(!options.libraries.cudnn.empty()));
  // Not a buffer of the provider's own: that would keep the device alive.
  constexpr size_t kBytes = (2 + kCounters) * sizeof(unsigned);
  CUdeviceptr cells = 0;
  RETURN_IF_CUDA_FAILS(cuMemAllocFromPoolAsync, &cells, kBytes, pool_, stream_);
  cells_ = std::make_shared<Buffer>(reinterpret_cast<void*>(cells), kBytes, device(), nullptr);
  RETURN_IF_CUDA_FAILS(cuMemsetD8Async, cells, 0, kBytes, stream_);
  return {};
}

// cuDNN makes steps faster, not possible: only a user who has named it is refused without it.
Status CudaDevice::StartCudnn(bool is_wanted) {
  const auto lose = [](const std::string& why, const std::string& remedy) {
    LogLost("cuDNN",
            why + ". Attention runs in caesura's own kernels, convolutions on the CPU. " + remedy);
  };
  if (!libraries_->cudnn) {
    lose(libraries_->why_no_cudnn, "pip install caesura-train[cuda] brings it");
    return {};
  }
  const cudnn::Functions& cudnn = *libraries_->cudnn;
  cudnn::Status status = cudnn.Create(&cudnn_);
  if (status == cudnn::kSuccess) status = cudnn.SetStream(cudnn_, stream_);
  if (status == cudnn::kSuccess) return {};
  if (cudnn_ != nullptr) cudnn.Destroy(std::exchange(cudnn_, nullptr));
  const std::string why = "the CUDA provider cannot start cuDNN: its status is " +
                          std::to_string(static_cast<int>(status));
  if (is_wanted) return Unsupported(why);
  lose(why, "NVIDIA's documentation of cudnnStatus_t says what the number means");
  return {};
}

CudaDevice::~CudaDevice() {
  if (gate_.watcher.joinable()) {
    {
      std::lock_guard<std::mutex> lock(gate_.watch_mutex);
      gate_.is_ending = true;
    }
    gate_.watch_ends.notify_one();
    gate_.watcher.join();
  }
  if (context_ == nullptr) return;
  const auto& driver = libraries_->driver;
  const bool is_lost = !MakeCurrent().ok();
  if (!is_lost) {
    for (const auto& [source, module] : modules_) {
      if (module.handle != nullptr) driver.cuModuleUnload(module.handle);
    }
    if (cells_ != nullptr)
      driver.cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(cells_->data()), stream_);
    if (stream_ != nullptr) driver.cuStreamSynchronize(stream_);
    for (void* pinned : {static_cast<void*>(gate_.opened), pages_}) {
      if (pinned != nullptr) driver.cuMemFreeHost(pinned);
    }
  }
  // These hold memory of the host's too.
  if (cudnn_ != nullptr) libraries_->cudnn->Destroy(cudnn_);
  if (cublas_lt_ != nullptr) libraries_->cublas_lt.Destroy(cublas_lt_);
  if (is_lost) return;
  if (pool_ != nullptr) driver.cuMemPoolDestroy(pool_);
  if (owns_stream_) driver.cuStreamDestroy(stream_);
  driver.cuDevicePrimaryCtxRelease(handle_);
}

bool CudaDevice::IsCurrent() const {
  CUcontext current = nullptr;
  return libraries_->driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context_;
}

Status CudaDevice::MakeCurrent() const {
  CUcontext current = nullptr;
  RETURN_IF_CUDA_FAILS(cuCtxGetCurrent, &current);
  if (current != context_) RETURN_IF_CUDA_FAILS(cuCtxSetCurrent, context_);
  return {};
}

Result<std::shared_ptr<Buffer>> CudaDevice::Allocate(size_t size) {
  if (size == 0) return std::make_shared<Buffer>(nullptr, 0, device(), nullptr);
  RETURN_IF_ERROR(MakeCurrent());
  const size_t before = allocated_.fetch_add(size);
  auto refuse = [&](const std::string& why) -> Status {
    allocated_ -= size;
    return Status(StatusCode::kProviderFailure,
                  "cuda:" + std::to_string(index_) + " has no memory for " + std::to_string(size) +
                      " bytes beside " + std::to_string(before) + " in use: " + why);
  };
  if (memory_limit_ != 0 && before + size > memory_limit_)
    return refuse("the provider's limit is " + std::to_string(memory_limit_));
  if (allocate_) {
    Result<std::shared_ptr<void>> made = allocate_(size);
    if (!made.ok()) return refuse(made.status().message());
    void* const address = made->get();
    return std::make_shared<Buffer>(
        address, size, device(),
        [self = shared_from_this(), size, held = *made](void*) { self->allocated_ -= size; });
  }
  CUdeviceptr data = 0;
  const CUresult result = libraries_->driver.cuMemAllocFromPoolAsync(&data, size, pool_, stream_);
  if (result != CUDA_SUCCESS) return refuse(Failure("cuMemAllocFromPoolAsync", result).message());
  return std::make_shared<Buffer>(
      reinterpret_cast<void*>(data), size, device(),
      [self = shared_from_this(), size](void* data) { self->Free(data, size); });
}

void CudaDevice::Free(void* data, size_t size) {
  allocated_ -= size;
  if (MakeCurrent().ok())
    libraries_->driver.cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(data), stream_);
}

Status CudaDevice::CopyToDevice(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) return {};
  RETURN_IF_ERROR(MakeCurrent());
  RETURN_IF_CUDA_FAILS(cuMemcpyHtoDAsync, reinterpret_cast<CUdeviceptr>(to), from, bytes, stream_);
  return {};
}

Status CudaDevice::CopyToHost(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) return {};
  RETURN_IF_ERROR(MakeCurrent());
  RETURN_IF_CUDA_FAILS(cuMemcpyDtoHAsync, to, reinterpret_cast<CUdeviceptr>(from), bytes, stream_);
  return {};
}

Status CudaDevice::CopyWithin(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) return {};
  RETURN_IF_ERROR(MakeCurrent());
  RETURN_IF_CUDA_FAILS(cuMemcpyDtoDAsync, reinterpret_cast<CUdeviceptr>(to),
                       reinterpret_cast<CUdeviceptr>(from), bytes, stream_);
  return {};
}

Status CudaDevice::Synchronise() const {
  RETURN_IF_ERROR(MakeCurrent());
  bool may_fail = false;
  {
    std::lock_guard<std::mutex> lock(errors_mutex_);
    may_fail = !errors_.empty();
  }
  if (may_fail) return TakeError();
  RETURN_IF_CUDA_FAILS(cuStreamSynchronize, stream_);
  return {};
}

// --- the gate ---

Status CudaDevice::AllocatePinned() {
  void *words = nullptr, *pages = nullptr;
  if (gate_.opened == nullptr) {
    RETURN_IF_CUDA_FAILS(cuMemHostAlloc, &words, kHostBytes, CU_MEMHOSTALLOC_PORTABLE);
    std::memset(words, 0, kHostBytes);
    gate_.opened = static_cast<unsigned*>(words);
    gate_.forbidden = gate_.opened + 1;
  }
  RETURN_IF_CUDA_FAILS(cuMemHostAlloc, &pages, (1 + kHostPages) * kHostBytes,
                       CU_MEMHOSTALLOC_PORTABLE);
  std::lock_guard<std::mutex> lock(pages_mutex_);
  pages_ = pages;
  gate_.error = static_cast<unsigned*>(pages);
  for (int i = 1; i <= kHostPages; ++i)
    free_pages_.push_back(static_cast<char*>(pages) + static_cast<size_t>(i) * kHostBytes);
  return {};
}

// Puts the wait for gate_.number on the stream, then the kernel that tells the next ones whether
// they may write. False: the device cannot wait. Where it fails the gate is open.
Result<bool> CudaDevice::PutGate() {
  const CUresult result = libraries_->driver.cuStreamWaitValue32(
      stream_, reinterpret_cast<CUdeviceptr>(gate_.opened), gate_.number, CU_STREAM_WAIT_VALUE_GEQ);
  if (result == CUDA_ERROR_NOT_SUPPORTED) return false;
  if (result != CUDA_SUCCESS) return Failure("cuStreamWaitValue32", result);
  const unsigned* forbidden = gate_.forbidden;
  unsigned* cell = gate_cell();
  void* arguments[] = {&forbidden, &gate_.number, &cell};
  const Status launched = Launch(gate_.read, 1, 1, 0, arguments);
  if (launched.ok()) return true;
  SignalGate(gate_.number);
  return launched;
}

void CudaDevice::SignalGate(unsigned number) {
  std::atomic_ref<unsigned>(*gate_.opened).store(number, std::memory_order_release);
}

// A thread that waits for all of the device's work, as cudaFree does, may keep others from the
// driver meanwhile, and so from opening a gate that it waits for.
void CudaDevice::WatchGate() {
  std::unique_lock<std::mutex> lock(gate_.watch_mutex);
  unsigned seen = 0;
  while (
      !gate_.watch_ends.wait_for(lock, std::chrono::seconds(1), [&] { return gate_.is_ending; })) {
    unsigned number = gate_.closed;
    if (number == 0 || number != std::exchange(seen, number)) continue;
    if (!gate_.closed.compare_exchange_strong(number, 0)) continue;
    gate_.interrupted = true;
    std::atomic_ref<unsigned>(*gate_.forbidden) = number;
    SignalGate(number);
    LogWarning("a thread waited for cuda:" + std::to_string(index_) +
               " while another one put a training step there, and they blocked each other: the "
               "step is done again; optimizers copy what they write from now on");
    return;
  }
}

// A launch may return only when its kernel has run: the host would wait at a closed gate for ever.
// So another thread opens the first gate, if it takes a second.
Status CudaDevice::TryGate() {
  ASSIGN_OR_RETURN(gate_.read, Function(CudaInclude("core/cuda/read_gate.cuh"), "read_gate"));
  RETURN_IF_CUDA_FAILS(cuStreamSynchronize, stream_);
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false, in_time = false;
  std::jthread opener([&, number = ++gate_.number] {
    std::unique_lock<std::mutex> lock(mutex);
    in_time = changed.wait_for(lock, std::chrono::seconds(1), [&] { return returned; });
    SignalGate(number);
  });
  const Result<bool> put = PutGate();
  {
    std::lock_guard<std::mutex> lock(mutex);
    returned = true;
  }
  changed.notify_one();
  opener.join();
  RETURN_IF_ERROR(put.status());
  gate_.usable = *put && in_time;
  if (*put && !in_time) {
    LogWarning("kernel launches on cuda:" + std::to_string(index_) +
               " return only when the kernel has run (CUDA_LAUNCH_BLOCKING, or a tool that watches "
               "kernels): optimizers copy what they write");
  }
  if (*gate_.usable) gate_.watcher = std::thread([this] { WatchGate(); });
  return {};
}

Result<bool> CudaDevice::CloseGate() {
  if (!gate_.mutex.try_lock()) return false;
  std::unique_lock<std::mutex> lock(gate_.mutex, std::adopt_lock);
  RETURN_IF_ERROR(MakeCurrent());
  if (pages_ == nullptr && !AllocatePinned().ok()) return false;
  if (!gate_.usable) RETURN_IF_ERROR(TryGate());
  if (!*gate_.usable || gate_.interrupted) return false;
  gate_.closed = ++gate_.number;  // the watcher's too from here on: a launch may block already
  const Result<bool> waits = PutGate();
  if (!waits.ok() || !*waits) {
    gate_.closed = 0;
    return waits;
  }
  gate_.owner = std::this_thread::get_id();
  lock.release();
  return true;
}

Status CudaDevice::OpenGate(bool write) {
  assert(gate_.owner == std::this_thread::get_id());
  if (write) {
    RETURN_IF_ERROR(MakeCurrent());
    RETURN_IF_CUDA_FAILS(cuMemcpyDtoHAsync, gate_.error,
                         reinterpret_cast<CUdeviceptr>(error_cell()), sizeof *gate_.error, stream_);
  }
  unsigned number = gate_.number;
  const bool opens = gate_.closed.compare_exchange_strong(number, 0);
  if (write && !opens) {
    gate_.interrupted = true;  // the watcher may not have come to say it
    return Status(StatusCode::kProviderFailure, "the updates on cuda:" + std::to_string(index_) +
                                                    " were let through without writing");
  }
  std::unique_lock<std::mutex> lock(gate_.mutex, std::adopt_lock);
  gate_.owner = std::thread::id();
  if (!write) std::atomic_ref<unsigned>(*gate_.forbidden) = gate_.number;
  if (opens) SignalGate(gate_.number);
  if (write) return {};
  // A device that fails here has lost its context, and its memory with it.
  if (MakeCurrent().ok()) libraries_->driver.cuStreamSynchronize(stream_);
  return {};
}

Status CudaDevice::WaitForHeld() const {
  RETURN_IF_ERROR(MakeCurrent());
  RETURN_IF_CUDA_FAILS(cuStreamSynchronize, stream_);
  return Told(*gate_.error);
}

const unsigned* CudaDevice::gate() const {
  return gate_.owner == std::this_thread::get_id() ? gate_cell() : nullptr;
}

std::shared_ptr<Buffer> CudaDevice::HostMemory(size_t bytes) {
  std::lock_guard<std::mutex> lock(pages_mutex_);
  if (bytes > kHostBytes || free_pages_.empty()) return nullptr;
  void* const page = free_pages_.back();
  free_pages_.pop_back();
  return std::make_shared<Buffer>(page, bytes, Device(), [self = shared_from_this()](void* page) {
    std::lock_guard<std::mutex> lock(self->pages_mutex_);
    self->free_pages_.push_back(page);
  });
}

unsigned CudaDevice::AddError(std::string message) {
  std::lock_guard<std::mutex> lock(errors_mutex_);
  errors_.push_back(std::move(message));
  return static_cast<unsigned>(errors_.size());
}

Status CudaDevice::TakeError() const {
  unsigned number = 0;
  const auto cell = reinterpret_cast<CUdeviceptr>(error_cell());
  RETURN_IF_CUDA_FAILS(cuMemcpyDtoHAsync, &number, cell, sizeof number, stream_);
  RETURN_IF_CUDA_FAILS(cuStreamSynchronize, stream_);
  return Told(number);
}

// The error of this number; the cell is free for the next one.
Status CudaDevice::Told(unsigned number) const {
  if (number == 0) return {};
  RETURN_IF_CUDA_FAILS(cuMemsetD8Async, reinterpret_cast<CUdeviceptr>(error_cell()), 0,
                       sizeof number, stream_);
  // Held for this only: a thread that plans adds errors meanwhile, and does not wait for a stream.
  std::lock_guard<std::mutex> lock(errors_mutex_);
  return InvalidArgument(errors_[number - 1]);
}

// An image on disk that the driver does not take (another NVRTC has made it) is made again.
Result<CUmodule> CudaDevice::LoadModule(const std::string& source) const {
  const KernelProgram program{WithCudaFiles(source), architecture_};
  CUmodule module = nullptr;
  if (const auto kept = KeptKernel(*libraries_, program)) {
    const CUresult result =
        libraries_->driver.cuModuleLoadDataEx(&module, kept->data(), 0, nullptr, nullptr);
    if (result == CUDA_SUCCESS) return module;
    if (LosesContext(result)) return Failure("cuModuleLoadDataEx", result);
  }
  ASSIGN_OR_RETURN(const std::string image, CompileKernel(*libraries_, program));
  RETURN_IF_CUDA_FAILS(cuModuleLoadDataEx, &module, image.data(), 0, nullptr, nullptr);
  return module;
}

Result<CUfunction> CudaDevice::Function(const std::string& source, const std::string& kernel) {
  RETURN_IF_ERROR(MakeCurrent());
  std::unique_lock<std::mutex> table(modules_mutex_);
  Module& module = modules_[source];  // stays where it is
  table.unlock();
  std::lock_guard<std::mutex> lock(module.mutex);
  if (module.handle == nullptr) {
    ASSIGN_OR_RETURN(module.handle, LoadModule(source));
  }
  CUfunction function = nullptr;
  RETURN_IF_CUDA_FAILS(cuModuleGetFunction, &function, module.handle, kernel.c_str());
  // Else the first launch loads it, and may wait for the device while a gate is closed.
  RETURN_IF_CUDA_FAILS(cuFuncLoad, function);
  return function;
}

Status CudaDevice::Launch(CUfunction function, unsigned grid, unsigned block, unsigned shared_bytes,
                          void** arguments) const {
  assert(IsCurrent());
  RETURN_IF_CUDA_FAILS(cuLaunchKernel, function, grid, 1, 1, block, 1, 1, shared_bytes, stream_,
                       arguments, nullptr);
  return {};
}

Result<DnnPlan> CudaDevice::Plan(const DnnGraph& graph) const {
  assert(dnn() != nullptr);
  RETURN_IF_ERROR(MakeCurrent());
  std::lock_guard<std::mutex> lock(cudnn_mutex_);
  return graph.Plan({*dnn(), cudnn_});
}

Status CudaDevice::Run(const DnnPlan& plan, const std::vector<void*>& tensors,
                       void* workspace) const {
  RETURN_IF_ERROR(MakeCurrent());
  std::lock_guard<std::mutex> lock(cudnn_mutex_);
  return plan.Run(cudnn_, tensors, workspace);
}

}  // namespace caesura
