// SPDX-License-Identifier: Apache-2.0
// cuda.h: streams, events, functions of the host in streams.
#include <algorithm>
#include "driver/state.h"

using standin::Call;
using standin::Capture;
using standin::Clock;
using standin::CurrentContext;
using standin::Driver;
using standin::EventState;
using standin::FindStream;
using standin::Operation;

namespace {

CUresult MakeStream(CUstream* stream, unsigned flags, int priority) {
  *stream = standin::NewStream(CurrentContext(), flags,
                               "stream " + std::to_string(Driver().next_stream++));
  (*stream)->priority = priority;
  return CUDA_SUCCESS;
}

std::size_t Branch(const Capture& capture, CUstream stream) {
  return static_cast<std::size_t>(
      std::find(capture.branches.begin(), capture.branches.end(), stream) -
      capture.branches.begin());
}

CUresult RecordInCapture(Capture& capture, CUstream stream, EventState& event) {
  if (capture.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  const std::size_t branch = Branch(capture, stream);
  event.capture = &capture;
  event.capture_index = static_cast<int>(capture.events.size());
  capture.events.push_back(capture.clocks[branch]);
  capture.steps.push_back(
      {Operation::Kind::kRecord, static_cast<int>(branch), {}, event.capture_index});
  return CUDA_SUCCESS;
}

CUresult WaitInCapture(CUstream stream, EventState& event) {
  Capture* capture = event.capture;
  if (capture == nullptr) {
    standin::BreakCapture(
        *stream->capture,
        "a wait of " + stream->name + " for an event that was not recorded in the capture");
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (stream->capture == nullptr) {  // the stream joins the capture
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_CAPTURED_EVENT;
    stream->capture = capture;
    capture->branches.push_back(stream);
    capture->clocks.emplace_back();
  }
  if (stream->capture != capture) {
    standin::BreakCapture(*stream->capture, "a wait for an event of another capture");
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  const std::size_t branch = Branch(*capture, stream);
  capture->clocks[branch].Join(capture->events[static_cast<std::size_t>(event.capture_index)]);
  capture->steps.push_back(
      {Operation::Kind::kWait, static_cast<int>(branch), {}, event.capture_index});
  return CUDA_SUCCESS;
}

CUresult Record(CUevent event, CUstream handle) {
  const CUstream stream = FindStream(handle);
  if (stream == nullptr || !Driver().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return RecordInCapture(*stream->capture, stream, *event->state);
  event->state->capture = nullptr;
  standin::EnqueueRecord(stream, event->state);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned flags) {
  STANDIN_CALL(Call::kContext)
  return MakeStream(stream, flags, 0);
}
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  STANDIN_CALL(Call::kContext)
  return MakeStream(stream, flags, priority);
}
// The stream ends its work first; the real driver would let it finish later.
CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().streams.contains(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    standin::BreakCapture(*stream->capture, "cuStreamDestroy of " + stream->name);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  standin::RunAll();
  Driver().streams.erase(stream);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned* flags) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *id = static_cast<unsigned long long>(stream->agent);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = stream->context;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice* device) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *device = stream->context->device;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult error = standin::RefuseInCapture(stream, "cuStreamSynchronize");
  if (error != CUDA_SUCCESS) return error;
  ++Driver().waits;
  return standin::WaitFor(stream);
}
// Each question lets the device do a little, or no answer would ever be yes.
CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult error = standin::RefuseInCapture(stream, "cuStreamQuery");
  if (error != CUDA_SUCCESS) return error;
  standin::RunSome();
  return stream->queue.empty() ? standin::WaitFor(stream) : CUDA_ERROR_NOT_READY;
}
CUresult CUDAAPI cuStreamWaitValue32(CUstream handle, CUdeviceptr at, cuuint32_t value,
                                     unsigned flags) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  return standin::EnqueueWaitValue(stream, reinterpret_cast<const std::uint32_t*>(at), value);
}
CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr || !Driver().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  EventState& state = *event->state;
  if (stream->capture != nullptr || state.capture != nullptr) return WaitInCapture(stream, state);
  standin::EnqueueWait(stream, event->state);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return standin::Enqueue(stream, {"host function", {}, [=](Operation&) {
                                     standin::CloseMemory();
                                     Driver().lock.unlock();
                                     {
                                       standin::HostFunctionScope scope;
                                       function(argument);
                                     }
                                     Driver().lock.lock();
                                     standin::OpenMemory();
                                     return CUDA_SUCCESS;
                                   }});
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned flags) {
  STANDIN_CALL(Call::kContext)
  auto made = std::make_unique<CUevent_st>();
  made->state = std::make_shared<EventState>();
  made->state->context = CurrentContext();
  made->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = made.get();
  Driver().events.emplace(*event, std::move(made));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventDestroy(CUevent event) {
  STANDIN_CALL(Call::kContext)
  return Driver().events.erase(event) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  STANDIN_CALL(Call::kContext)
  return Record(event, stream);
}
CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  STANDIN_CALL(Call::kContext)
  return Record(event, stream);
}
CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->state->capture != nullptr) {
    standin::BreakCapture(*event->state->capture, "cuEventSynchronize");
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  ++Driver().waits;
  return standin::WaitFor(event->state);
}
CUresult CUDAAPI cuEventQuery(CUevent event) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->state->capture != nullptr) {
    standin::BreakCapture(*event->state->capture, "cuEventQuery");
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  standin::RunSome();
  return event->state->done >= event->state->recorded ? standin::WaitFor(event->state)
                                                      : CUDA_ERROR_NOT_READY;
}
CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().events.contains(begin) || !Driver().events.contains(end) || !begin->timing ||
      !end->timing || begin->state->recorded == 0 || end->state->recorded == 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (begin->state->done < begin->state->recorded || end->state->done < end->state->recorded) {
    return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = static_cast<float>(end->state->when - begin->state->when);
  return CUDA_SUCCESS;
}

}  // extern "C"
