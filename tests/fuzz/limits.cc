// SPDX-License-Identifier: Apache-2.0
// A model may ask for much memory, which is no fault: an allocation beyond a limit fails as it does
// on a full machine.
#include <cstddef>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define CAESURA_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CAESURA_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef CAESURA_ADDRESS_SANITIZER
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=64:detect_leaks=1";
}
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

// AddressSanitizer's own operator new ends the process where the standard wants an exception.
namespace {
void* OrThrow(void* data) { return data != nullptr ? data : throw std::bad_alloc(); }
void* Aligned(size_t size, std::align_val_t alignment) {
  void* data = nullptr;
  return posix_memalign(&data, static_cast<size_t>(alignment), size) == 0 ? data : nullptr;
}
}  // namespace
void* operator new(size_t size) { return OrThrow(std::malloc(size)); }
void* operator new[](size_t size) { return OrThrow(std::malloc(size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return std::malloc(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  return OrThrow(Aligned(size, alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return OrThrow(Aligned(size, alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { std::free(data); }
#else
#include <sys/resource.h>

namespace {
const int kLimited = [] {
  const rlimit limit{size_t{4} << 30, size_t{4} << 30};
  return setrlimit(RLIMIT_AS, &limit);
}();
}  // namespace
#endif
