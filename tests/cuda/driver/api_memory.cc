// SPDX-License-Identifier: Apache-2.0
// cuda.h: memory, pools, copies, fills.
#include <algorithm>
#include <cstring>
#include "driver/state.h"

using standin::Address;
using standin::Call;
using standin::CurrentContext;
using standin::Driver;
using standin::FindStream;
using standin::Operation;
using standin::Range;
using standin::Region;
using standin::Work;

namespace {

void* Pointer(CUdeviceptr at) { return reinterpret_cast<void*>(at); }

// The region whose first byte this is, if it may be freed.
Region* Freeable(std::uintptr_t at, Region::Kind kind) {
  Region* region = Driver().regions.Find(at);
  if (region == nullptr || region->begin != at || region->kind != kind) return nullptr;
  if (region->freeing) {
    standin::Report("freed twice: " + region->name);
    return nullptr;
  }
  return region;
}

bool IsPageable(const Region* region) { return region == nullptr; }

// `waits`: a call without a stream, which comes back when the device is done with memory of the
// host's.
CUresult Copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle, bool waits) {
  if (bytes == 0) return CUDA_SUCCESS;
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::string size = " of " + std::to_string(bytes) + " bytes";
  Region *source = nullptr, *target = nullptr;
  CUresult error = standin::FindRange({from, bytes, false}, "copy" + size, &source);
  if (error == CUDA_SUCCESS) error = standin::FindRange({to, bytes, true}, "copy" + size, &target);
  if (error != CUDA_SUCCESS) return error;
  const auto on_host = [](const Region* region) {
    return region == nullptr || region->kind == Region::Kind::kPinned ||
           region->kind == Region::Kind::kRegistered;
  };
  Work work;
  work.name = std::string("copy from ") + (on_host(source) ? "host" : "device") + " to " +
              (on_host(target) ? "host" : "device");
  if (source != nullptr) work.ranges.push_back({from, bytes, false});
  if (target != nullptr) work.ranges.push_back({to, bytes, true});
  if (IsPageable(source) && stream->capture == nullptr) {
    // Comes back when the bytes are staged.
    auto staged = std::make_shared<std::vector<char>>(bytes);
    std::memcpy(staged->data(), Pointer(from), bytes);
    work.run = [=](Operation&) {
      std::memcpy(Pointer(to), staged->data(), bytes);
      return CUDA_SUCCESS;
    };
  } else {
    work.run = [=](Operation&) {
      std::memmove(Pointer(to), Pointer(from), bytes);
      return CUDA_SUCCESS;
    };
  }
  const bool captured = stream->capture != nullptr;
  error = standin::Enqueue(stream, std::move(work));
  if (error != CUDA_SUCCESS || captured) return error;
  // A call without a stream from pageable memory comes back once the bytes are staged.
  const bool host_waits = IsPageable(target) ||
                          (waits && (on_host(target) || (on_host(source) && !IsPageable(source))));
  if (!host_waits) return CUDA_SUCCESS;
  ++Driver().waits;
  return standin::WaitFor(stream);
}

template <typename T>
CUresult Fill(CUdeviceptr at, T value, std::size_t count, CUstream handle) {
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (at % sizeof(T) != 0) return CUDA_ERROR_INVALID_VALUE;
  const Range range{at, count * sizeof(T), true};
  const std::string name = "fill";
  Region* region = nullptr;
  const CUresult error = standin::FindRange(range, name, &region);
  if (error != CUDA_SUCCESS) return error;
  if (region == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return standin::Enqueue(stream, {name, {range}, [=](Operation&) {
                                     std::fill_n(static_cast<T*>(Pointer(at)), count, value);
                                     return CUDA_SUCCESS;
                                   }});
}

CUresult Allocate(CUdeviceptr* at, std::size_t bytes, CUstream handle) {
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) {  // the real driver makes a node of the graph of it
    return standin::RefuseInCapture(stream, "cuMemAllocAsync (the stand-in has no nodes for it)");
  }
  Region* region = standin::NewDeviceMemory(bytes);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = region->begin;
  return standin::Enqueue(stream, {"allocation", {{region->begin, bytes, true}}, [](Operation&) {
                                     return CUDA_SUCCESS;
                                   }});
}

