// SPDX-License-Identifier: Apache-2.0
// Streams are queues that nothing runs before something waits for it; then they run in an order
// drawn from the seed.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include "driver/state.h"

namespace standin {
namespace {

constexpr std::size_t kMostRegions = 1024;
constexpr int kMostWaits = 2000;  // of a millisecond, for a value of another thread

// Begins an operation, once: a planned failure, the checks of its ranges.
CUresult Begin(Operation& operation) {
  State& state = Driver();
  CUresult result = CUDA_SUCCESS;
  for (PlannedFailure& failure : state.operation_failures) {
    if (result == CUDA_SUCCESS && operation.what.starts_with(failure.name) && failure.n > 0 &&
        --failure.n == 0) {
      result = failure.error;
    }
  }
  ++state.ticks;
  operation.begun = true;
  if (result != CUDA_SUCCESS) return result;
  for (const Range& range : operation.work.ranges) {
    Region* region = state.regions.Find(range.at);
    if (region == nullptr || range.bytes == 0) continue;
    if (!CheckAccess(operation, *region, range.writes, {{range.at, range.at + range.bytes}})) {
      result = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
  }
  return result;
}

// Later operations know all that the host has done at this point.
bool Signalled(CUstream stream, const Operation& operation) {
  const std::uint32_t now = __atomic_load_n(operation.signal, __ATOMIC_ACQUIRE);
  if (static_cast<std::int32_t>(now - operation.value) < 0) return false;
  const Clock& host = Driver().host;
  stream->clock.Join(host);
  for (Operation& later : stream->queue) later.clock.Join(host);
  return true;
}

// Runs the operation at the head of a stream; false if there is none, or it has to wait.
bool Step(CUstream stream) {
  State& state = Driver();
  if (stream->busy || stream->queue.empty()) return false;
  Operation& operation = stream->queue.front();
  if (operation.kind == Operation::Kind::kWait) {
    if (operation.event->done < operation.generation) return false;
    stream->queue.pop_front();
    return true;
  }
  if (operation.kind == Operation::Kind::kWaitValue) {
    if (!Signalled(stream, operation)) return false;
    stream->queue.pop_front();
    return true;
  }
  if (operation.kind == Operation::Kind::kRecord) {
    operation.event->done = std::max(operation.event->done, operation.generation);
    operation.event->when = static_cast<double>(++state.ticks) * 0.001;
    stream->queue.pop_front();
    return true;
  }
  CUresult result = operation.context->sticky;
  if (!operation.begun && result == CUDA_SUCCESS) result = Begin(operation);
  if (result == CUDA_SUCCESS) {
    stream->busy = true;
    result = operation.work.run(operation);
    stream->busy = false;
    if (result == CUDA_ERROR_NOT_READY) return false;
  }
  if (result != CUDA_SUCCESS) operation.context->sticky = result;
  stream->queue.pop_front();
  state.changed.notify_all();
  return true;
}

bool StepAny() {
  State& state = Driver();
  const std::size_t count = state.streams.size();
  if (count == 0) return false;
  auto at = std::next(state.streams.begin(), static_cast<std::ptrdiff_t>(Draw() % count));
  for (std::size_t k = 0; k < count; ++k) {
    if (Step(at->first)) return true;
    if (++at == state.streams.end()) at = state.streams.begin();
  }
  return false;
}

// One way in which devices differ: the others hardly run, or run as well.
void RunUntil(const std::function<bool()>& done, CUstream wanted) {
  State& state = Driver();
  const bool eager = Draw() % 2 != 0;
  int waits = 0;
  OpenMemory();
  while (!done()) {
    if (!eager && wanted != nullptr && Step(wanted)) continue;
    if (StepAny()) continue;
    // Another thread runs an operation, or has to bring what one waits for.
    const bool goes_on =
        std::any_of(state.streams.begin(), state.streams.end(), [](const auto& at) {
          const CUstream_st& stream = *at.second;
          return stream.busy || (!stream.queue.empty() && stream.queue.front().begun);
        });
    // Another thread may write the value that a stream waits for.
    const bool signalled =
        waits < kMostWaits && std::any_of(
                                  state.streams.begin(), state.streams.end(),
                                  [](const auto& at) {
                                    const auto& queue = at.second->queue;
                                    return !queue.empty() &&
                                           queue.front().kind == Operation::Kind::kWaitValue;
                                  });
    if (!goes_on && !signalled) {
      Report(waits > 0 ? "deadlock: a stream waits for a value that the host does not write"
                       : "deadlock: the device waits for an event that no stream records");
      // The host's thread goes on; so must the stream.
      for (const auto& [handle, stream] : state.streams) {
        std::erase_if(stream->queue, [](const Operation& operation) {
          return operation.kind == Operation::Kind::kWaitValue;
        });
      }
      break;
    }
    waits += goes_on ? 0 : 1;
    CloseMemory();
    state.changed.wait_for(state.lock, std::chrono::milliseconds(1));
    OpenMemory();
  }
  CloseMemory();
}

void ForgetWhatAllKnow() {
  State& state = Driver();
  Clock known = state.host;
  for (const auto& [handle, stream] : state.streams) {
    for (const Operation& operation : stream->queue) {
      if (operation.kind == Operation::Kind::kWork) known.Meet(operation.clock);
    }
  }
  state.regions.ForEach([&](Region& region) { ForgetBefore(region, known); });
  // A use of one that is gone is named as beyond any allocation.
  if (state.regions.size() > kMostRegions) {
    state.regions.EraseIf([](const Region& region) { return region.freed && region.log.empty(); });
  }
}

CUresult HostKnows(const Clock& clock, CUcontext context) {
  State& state = Driver();
  state.host.Join(clock);
  ForgetWhatAllKnow();
  ProtectPinned();
  return context->sticky;
}

bool IsLegacy(CUstream stream) {
  const auto& streams = Driver().default_streams;
  const auto found = streams.find({stream->context, 0});
  return found != streams.end() && found->second == stream;
}

// The legacy stream waits for all blocking ones, and they for it.
void JoinLegacy(CUstream stream) {
  State& state = Driver();
  const auto wait = [](CUstream later, CUstream earlier) {
    if (earlier->queue.empty() && later->clock[earlier->agent] >= earlier->clock[earlier->agent]) {
      return;
    }
    auto event = std::make_shared<EventState>();
    event->context = later->context;
    EnqueueRecord(earlier, event);
    EnqueueWait(later, event);
  };
  if (IsLegacy(stream)) {
    for (const auto& [handle, other] : state.streams) {
      if (handle != stream && other->blocking && other->context == stream->context) {
        wait(stream, handle);
      }
    }
  } else if (stream->blocking) {
    const auto legacy = state.default_streams.find({stream->context, 0});
    if (legacy != state.default_streams.end()) wait(stream, legacy->second);
  }
}

}  // namespace

CUstream NewStream(CUcontext context, unsigned flags, const std::string& name) {
  State& state = Driver();
  auto stream = std::make_unique<CUstream_st>();
  stream->name = name;
  stream->agent = state.agents++;
  stream->context = context;
  stream->flags = flags;
  stream->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
  const CUstream handle = stream.get();
  state.streams.emplace(handle, std::move(stream));
  return handle;
}

CUstream FindStream(CUstream handle) {
  State& state = Driver();
  if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    return state.streams.contains(handle) ? handle : nullptr;
  }
  const CUcontext context = CurrentContext();
  if (context == nullptr) return nullptr;
  const std::uint64_t thread = handle == CU_STREAM_PER_THREAD ? ThreadNumber() : 0;
  CUstream& stream = state.default_streams[{context, thread}];
  if (stream == nullptr) {
    stream = NewStream(context, 0,
                       thread == 0 ? "the legacy stream"
                                   : "the default stream of thread " + std::to_string(thread));
  }
  return stream;
}

void BreakCapture(Capture& capture, const std::string& why) {
  if (capture.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return;
  capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  capture.broken_by = why;
  Report("forbidden in a capture: " + why);
}

CUresult RefuseInCapture(CUstream stream, const std::string& function) {
  if (stream->capture != nullptr) {
    BreakCapture(*stream->capture, function + " on " + stream->name);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!IsLegacy(stream)) return CUDA_SUCCESS;
  for (const auto& [handle, other] : Driver().streams) {
    if (other->capture != nullptr && other->blocking && other->context == stream->context) {
      BreakCapture(*other->capture, function + " on " + stream->name);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Enqueue(CUstream stream, Work work) {
  State& state = Driver();
  if (Capture* capture = stream->capture; capture != nullptr) {
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    const auto branch = std::find(capture->branches.begin(), capture->branches.end(), stream);
    const int index = static_cast<int>(branch - capture->branches.begin());
    capture->clocks[static_cast<std::size_t>(index)].Tick(index);
    capture->steps.push_back({Operation::Kind::kWork, index, std::move(work), -1});
    return CUDA_SUCCESS;
  }
  if (const CUresult error = RefuseInCapture(stream, work.name); error != CUDA_SUCCESS)
    return error;
  JoinLegacy(stream);
  Operation operation;
  operation.what = work.name + " on " + stream->name;
  operation.agent = stream->agent;
  stream->clock.Join(state.host);
  operation.time = stream->clock.Tick(stream->agent);
  operation.clock = stream->clock;
  operation.context = stream->context;
  operation.work = std::move(work);
  for (const Range& range : operation.work.ranges) {
    Region* region = state.regions.Find(range.at);
    if (region != nullptr && region->kind == Region::Kind::kPinned) {
      NotePinned(*region, operation, range.writes, {{range.at, range.at + range.bytes}});
    }
  }
  ++state.operations[operation.work.name];
  stream->queue.push_back(std::move(operation));
  ProtectPinned();
  return CUDA_SUCCESS;
}

void EnqueueRecord(CUstream stream, const std::shared_ptr<EventState>& event) {
  stream->clock.Join(Driver().host);
  event->clock = stream->clock;
  Operation operation;
  operation.kind = Operation::Kind::kRecord;
  operation.event = event;
  operation.generation = ++event->recorded;
  operation.context = stream->context;
  stream->queue.push_back(std::move(operation));
}

void EnqueueWait(CUstream stream, const std::shared_ptr<EventState>& event) {
  stream->clock.Join(event->clock);
  if (event->done >= event->recorded) return;
  Operation operation;
  operation.kind = Operation::Kind::kWait;
  operation.event = event;
  operation.generation = event->recorded;
  operation.context = stream->context;
  stream->queue.push_back(std::move(operation));
}

CUresult EnqueueWaitValue(CUstream stream, const std::uint32_t* signal, std::uint32_t value) {
  if (const CUresult error = RefuseInCapture(stream, "cuStreamWaitValue32"); error != CUDA_SUCCESS)
    return error;
  Region* region = Driver().regions.Find(Address(signal));
  if (region == nullptr || region->kind != Region::Kind::kPinned) return CUDA_ERROR_INVALID_VALUE;
  region->signals = true;
  stream->clock.Join(Driver().host);
  Operation operation;
  operation.kind = Operation::Kind::kWaitValue;
  operation.signal = signal;
  operation.value = value;
  operation.context = stream->context;
  ++Driver().operations["wait for a value"];
  stream->queue.push_back(std::move(operation));
  return CUDA_SUCCESS;
}

CUresult WaitFor(CUstream stream) {
  const Clock clock = stream->clock;
  RunUntil([&] { return stream->queue.empty(); }, stream);
  return HostKnows(clock, stream->context);
}

CUresult WaitForAll(CUcontext context) {
  State& state = Driver();
  Clock clock;
  for (const auto& [handle, stream] : state.streams) {
    if (stream->context == context) clock.Join(stream->clock);
  }
  RunUntil(
      [&] {
        return std::all_of(state.streams.begin(), state.streams.end(), [&](const auto& stream) {
          return stream.second->context != context || stream.second->queue.empty();
        });
      },
      nullptr);
  return HostKnows(clock, context);
}

CUresult WaitFor(const std::shared_ptr<EventState>& event) {
  const std::uint64_t generation = event->recorded;
  const Clock clock = event->clock;
  RunUntil([&] { return event->done >= generation; }, nullptr);
  return HostKnows(clock, event->context);
}

void RunAll() {
  RunUntil(
      [] {
        return std::all_of(Driver().streams.begin(), Driver().streams.end(),
                           [](const auto& stream) { return stream.second->queue.empty(); });
      },
      nullptr);
}

void RunSome() {
  OpenMemory();
  StepAny();
  CloseMemory();
}

}  // namespace standin
