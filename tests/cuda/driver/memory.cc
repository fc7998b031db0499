// SPDX-License-Identifier: Apache-2.0
// Memory of the device lies in pages that are closed to the host; they are open while an operation
// runs. Pinned memory is closed while the device may still use it. No address is given twice, so
// that a use after a free is seen.
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include "driver/state.h"

namespace standin {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMostPoisoned = std::size_t{64} << 20;  // larger memory is left as zeros
// Address space for all allocations of a test. ThreadSanitizer leaves between 0.5 and 1.5 TiB, by
// the random base of mmap().
constexpr std::size_t kDeviceHeap = std::size_t{256} << 30;
constexpr std::size_t kPinnedHeap = std::size_t{64} << 30;

// A piece of address space, given out from its beginning.
struct Heap {
  std::uintptr_t begin = 0, next = 0;
  std::size_t bytes = 0;

  bool Reserve(std::size_t size) {
    if (begin != 0) return true;
    // Not by mmap(): sanitizers would keep shadow memory for all of it.
    const long at = syscall(SYS_mmap, nullptr, size, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == -1) return false;
    begin = next = static_cast<std::uintptr_t>(at);
    bytes = size;
    return true;
  }
  std::uintptr_t Take(std::size_t size) {
    size = (size + kPage - 1) / kPage * kPage + kPage;  // with a page between
    if (next + size > begin + bytes) return 0;
    const std::uintptr_t at = next;
    next += size;
    return at;
  }
  bool Contains(std::uintptr_t at) const { return at - begin < bytes; }
  void Protect(int protection) const {
    if (next > begin) mprotect(reinterpret_cast<void*>(begin), next - begin, protection);
  }
};

Heap device_heap, pinned_heap;
thread_local int open_depth = 0;
struct sigaction previous_handler;

std::size_t Pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
void* Pointer(std::uintptr_t at) { return reinterpret_cast<void*>(at); }

void Chain(int signal, siginfo_t* info, void* context) {
  if ((previous_handler.sa_flags & SA_SIGINFO) != 0 && previous_handler.sa_sigaction != nullptr) {
    previous_handler.sa_sigaction(signal, info, context);
    return;
  }
  if (previous_handler.sa_handler != SIG_DFL && previous_handler.sa_handler != SIG_IGN) {
    previous_handler.sa_handler(signal);
    return;
  }
  ::signal(SIGSEGV, SIG_DFL);  // the access happens again, and ends the program
}

void OnFault(int signal, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (!device_heap.Contains(at) && !pinned_heap.Contains(at)) return Chain(signal, info, context);
  const std::lock_guard<std::recursive_mutex> lock(Driver().lock);
  const bool writes = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
  const std::string verb = writes ? "writes" : "reads";
  Region* region = Driver().regions.Find(at);
  if (region == nullptr || region->kind == Region::Kind::kDevice) {
    const std::string text =
        "the host " + verb + " memory of the device: " +
        (region == nullptr ? std::string("beyond any allocation")
                           : "byte " + std::to_string(at - region->begin) + " of " + region->name);
    Report(text);
    std::fprintf(stderr, "stand-in driver: %s\n", text.c_str());
    return Chain(signal, info, context);
  }
  for (const Access& access : region->pinned_uses) {
    if (Driver().host[access.agent] >= access.time || !(writes || access.writes)) continue;
    const std::uintptr_t page = at / kPage * kPage;
    const bool near = std::any_of(access.at.begin(), access.at.end(), [&](const Interval& part) {
      return part.begin < page + kPage && page < part.end;
    });
    if (near) {
      Report("not ordered: the host " + verb + " " + region->name + ", which " + access.what +
             (access.writes ? " writes" : " reads"));
    }
  }
  mprotect(Pointer(at / kPage * kPage), kPage, PROT_READ | PROT_WRITE);
}

Region* NewRegion(Heap& heap, std::size_t size, Region::Kind kind, std::size_t bytes,
                  const char* what) {
  if (!heap.Reserve(size)) return nullptr;
  const std::uintptr_t at = heap.Take(bytes);
  if (at == 0) return nullptr;
  Region region;
  region.kind = kind;
  region.begin = at;
  region.bytes = bytes;
  region.name =
      what + std::to_string(Driver().next_region++) + " (" + std::to_string(bytes) + " bytes)";
  return &Driver().regions.Add(std::move(region));
}

}  // namespace

void InstallTouchHandler() {
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = &OnFault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous_handler) == 0;
  }();
  (void)installed;
}

