// SPDX-License-Identifier: Apache-2.0
// A GPU as a provider uses it: its context, one stream, memory in the order of that stream, and
// kernels compiled for its chip.
#ifndef CAESURA_CORE_CUDA_CUDA_DEVICE_H_
#define CAESURA_CORE_CUDA_CUDA_DEVICE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/cuda/cuda_libraries.h"
#include "core/cuda/dnn_graph.h"
#include "core/tensor/tensor.h"

namespace caesura {

// Thread safety: all methods from any thread. Buffers, and kernels that a factory holds, keep the
// device alive.
class CudaDevice : public Allocator, public std::enable_shared_from_this<CudaDevice> {
 public:
  static Result<std::shared_ptr<CudaDevice>> Create(const CudaOptions& options);
  ~CudaDevice() override;

  const CudaLibraries& libraries() const { return *libraries_; }
  Device device() const override { return {DeviceType::kCuda, static_cast<int16_t>(index_)}; }
  CUstream stream() const { return stream_; }
  // "sm_90"
  const std::string& architecture() const { return architecture_; }
  int multiprocessors() const { return multiprocessors_; }
  bool tf32() const { return tf32_; }  // CudaOptions::tf32
  cublas_lt::Handle cublas_lt() const { return cublas_lt_; }

  // Each thread calls this before it calls the driver: makes the device's context current.
  Status MakeCurrent() const;
  // Memory that the stream may use from here on; its deleter gives it back in the stream's order.
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override;
  // Each in the order of the stream. The host's memory must stay as it is until the stream has come
  // to the copy: for pageable memory that is when the call returns, for pinned memory it is after
  // Synchronise.
  Status CopyToDevice(void* to, const void* from, size_t bytes) const;
  Status CopyToHost(void* to, const void* from, size_t bytes) const;
  Status CopyWithin(void* to, const void* from, size_t bytes) const;
  // Waits for the stream, and tells what a kernel has met.
  Status Synchronise() const;

  // The function `kernel` (extern "C") of this source, compiled and loaded once; code that was kept
  // on disk is not compiled again (kernel_cache.h). The source may include files of cuda_source.h,
  // and nothing else: NVRTC has no standard library.
  Result<CUfunction> Function(const std::string& source, const std::string& kernel);
  // Puts the kernel on the stream. REQUIRES: the context is current.
  Status Launch(CUfunction function, unsigned grid, unsigned block, unsigned shared_bytes,
                void** arguments) const;

  // cuDNN's functions, with which its graphs are made; null: it is not there, or does not start.
  const cudnn::Functions* dnn() const { return cudnn_ == nullptr ? nullptr : &*libraries_->cudnn; }
  // A plan of cuDNN's for this device. REQUIRES: dnn() is not null.
  Result<DnnPlan> Plan(const DnnGraph& graph) const;
  // Puts the plan on the stream; arguments as of DnnPlan::Run.
  Status Run(const DnnPlan& plan, const std::vector<void*>& tensors, void* workspace) const;

  // A kernel that meets a wrong value (an index out of range) writes this number to error_cell()
  // unless another is there; Synchronise then fails with kInvalidArgument and the message.
  unsigned AddError(std::string message);
  unsigned* error_cell() const { return static_cast<unsigned*>(cells_->data()); }

  // Zeros with which the blocks of one launch on stream() may count each other. The last of the
  // blocks puts the zeros back: launches of a stream follow each other.
  static constexpr int kCounters = 64;
  unsigned* counters() const { return error_cell() + 1; }