CUresult AllocatePinned(void** at, std::size_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Region* region = standin::NewPinnedMemory(bytes);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = Pointer(region->begin);
  return CUDA_SUCCESS;
}

CUmemoryPool DefaultPool(CUdevice device) {
  CUmemoryPool& pool = Driver().default_pools[device];
  if (pool == nullptr) {
    auto made = std::make_unique<CUmemPoolHandle_st>();
    made->device = device;
    pool = made.get();
    Driver().pools.emplace(pool, std::move(made));
  }
  return pool;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
  STANDIN_CALL(Call::kContext)
  *total = Driver().memory;
  *free = Driver().memory - Driver().allocated;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemAlloc(CUdeviceptr* at, std::size_t bytes) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Region* region = standin::NewDeviceMemory(bytes);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = region->begin;
  return CUDA_SUCCESS;
}
// Waits for the device, as the real one does.
CUresult CUDAAPI cuMemFree(CUdeviceptr at) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  if (at == 0) return CUDA_SUCCESS;
  Region* region = Freeable(at, Region::Kind::kDevice);
  if (region == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ++Driver().waits;
  const CUresult error = standin::WaitForAll(CurrentContext());
  region->freeing = true;
  standin::FreeNow(*region);
  return error;
}
CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* at, std::size_t bytes, CUmemoryPool pool,
                                         CUstream stream) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().pools.contains(pool)) return CUDA_ERROR_INVALID_VALUE;
  return Allocate(at, bytes, stream);
}
CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* at, std::size_t bytes, CUstream stream) {
  STANDIN_CALL(Call::kContext)
  return Allocate(at, bytes, stream);
}
CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
  STANDIN_CALL(Call::kContext)
  if (at == 0) return CUDA_SUCCESS;
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    return standin::RefuseInCapture(stream, "cuMemFreeAsync (the stand-in has no nodes for it)");
  }
  Region* region = Freeable(at, Region::Kind::kDevice);
  if (region == nullptr) return CUDA_ERROR_INVALID_VALUE;
  region->freeing = true;
  return standin::Enqueue(stream, {"free", {{at, region->bytes, true}}, [=](Operation&) {
                                     standin::FreeNow(*Driver().regions.Find(at));
                                     return CUDA_SUCCESS;
                                   }});
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  *pool = DefaultPool(device);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  STANDIN_CALL(Call::kInit)
  CUmemoryPool& current = Driver().current_pools[device];
  *pool = current != nullptr ? current : DefaultPool(device);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  STANDIN_CALL(Call::kInit)
  if (!Driver().pools.contains(pool)) return CUDA_ERROR_INVALID_VALUE;
  Driver().current_pools[device] = pool;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  STANDIN_CALL(Call::kInit)
  auto made = std::make_unique<CUmemPoolHandle_st>();
  made->device = properties->location.id;
  *pool = made.get();
  Driver().pools.emplace(*pool, std::move(made));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
  STANDIN_CALL(Call::kInit)
  for (auto& [device, current] : Driver().current_pools) {
    if (current == pool) current = nullptr;
  }
  return Driver().pools.erase(pool) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, std::size_t) {
  STANDIN_CALL(Call::kInit)
  return Driver().pools.contains(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
  STANDIN_CALL(Call::kInit)
  if (!Driver().pools.contains(pool)) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t& kept = pool->attributes[attribute];
  std::memcpy(&kept, value, attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? 4 : 8);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
  STANDIN_CALL(Call::kInit)
  if (!Driver().pools.contains(pool)) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t kept = pool->attributes[attribute];
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ||
      attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) {
    kept = Driver().allocated;
  }
  std::memcpy(value, &kept, attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? 4 : 8);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  return AllocatePinned(at, bytes);
}
CUresult CUDAAPI cuMemAllocHost(void** at, std::size_t bytes) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  return AllocatePinned(at, bytes);
}
CUresult CUDAAPI cuMemFreeHost(void* at) {
  STANDIN_CALL(Call::kContext | Call::kUnsafeInCapture)
  Region* region = Freeable(Address(at), Region::Kind::kPinned);
  if (region == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const standin::Access& use : region->pinned_uses) {
    if (Driver().host[use.agent] < use.time) {
      standin::Report("not ordered: the host frees " + region->name + ", which " + use.what +
                      (use.writes ? " writes" : " reads"));
    }
  }
  const CUresult error = standin::WaitForAll(CurrentContext());
  region->freeing = true;
  standin::FreeNow(*region);
  return error;
}
CUresult CUDAAPI cuMemHostRegister(void* at, std::size_t bytes, unsigned) {
  STANDIN_CALL(Call::kContext)
  if (Driver().regions.Find(Address(at)) != nullptr) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Region region;
  region.kind = Region::Kind::kRegistered;
  region.begin = Address(at);
  region.bytes = bytes;
  region.name = "registered memory " + std::to_string(Driver().next_region++);
  Driver().regions.Add(std::move(region));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostUnregister(void* at) {
  STANDIN_CALL(Call::kContext)
  if (Freeable(Address(at), Region::Kind::kRegistered) == nullptr) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  const CUresult error = standin::WaitForAll(CurrentContext());
  Driver().regions.Erase(Address(at));
  return error;
}
CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned) {
  STANDIN_CALL(Call::kContext)
  if (Driver().regions.Find(Address(host)) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = Address(host);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr at) {
  STANDIN_CALL(Call::kContext)
  Region* region = Driver().regions.Find(at);
  if (region == nullptr || region->freeing) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<CUmemorytype*>(data) =
          region->kind == Region::Kind::kPinned || region->kind == Region::Kind::kRegistered
              ? CU_MEMORYTYPE_HOST
              : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = CurrentContext()->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = region->begin;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = region->bytes;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr at) {
  STANDIN_CALL(Call::kContext)
  const Region* region = Driver().regions.Find(at);
  if (region == nullptr || region->freeing) return CUDA_ERROR_NOT_FOUND;
  if (begin != nullptr) *begin = region->begin;
  if (bytes != nullptr) *bytes = region->bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  STANDIN_CALL(Call::kContext)
  return Copy(to, from, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  STANDIN_CALL(Call::kContext)
  return Copy(to, Address(from), bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  STANDIN_CALL(Call::kContext)
  return Copy(Address(to), from, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  STANDIN_CALL(Call::kContext)
  return Copy(to, from, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                               CUstream stream) {
  STANDIN_CALL(Call::kContext)
  return Copy(to, from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes,
                                   CUstream stream) {
  STANDIN_CALL(Call::kContext)
  return Copy(to, Address(from), bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  STANDIN_CALL(Call::kContext)
  return Copy(Address(to), from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                   CUstream stream) {
  STANDIN_CALL(Call::kContext)
  return Copy(to, from, bytes, stream, false);
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                   std::size_t bytes, CUstream stream) {
  STANDIN_CALL(Call::kContext)
  return Copy(to, from, bytes, stream, false);
}

#define STANDIN_FILL(BITS, TYPE)                                                         \
  CUresult CUDAAPI cuMemsetD##BITS##Async(CUdeviceptr at, TYPE value, std::size_t count, \
                                          CUstream stream) {                             \
    STANDIN_CALL(Call::kContext)                                                         \
    return Fill<TYPE>(at, value, count, stream);                                         \
  }                                                                                      \
  CUresult CUDAAPI cuMemsetD##BITS(CUdeviceptr at, TYPE value, std::size_t count) {      \
    STANDIN_CALL(Call::kContext)                                                         \
    return Fill<TYPE>(at, value, count, nullptr);                                        \
  }
STANDIN_FILL(8, unsigned char)
STANDIN_FILL(16, unsigned short)
STANDIN_FILL(32, unsigned int)

}  // extern "C"
