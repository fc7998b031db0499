// SPDX-License-Identifier: Apache-2.0
// A device of PyTorch's that is none of its own (PrivateUse1), for machines without one. Its memory
// is the host's, closed to everyone but its own copies: a kernel that takes it for host memory dies
// there. Its operators copy to the host and run there.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr size_t kPage = 4096;

std::mutex mutex;
std::map<char*, size_t> regions;  // by where they end

// Opens the region that an address lies in, while it lives. The caller holds the mutex.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) {
    if (tensor.device().type() != kType || tensor.numel() == 0) return;
    const auto found = regions.upper_bound(static_cast<char*>(tensor.data_ptr()));
    TORCH_CHECK(found != regions.end(), "the stand-in device does not know this memory");
    bytes_ = found->second;
    begin_ = found->first - bytes_;
    TORCH_CHECK(mprotect(begin_, bytes_, PROT_READ | PROT_WRITE) == 0);
  }
  ~Opened() {
    if (begin_ != nullptr) mprotect(begin_, bytes_, PROT_NONE);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  char* begin_ = nullptr;
  size_t bytes_ = 0;
};

struct StandinAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const size_t bytes = (std::max<size_t>(size, 1) + kPage - 1) / kPage * kPage;
    void* begin = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, begin != MAP_FAILED, "the stand-in device is full");
    const std::lock_guard<std::mutex> lock(mutex);
    regions[static_cast<char*>(begin) + bytes] = bytes;
    return {begin, begin, &Free, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "copies go by tensors");
  }

  static void Free(void* begin) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = regions.upper_bound(static_cast<char*>(begin));
    munmap(begin, found->second);
    regions.erase(found);
  }
};
StandinAllocator allocator;
REGISTER_ALLOCATOR(kType, &allocator)

struct StandinGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return {kType, 0}; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, StandinGuard)

struct StandinHooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new StandinHooks);
  return true;
}();

at::Tensor OnHost(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.numel() == 0) return to;
  const std::lock_guard<std::mutex> lock(mutex);
  // Both may lie in one region, which the first to go closes.
  const Opened from_opened(from), to_opened(to);
  OnHost(to).copy_(OnHost(from));
  return to;
}

}  // namespace

#define STANDIN_KEY PrivateUse1
#include "standin_operators.h"

namespace {

at::Tensor Convolution(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
  return at::convolution(x.cpu(), weight.cpu(), HostOrNone(bias), stride, padding, dilation,
                         transposed, output_padding, groups)
      .to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ConvolutionBackward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  auto [dx, dw, db] = at::convolution_backward(
      dy.cpu(), x.cpu(), weight.cpu(), at::IntArrayRef{weight.size(0)}, stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  const auto back = [&](const at::Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", Convolution);
  library.impl("convolution_backward_overrideable", ConvolutionBackward);
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m){
    KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)} TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1,
                                                                         library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace
