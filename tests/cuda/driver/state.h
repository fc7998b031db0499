// SPDX-License-Identifier: Apache-2.0
// All that the stand-in driver knows, under one lock.
#pragma once
#include <cuda.h>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>
#include "driver/order.h"
#include "emulator/grid.h"
#include "emulator/lane.h"

namespace standin {

struct Range {
  std::uintptr_t at = 0;
  std::size_t bytes = 0;
  bool writes = false;
};
inline std::uintptr_t Address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

struct Operation;

/// What a stream is asked to do; a graph keeps copies.
struct Work {
  std::string name;
  std::vector<Range> ranges;  // known before it runs; a kernel's are found while it runs
  std::function<CUresult(Operation&)> run;
  bool host = false;  // calls a function of the program's
};

struct Operation {
  enum class Kind { kWork, kRecord, kWait, kWaitValue };
  Kind kind = Kind::kWork;
  Work work;
  std::string what;  // the name, with the stream's
  int agent = 0;
  std::uint32_t time = 0;
  Clock clock;
  CUcontext context = nullptr;
  std::shared_ptr<struct EventState> event;
  std::uint64_t generation = 0;
  const std::uint32_t* signal = nullptr;  // kWaitValue: until it is `value` or more
  std::uint32_t value = 0;
  bool begun = false;  // and was not ready: something else has to come first
};

struct EventState {
  Clock clock;
  std::uint64_t recorded = 0, done = 0;
  CUcontext context = nullptr;
  double when = 0;
  // Set while its last record lies in a capture.
  struct Capture* capture = nullptr;
  int capture_index = -1;
};

/// What the captured streams were asked to do, in order; a stream is a branch.
struct GraphStep {
  Operation::Kind kind = Operation::Kind::kWork;
  int branch = 0;
  Work work;
  int event = -1;  // of this graph
};

struct Capture {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t thread = 0, id = 0;
  std::string broken_by;
  std::vector<CUstream> branches;  // the first is the origin
  std::vector<Clock> clocks;       // of the branches; agents are branches
  std::vector<Clock> events;
  std::vector<GraphStep> steps;
};

}  // namespace standin

struct CUctx_st {
  CUdevice device = 0;
  int retained = 0;
  CUresult sticky = CUDA_SUCCESS;
};

struct CUstream_st {
  std::string name;
  int agent = 0;
  CUcontext context = nullptr;
  bool blocking = true;  // waits for the legacy stream, which waits for it
  bool busy = false;     // an operation runs now
  int priority = 0;
  unsigned flags = 0;
  std::uint32_t seen = 0;  // what the legacy stream, or this one, has waited for
  standin::Clock clock;
  std::deque<standin::Operation> queue;
  standin::Capture* capture = nullptr;
};

struct CUevent_st {
  std::shared_ptr<standin::EventState> state;
  bool timing = true;
};

struct CUfunc_st {
  std::string name, lowered;
  const caesura_emulator::Entry* entry = nullptr;
  CUmodule owner = nullptr;
  int most_dynamic_shared = 48 << 10;
};

struct CUmod_st {
  void* library = nullptr;
  int file = -1;
  CUcontext context = nullptr;
  caesura_emulator::Module module{};
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  std::vector<standin::Interval> constants,
      variables;  // what a kernel may read only, and what it may change
};

struct CUgraph_st {
  std::vector<standin::GraphStep> steps;
  int branches = 1, events = 0;
};

struct CUgraphExec_st {
  CUgraph_st graph;
  std::vector<CUstream> streams;  // of the branches but the first
};

struct CUmemPoolHandle_st {
  CUdevice device = 0;
  std::map<CUmemPool_attribute, std::uint64_t> attributes;
};

namespace standin {

struct PlannedFailure {
  std::string name;
  int n = 0;
  CUresult error = CUDA_SUCCESS;
};
struct PlannedDelay {
  std::string name;
  int n = 0;
  int milliseconds = 0;
};

/// STANDIN_DEVICES; 1 where it is not set.
int DevicesAtFirst();

struct State {
  std::recursive_mutex lock;
  std::condition_variable_any changed;

  std::uint64_t generation = 0;  // of resets
  std::uint64_t random = 0;
  caesura_emulator::LaneOrder lane_order = caesura_emulator::LaneOrder::kDrawn;
  bool initialized = false;
  int devices = DevicesAtFirst(), driver_version = 13000, capability = 90;
  bool blocks_launches = false;
  std::uint64_t memory = std::uint64_t{80} << 30, allocated = 0, most_allocated = 0;