Region* NewDeviceMemory(std::size_t bytes) {
  State& state = Driver();
  if (bytes > state.memory - state.allocated) RunAll();  // frees that wait in streams
  if (bytes > state.memory - state.allocated) return nullptr;
  Region* region =
      NewRegion(device_heap, kDeviceHeap, Region::Kind::kDevice, bytes, "device memory ");
  if (region == nullptr) return nullptr;
  region->charged = bytes;
  state.allocated += bytes;
  state.most_allocated = std::max(state.most_allocated, state.allocated);
  if (bytes <= kMostPoisoned) {
    mprotect(Pointer(region->begin), Pages(bytes), PROT_READ | PROT_WRITE);
    std::memset(Pointer(region->begin), 0xff, Pages(bytes));  // NaN in every type
    if (open_depth == 0) mprotect(Pointer(region->begin), Pages(bytes), PROT_NONE);
  }
  return region;
}

Region* NewPinnedMemory(std::size_t bytes) {
  Region* region =
      NewRegion(pinned_heap, kPinnedHeap, Region::Kind::kPinned, bytes, "pinned memory ");
  if (region != nullptr) {
    mprotect(Pointer(region->begin), Pages(bytes), PROT_READ | PROT_WRITE);
    std::memset(Pointer(region->begin), 0xff, bytes);
  }
  return region;
}

void FreeNow(Region& region) {
  Driver().allocated -= region.charged;
  region.charged = 0;
  region.freed = true;
  if (region.kind == Region::Kind::kDevice || region.kind == Region::Kind::kPinned) {
    madvise(Pointer(region.begin), Pages(region.bytes), MADV_DONTNEED);
  }
}

void OpenMemory() {
  if (open_depth++ > 0) return;
  device_heap.Protect(PROT_READ | PROT_WRITE);
  pinned_heap.Protect(PROT_READ | PROT_WRITE);
}

void CloseMemory() {
  if (--open_depth > 0) return;
  device_heap.Protect(PROT_NONE);
  ProtectPinned();
}

void ForgetMemory() {
  Driver().regions.Clear();
  Driver().pinned.clear();
  for (Heap* heap : {&device_heap, &pinned_heap}) {
    if (heap->next > heap->begin) {
      heap->Protect(PROT_NONE);
      madvise(Pointer(heap->begin), heap->next - heap->begin, MADV_DONTNEED);
    }
    heap->next = heap->begin;
  }
}

CUresult FindRange(const Range& range, const std::string& what, Region** region) {
  *region = Driver().regions.Find(range.at);
  const bool ours = device_heap.Contains(range.at) || pinned_heap.Contains(range.at);
  if (*region == nullptr) {
    if (!ours) return CUDA_SUCCESS;
    Report("out of bounds: " + what + (range.writes ? " writes" : " reads") +
           " beyond any allocation");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((*region)->freeing && (*region)->freed) {
    Report("used after it was freed: " + what + (range.writes ? " writes " : " reads ") +
           (*region)->name);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (range.at + range.bytes <= (*region)->end()) return CUDA_SUCCESS;
  Report("out of bounds: " + what + (range.writes ? " writes" : " reads") + " to byte " +
         std::to_string(range.at + range.bytes - (*region)->begin) + " of " + (*region)->name);
  return CUDA_ERROR_INVALID_VALUE;
}

bool CheckAccess(const Operation& operation, Region& region, bool writes, Intervals at) {
  const auto report = [](const std::string& text) { Report(text); };
  if (region.freed) {
    Report("used after it was freed: " + operation.what + (writes ? " writes " : " reads ") +
           region.name);
    return false;
  }
  CheckOrder(region, {writes, operation.agent, operation.time, operation.what, std::move(at)},
             operation.clock, report);
  return true;
}

void NotePinned(Region& region, const Operation& operation, bool writes, Intervals at) {
  // Until the host has waited, a touch of its own conflicts; among operations, order is checked as
  // they run.
  region.pinned_uses.push_back(
      {writes, operation.agent, operation.time, operation.what, std::move(at)});
  Driver().pinned.insert(region.begin);
}

void ProtectPinned() {
  State& state = Driver();
  if (open_depth > 0) return;
  std::erase_if(state.pinned, [&](std::uintptr_t begin) {
    Region* region = state.regions.Find(begin);
    if (region == nullptr) return true;
    std::erase_if(region->pinned_uses,
                  [&](const Access& use) { return state.host[use.agent] >= use.time; });
    mprotect(Pointer(begin), Pages(region->bytes), PROT_READ | PROT_WRITE);
    for (const bool writes : {false, true}) {
      for (const Access& use : region->pinned_uses) {
        if (use.writes != writes) continue;
        for (const Interval& part : use.at) {
          const std::uintptr_t first = part.begin / kPage * kPage;
          mprotect(Pointer(first), Pages(part.end - first), writes ? PROT_NONE : PROT_READ);
        }
      }
    }
    return region->pinned_uses.empty();
  });
}

}  // namespace standin