  // Puts a wait on the stream: what this thread puts there from here on runs after OpenGate. False:
  // another thread's gate is closed, the device cannot wait for the host, or the host waits for
  // each kernel that it launches. Until OpenGate the host must neither wait for the stream nor
  // allocate memory.
  Result<bool> CloseGate();
  // REQUIRES: this thread has closed it. Without `write` the kernels that look at gate() write
  // nothing, and the call waits until they have come to their ends; it does not fail. Where it
  // fails with `write` the gate is still closed.
  Status OpenGate(bool write);
  // WriteGate::was_interrupted (core/providers/write_gate.h).
  bool gate_was_interrupted() const { return gate_.interrupted; }
  // Waits for the stream, and tells what a kernel had met when the gate was opened to write.
  Status WaitForHeld() const;
  // A kernel that is given this address, of device memory, writes nothing where it is not 0. Null:
  // this thread has no gate.
  const unsigned* gate() const;
  // Pinned memory of at most kHostBytes: a copy to it does not make the host wait. Null: none is
  // free.
  static constexpr size_t kHostBytes = 4096;
  std::shared_ptr<Buffer> HostMemory(size_t bytes);

  // "cuMemAllocAsync failed: CUDA_ERROR_..., out of memory"
  Status Failure(const char* call, CUresult result) const;

 private:
  explicit CudaDevice(std::shared_ptr<const CudaLibraries> libraries)
      : libraries_(std::move(libraries)) {}
  Status Open(const CudaOptions& options);
  Status StartCudnn(bool is_wanted);
  Result<CUmodule> LoadModule(const std::string& source) const;
  void Free(void* data, size_t size);
  bool IsCurrent() const;  // the context, in this thread
  Status TakeError() const;
  Status Told(unsigned error) const;
  unsigned* gate_cell() const { return counters() + kCounters; }
  Status AllocatePinned();
  Status TryGate();
  Result<bool> PutGate();
  void SignalGate(unsigned number);
  void WatchGate();

  const std::shared_ptr<const CudaLibraries> libraries_;
  int index_ = 0;
  CUdevice handle_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  bool owns_stream_ = false;
  CUmemoryPool pool_ = nullptr;
  cublas_lt::Handle cublas_lt_ = nullptr;
  cudnn::Handle cudnn_ = nullptr;
  mutable std::mutex cudnn_mutex_;  // the handle is one thread's at a time
  std::string architecture_;
  int multiprocessors_ = 0;
  bool tf32_ = false;
  size_t memory_limit_ = 0;
  std::function<Result<std::shared_ptr<void>>(size_t)> allocate_;  // empty: from the pool
  std::atomic<size_t> allocated_ = 0;
  std::shared_ptr<Buffer> cells_;  // that of errors, the counters, that of the gate
  mutable std::mutex errors_mutex_;
  std::vector<std::string> errors_;  // by number, from 1
  // The words that the host writes lie in pinned memory: the stream takes nothing in while it
  // waits. Kernels read a cell in device memory: a block's read of host memory takes microseconds.
  struct Gate {
    std::mutex mutex;  // held while it is closed
    std::atomic<std::thread::id> owner;
    unsigned number = 0;            // of the gates until now
    unsigned* opened = nullptr;     // the number of the last gate that was opened
    unsigned* forbidden = nullptr;  // that of the last one that was opened without writing
    CUfunction read = nullptr;      // writes the cell of the gate
    std::optional<bool> usable;     // none: not tried yet
    // The number of the gate that is closed, or 0. Whoever sets it to 0 opens that gate.
    std::atomic<unsigned> closed = 0;
    std::atomic<bool> interrupted = false;
    std::thread watcher;  // opens a gate that stays closed
    std::mutex watch_mutex;
    std::condition_variable watch_ends;
    bool is_ending = false;
    unsigned* error = nullptr;  // the cell of errors when it was opened to write
  } gate_;
  static constexpr int kHostPages = 16;
  std::mutex pages_mutex_;
  void* pages_ = nullptr;  // pinned; allocated with the first gate
  std::vector<void*> free_pages_;
  struct Module {
    std::mutex mutex;  // held while the module is made, by whoever needs this one
    CUmodule handle = nullptr;
  };
  std::mutex modules_mutex_;                         // of the table only
  std::unordered_map<std::string, Module> modules_;  // by source
};

}  // namespace caesura

#endif  // CAESURA_CORE_CUDA_CUDA_DEVICE_H_
