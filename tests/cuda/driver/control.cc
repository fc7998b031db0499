// SPDX-License-Identifier: Apache-2.0
// standin.h: what tests and other stand-ins call.
#include "standin.h"
#include <algorithm>
#include <cstring>
#include "driver/state.h"

using standin::Driver;
using standin::State;

namespace {
using Lock = std::lock_guard<std::recursive_mutex>;
}

extern "C" {

void standin_reset(uint64_t seed) {
  const Lock lock(Driver().lock);
  State& state = Driver();
  standin::ForgetModules();
  standin::ForgetMemory();
  ++state.generation;
  state.random = seed;
  state.lane_order = caesura_emulator::LaneOrder::kDrawn;
  state.initialized = false;
  state.devices = standin::DevicesAtFirst();
  state.driver_version = 13000;
  state.capability = 90;
  state.blocks_launches = false;
  state.memory = std::uint64_t{80} << 30;
  state.allocated = state.most_allocated = 0;
  state.streams.clear();
  state.default_streams.clear();
  state.events.clear();
  state.graphs.clear();
  state.executables.clear();
  state.pools.clear();
  state.default_pools.clear();
  state.current_pools.clear();
  state.captures.clear();
  state.contexts.clear();
  state.agents = state.next_stream = state.next_region = 1;
  state.host = {};
  state.reports.clear();
  state.failures.clear();
  state.delays.clear();
  state.operation_failures.clear();
  state.calls.clear();
  state.operations.clear();
  state.waits = 0;
}
void standin_set_seed(uint64_t seed) {
  const Lock lock(Driver().lock);
  Driver().random = seed;
}
void standin_set_lane_order(int order) {
  const Lock lock(Driver().lock);
  Driver().lane_order = static_cast<caesura_emulator::LaneOrder>(order);
}
void standin_set_devices(int count) {
  const Lock lock(Driver().lock);
  Driver().devices = count;
}
void standin_set_memory(uint64_t bytes) {
  const Lock lock(Driver().lock);
  Driver().memory = std::max(bytes, Driver().allocated);
}
void standin_set_capability(int capability) {
  const Lock lock(Driver().lock);
  Driver().capability = capability;
}
void standin_delay(const char* function, int n, int milliseconds) {
  const Lock lock(Driver().lock);
  Driver().delays.push_back({function, n, milliseconds});
}
void standin_block_launches(int on) {
  const Lock lock(Driver().lock);
  Driver().blocks_launches = on != 0;
}
void standin_set_driver_version(int version) {
  const Lock lock(Driver().lock);
  Driver().driver_version = version;
}

size_t standin_report_count(void) {
  const Lock lock(Driver().lock);
  return Driver().reports.size();
}
const char* standin_report(size_t index) {
  const Lock lock(Driver().lock);
  return index < Driver().reports.size() ? Driver().reports[index].c_str() : nullptr;
}
void standin_clear_reports(void) {
  const Lock lock(Driver().lock);
  Driver().reports.clear();
}
void standin_add_report(const char* text) {
  const Lock lock(Driver().lock);
  standin::Report(text);
}

void standin_fail(const char* function, int n, int error) {
  const Lock lock(Driver().lock);
  auto& failures = Driver().failures;
  if (n > 0) failures.push_back({function, n, static_cast<CUresult>(error)});
  else std::erase_if(failures, [&](const auto& failure) { return failure.name == function; });
}
void standin_fail_operation(const char* name, int n, int error) {
  const Lock lock(Driver().lock);
  Driver().operation_failures.push_back({name, n, static_cast<CUresult>(error)});
}
int standin_called(const char* function) {
  const Lock lock(Driver().lock);
  ++Driver().calls[function];
  int error = 0;
  for (standin::PlannedFailure& failure : Driver().failures) {
    if (failure.name == function && failure.n > 0 && --failure.n == 0) error = failure.error;
  }
  return error;
}
uint64_t standin_calls(const char* function) {
  const Lock lock(Driver().lock);
  const auto found = Driver().calls.find(function);
  return found == Driver().calls.end() ? 0 : found->second;
}
uint64_t standin_operations(const char* name) {
  const Lock lock(Driver().lock);
  uint64_t count = 0;
  for (const auto& [operation, times] : Driver().operations) {
    if (operation.starts_with(name)) count += times;
  }
  return count;
}
uint64_t standin_host_waits(void) {
  const Lock lock(Driver().lock);
  return Driver().waits;
}
uint64_t standin_allocated(void) {
  const Lock lock(Driver().lock);
  return Driver().allocated;
}
uint64_t standin_most_allocated(void) {
  const Lock lock(Driver().lock);
  return Driver().most_allocated;
}
size_t standin_pending(void) {
  const Lock lock(Driver().lock);
  size_t count = 0;
  for (const auto& [handle, stream] : Driver().streams) count += stream->queue.size();
  return count;
}

int standin_enqueue(void* handle, const char* name, const standin_range* ranges, size_t count,
                    int (*run)(void* argument), void (*release)(void* argument), void* argument) {
  const std::shared_ptr<void> held(argument, [release](void* at) {
    if (release != nullptr) release(at);
  });
  standin::Call call(name, standin::Call::kContext);
  if (call.error != CUDA_SUCCESS) return call.error;
  const CUstream stream = standin::FindStream(static_cast<CUstream>(handle));
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  standin::Work work;
  work.name = name;
  for (size_t i = 0; i < count; ++i) {
    const standin::Range range{standin::Address(ranges[i].at), ranges[i].bytes,
                               ranges[i].writes != 0};
    standin::Region* region = nullptr;
    const CUresult error = standin::FindRange(range, name, &region);
    if (error != CUDA_SUCCESS) return error;
    if (region == nullptr) {
      standin::Report(std::string(name) + ": a pointer is to the host's pageable memory");
      return CUDA_ERROR_INVALID_VALUE;
    }
    work.ranges.push_back(range);
  }
  work.run = [held, run](standin::Operation&) { return static_cast<CUresult>(run(held.get())); };
  return standin::Enqueue(stream, std::move(work));
}

}  // extern "C"