  std::deque<std::vector<CUcontext>> thread_contexts;  // of all threads that there were
  std::vector<std::unique_ptr<CUctx_st>> contexts;     // primary, one a device
  std::map<CUstream, std::unique_ptr<CUstream_st>> streams;
  std::map<std::pair<CUcontext, std::uint64_t>, CUstream> default_streams;  // legacy: of thread 0
  std::map<CUevent, std::unique_ptr<CUevent_st>> events;
  std::map<CUmodule, std::unique_ptr<CUmod_st>> modules;
  std::map<CUgraph, std::unique_ptr<CUgraph_st>> graphs;
  std::map<CUgraphExec, std::unique_ptr<CUgraphExec_st>> executables;
  std::map<CUmemoryPool, std::unique_ptr<CUmemPoolHandle_st>> pools;
  std::map<CUdevice, CUmemoryPool> default_pools, current_pools;
  std::vector<std::unique_ptr<Capture>> captures;
  Regions regions;
  std::set<std::uintptr_t> pinned;  // regions of which the device may still use something
  int agents = 1, next_stream = 1, next_region = 1;
  std::uint64_t next_capture = 1, ticks = 0;
  Clock host;

  std::vector<std::string> reports;
  std::vector<PlannedFailure> failures, operation_failures;
  std::vector<PlannedDelay> delays;
  std::map<std::string, std::uint64_t> calls, operations;
  std::uint64_t waits = 0;
};

State& Driver();
std::uint64_t Draw();
std::uint64_t ThreadNumber();
void Report(const std::string& text);

/// Contexts that are current on this thread, the last on top.
std::vector<CUcontext>& ThreadContexts();
CUcontext CurrentContext();

/// One call of an API function: takes the lock, counts, and finds what forbids the call.
class Call {
 public:
  enum Needs : unsigned {
    kNothing = 0,
    kInit = 1,
    kContext = 3,
    /// A call that a capture in global mode on any thread forbids, or on this one in thread-local
    /// mode.
    kUnsafeInCapture = 4
  };
  Call(const char* function, unsigned needs);
  CUresult error = CUDA_SUCCESS;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};
#define STANDIN_CALL(NEEDS)              \
  ::standin::Call call(__func__, NEEDS); \
  if (call.error != CUDA_SUCCESS) return call.error;

/// While it lives, this thread runs a host function of a stream, which must not call the driver.
struct HostFunctionScope {
  HostFunctionScope();
  ~HostFunctionScope();
};

// --- streams.cc ---
CUstream NewStream(CUcontext context, unsigned flags, const std::string& name);
/// The stream of a handle, default ones included; null if there is none.
CUstream FindStream(CUstream handle);
/// The error that a stream's capture puts on a call that waits for or asks about it, or success.
CUresult RefuseInCapture(CUstream stream, const std::string& function);
void BreakCapture(Capture& capture, const std::string& why);
CUresult Enqueue(CUstream stream, Work work);
void EnqueueRecord(CUstream stream, const std::shared_ptr<EventState>& event);
void EnqueueWait(CUstream stream, const std::shared_ptr<EventState>& event);
CUresult EnqueueWaitValue(CUstream stream, const std::uint32_t* signal, std::uint32_t value);
CUresult WaitFor(CUstream stream);
CUresult WaitForAll(CUcontext context);
CUresult WaitFor(const std::shared_ptr<EventState>& event);
/// Runs one operation of some stream, or all of them; the host knows no more after it.
void RunSome();
void RunAll();

// --- memory.cc ---
/// Memory that the host cannot touch, or null.
Region* NewDeviceMemory(std::size_t bytes);
/// Memory of the host's that the device may use, or null.
Region* NewPinnedMemory(std::size_t bytes);
void FreeNow(Region& region);
void OpenMemory();
void CloseMemory();
void ForgetMemory();
/// Where the range must lie; null if it is pageable memory of the host's. An error where it runs
/// out of a region.
CUresult FindRange(const Range& range, const std::string& what, Region** region);
/// Checks the ranges of an operation as it runs.
bool CheckAccess(const Operation& operation, Region& region, bool writes, Intervals at);
/// Pinned memory that an operation will use: closed to the host until it has waited.
void NotePinned(Region& region, const Operation& operation, bool writes, Intervals at);
void ProtectPinned();
void InstallTouchHandler();

// --- kernels.cc ---
CUresult LoadModule(const void* image, CUmodule* module);
void UnloadModule(CUmodule module);
/// Runs all threads; the launch says how many.
CUresult RunKernel(CUfunction function, caesura_emulator::Launch launch, unsigned dynamic_shared,
                   std::vector<void*> arguments, const Operation& operation);
void ForgetModules();

}  // namespace standin
