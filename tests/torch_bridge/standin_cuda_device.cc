// SPDX-License-Identifier: Apache-2.0
// PyTorch's CUDA device for a PyTorch without CUDA: its memory is that of the stand-in driver
// (tests/cuda), whose checker sees every access. Its operators copy to the host, on the current
// stream, and run there.
#include <ATen/Functions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <vector>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::CUDA;

void Check(CUresult result, const char* call) {
  TORCH_CHECK(result == CUDA_SUCCESS, call, " failed: ", static_cast<int>(result));
}
#define CHECK_CUDA(call) Check(call, #call)

// The only device of this process that has tensors.
std::atomic<c10::DeviceIndex> own = 0;

// As PyTorch does it: the primary context, current on every thread that calls. A test may have
// reset the driver since.
void MakeCurrent() {
  CUcontext primary = nullptr;
  CHECK_CUDA(cuInit(0));
  CHECK_CUDA(cuDevicePrimaryCtxRetain(&primary, own));
  CHECK_CUDA(cuCtxSetCurrent(primary));
}

// A stream that does not wait for the legacy one; null: a test has not asked for it.
std::atomic<CUstream> other = nullptr;
// PyTorch's number for that stream is 1, and 0 for the legacy one. A thread is on the former unless
// a guard says otherwise.
thread_local bool on_default = false;
c10::StreamId CurrentId() { return other == nullptr || on_default ? 0 : 1; }
CUstream StreamOf(c10::StreamId id) {
  MakeCurrent();
  return id == 0 ? nullptr : other.load();
}
CUstream CurrentStream() { return StreamOf(CurrentId()); }

// Memory is in the order of the stream that was current when it was asked for, as that of PyTorch's
// caching allocator.
struct StandinAllocator : c10::Allocator {
  struct Block {
    CUdeviceptr begin = 0;
    c10::StreamId stream = 0;
  };
  c10::DataPtr allocate(size_t size) override {
    auto block = std::make_unique<Block>(Block{0, CurrentId()});
    const CUstream stream = CurrentStream();
    const CUresult result = cuMemAllocAsync(&block->begin, std::max<size_t>(size, 1), stream);
    TORCH_CHECK_WITH(OutOfMemoryError, result == CUDA_SUCCESS, "the stand-in device is full");
    void* const data = reinterpret_cast<void*>(block->begin);
    return {data, block.release(), &Free, c10::Device(kType, own)};
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "copies go by tensors");
  }
  static void Free(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    static_cast<void>(cuMemFreeAsync(block->begin, StreamOf(block->stream)));
  }
};
StandinAllocator allocator;
REGISTER_ALLOCATOR(kType, &allocator)

struct StandinGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return {kType, own}; }
  c10::Device getDevice() const override { return {kType, own}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, CurrentId());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    on_default = stream.id() == 0;
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return StreamOf(stream.id());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(own + 1);
  }
  // autograd orders streams by these where a gradient's memory passes from one node to another.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    const CUstream of = StreamOf(stream.id());
    auto* const made = reinterpret_cast<CUevent*>(event);
    if (*made == nullptr) CHECK_CUDA(cuEventCreate(made, CU_EVENT_DISABLE_TIMING));
    CHECK_CUDA(cuEventRecord(*made, of));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const CUstream of = StreamOf(stream.id());
    CHECK_CUDA(cuStreamWaitEvent(of, static_cast<CUevent>(event), CU_EVENT_WAIT_DEFAULT));
  }
  bool queryEvent(void* event) const override {
    return cuEventQuery(static_cast<CUevent>(event)) == CUDA_SUCCESS;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) cuEventDestroy(static_cast<CUevent>(event));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, StandinGuard)

// Makes CUDA the accelerator that autograd asks for. getNumGPUs: how many have a generator.
struct StandinHooks : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 0; }
  c10::DeviceIndex current_device() const override { return own; }
};
// PyTorch has made its hooks when it was imported, and keeps them: these take their place in
// memory.
const bool hooked = [] {
  static_assert(sizeof(StandinHooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) StandinHooks;
  return true;
}();

// The bytes from the tensor's first element to its last, on the host.
class Image {
 public:
  explicit Image(const at::Tensor& tensor) : tensor_(tensor) {
    if (!tensor.is_cuda()) return;
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    bytes_.resize(static_cast<size_t>(last + 1) * tensor.itemsize());
    const CUstream stream = CurrentStream();
    CHECK_CUDA(cuMemcpyDtoHAsync(bytes_.data(), Address(), bytes_.size(), stream));
    CHECK_CUDA(cuStreamSynchronize(stream));
  }
  at::Tensor OnHost() {
    if (!tensor_.is_cuda()) return tensor_;
    return at::from_blob(bytes_.data(), tensor_.sizes(), tensor_.strides(),
                         tensor_.options().device(at::kCPU));
  }
  void Store() const {
    if (!tensor_.is_cuda()) return;
    const CUstream stream = CurrentStream();
    CHECK_CUDA(cuMemcpyHtoDAsync(Address(), bytes_.data(), bytes_.size(), stream));
    CHECK_CUDA(cuStreamSynchronize(stream));
  }

 private:
  CUdeviceptr Address() const { return reinterpret_cast<CUdeviceptr>(tensor_.data_ptr()); }
  const at::Tensor tensor_;
  std::vector<char> bytes_;
};

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.numel() == 0) return to;
  Image source(from), target(to);
  target.OnHost().copy_(source.OnHost());
  target.Store();
  return to;
}

}  // namespace

#define STANDIN_KEY CUDA
#include "standin_operators.h"

namespace {

at::Tensor& Copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  CopyFrom(from, to, non_blocking);
  return to;
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("copy_", Copy); }

// PyTorch's number for its choice of a kernel for attention; 0: it takes attention apart.
std::atomic<int64_t> attention = 0;
int64_t ChooseAttention(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                        bool) {
  return attention;
}
const bool chooses = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&ChooseAttention);
  return true;
}();

}  // namespace

// Has PyTorch choose that kernel for attention on this device, as it does on a GPU. The device has
// none of them: for captures only.
extern "C" void standin_torch_choose_attention(int64_t choice) { attention = choice; }

// Makes this device, in place of the first one, that of all tensors. Before there are any.
extern "C" void standin_torch_use_device(int index) { own = static_cast<c10::DeviceIndex>(index); }

// Makes another stream the current one, which does not wait for the legacy stream; or the legacy
// one again.
extern "C" void standin_torch_use_other_stream(bool use) {
  MakeCurrent();
  CUstream made = nullptr;
  if (use) CHECK_CUDA(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  other = made;
}
