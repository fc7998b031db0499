// SPDX-License-Identifier: Apache-2.0
// cuda.h: capture, and graphs. A graph is what its streams were asked to do; a launch asks again,
// the streams but the first being the graph's own.
#include <algorithm>
#include "driver/state.h"

using standin::Call;
using standin::Capture;
using standin::Driver;
using standin::EventState;
using standin::FindStream;
using standin::GraphStep;
using standin::Operation;

namespace {

Capture* FindCapture(CUstream handle) {
  const CUstream stream = FindStream(handle);
  return stream == nullptr ? nullptr : stream->capture;
}

// A stream's work that the origin does not wait for, or an empty text.
std::string Unjoined(const Capture& capture) {
  for (std::size_t i = 1; i < capture.branches.size(); ++i) {
    const int agent = static_cast<int>(i);
    if (capture.clocks[0][agent] < capture.clocks[i][agent]) return capture.branches[i]->name;
  }
  return {};
}

void Close(Capture& capture) {
  for (const CUstream stream : capture.branches) stream->capture = nullptr;
  for (const auto& [handle, event] : Driver().events) {
    if (event->state->capture == &capture) event->state->capture = nullptr;
  }
  std::erase_if(Driver().captures, [&](const auto& held) { return held.get() == &capture; });
}

std::size_t Nodes(const CUgraph_st& graph) {
  return static_cast<std::size_t>(
      std::count_if(graph.steps.begin(), graph.steps.end(),
                    [](const GraphStep& step) { return step.kind == Operation::Kind::kWork; }));
}

CUresult Instantiate(CUgraphExec* executable, CUgraph graph) {
  if (!Driver().graphs.contains(graph)) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUgraphExec_st>();
  made->graph = *graph;
  for (int i = 1; i < graph->branches; ++i) {
    made->streams.push_back(standin::NewStream(standin::CurrentContext(), CU_STREAM_NON_BLOCKING,
                                               "branch " + std::to_string(i) + " of a graph"));
  }
  *executable = made.get();
  Driver().executables.emplace(*executable, std::move(made));
  return CUDA_SUCCESS;
}

// In a capture, the graph becomes a part of the graph that is captured.
CUresult Launch(CUgraphExec_st& executable, CUstream origin) {
  if (origin->capture != nullptr && !executable.streams.empty()) {
    return standin::RefuseInCapture(origin, "cuGraphLaunch of a graph with branches");
  }
  const auto stream_of = [&](int branch) {
    return branch == 0 ? origin : executable.streams[static_cast<std::size_t>(branch) - 1];
  };
  std::vector<std::shared_ptr<EventState>> events;
  for (int i = 0; i < executable.graph.events; ++i) {
    events.push_back(std::make_shared<EventState>());
    events.back()->context = origin->context;
  }
  for (const GraphStep& step : executable.graph.steps) {
    const CUstream stream = stream_of(step.branch);
    if (step.kind == Operation::Kind::kWork) {
      const CUresult error = standin::Enqueue(stream, step.work);
      if (error != CUDA_SUCCESS) return error;
    } else if (origin->capture == nullptr) {
      const auto& event = events[static_cast<std::size_t>(step.event)];
      step.kind == Operation::Kind::kRecord ? standin::EnqueueRecord(stream, event)
                                            : standin::EnqueueWait(stream, event);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  STANDIN_CALL(Call::kContext)
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_unique<Capture>();
  capture->mode = mode;
  capture->thread = standin::ThreadNumber();
  capture->id = Driver().next_capture++;
  capture->branches.push_back(stream);
  capture->clocks.emplace_back();
  stream->capture = capture.get();
  Driver().captures.push_back(std::move(capture));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  STANDIN_CALL(Call::kContext)
  *graph = nullptr;
  Capture* capture = FindCapture(handle);
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->branches[0] != FindStream(handle)) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != standin::ThreadNumber()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult error = CUDA_SUCCESS;
  if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    error = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (const std::string name = Unjoined(*capture); !name.empty()) {
    standin::BreakCapture(*capture, "an end while the origin does not wait for " + name);
    error = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  } else {
    auto made = std::make_unique<CUgraph_st>();
    made->steps = std::move(capture->steps);
    made->branches = static_cast<int>(capture->branches.size());
    made->events = static_cast<int>(capture->events.size());
    *graph = made.get();
    Driver().graphs.emplace(*graph, std::move(made));
  }
  Close(*capture);
  return error;
}
CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  STANDIN_CALL(Call::kContext)
  const Capture* capture = FindCapture(handle);
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : capture->status;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status,
                                        cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies,
                                        const CUgraphEdgeData** edges, std::size_t* count) {
  STANDIN_CALL(Call::kContext)
  const Capture* capture = FindCapture(handle);
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : capture->status;
  if (id != nullptr && capture != nullptr) *id = capture->id;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  STANDIN_CALL(Call::kInit)
  static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(*mode, current);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  STANDIN_CALL(Call::kInit)
  if (!Driver().graphs.contains(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (nodes != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  *count = Nodes(*graph);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  STANDIN_CALL(Call::kInit)
  return Driver().graphs.erase(graph) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  STANDIN_CALL(Call::kContext)
  return Instantiate(executable, graph);
}
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  STANDIN_CALL(Call::kContext)
  const CUresult error = Instantiate(executable, graph);
  parameters->result_out =
      error == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return error;
}
CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec executable, CUgraph graph,
                                   CUgraphExecUpdateResultInfo* info) {
  STANDIN_CALL(Call::kContext)
  if (!Driver().executables.contains(executable) || !Driver().graphs.contains(graph)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto alike = [](const GraphStep& a, const GraphStep& b) {
    return a.kind == b.kind && a.branch == b.branch && a.event == b.event &&
           a.work.name == b.work.name;
  };
  *info = {};
  if (!std::equal(graph->steps.begin(), graph->steps.end(), executable->graph.steps.begin(),
                  executable->graph.steps.end(), alike)) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  executable->graph.steps = graph->steps;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphUpload(CUgraphExec executable, CUstream) {
  STANDIN_CALL(Call::kContext)
  return Driver().executables.contains(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  STANDIN_CALL(Call::kContext)
  const CUstream stream = FindStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!Driver().executables.contains(executable)) return CUDA_ERROR_INVALID_VALUE;
  return Launch(*executable, stream);
}
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec executable) {
  STANDIN_CALL(Call::kInit)
  if (!Driver().executables.contains(executable)) return CUDA_ERROR_INVALID_VALUE;
  if (!executable->streams.empty()) standin::RunAll();
  for (const CUstream stream : executable->streams) Driver().streams.erase(stream);
  Driver().executables.erase(executable);
  return CUDA_SUCCESS;
}

}  // extern "C"
