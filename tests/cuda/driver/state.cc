// SPDX-License-Identifier: Apache-2.0
#include "driver/state.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace standin {
namespace {

// As in cuda.h, without the version.
std::string PlainName(const char* function) {
  std::string name = function;
  if (const std::size_t at = name.rfind("_v"); at != std::string::npos && at + 3 == name.size()) {
    name.resize(at);
  }
  return name;
}

}  // namespace

int DevicesAtFirst() {
  const char* const text = std::getenv("STANDIN_DEVICES");
  return text == nullptr ? 1 : std::atoi(text);
}

State& Driver() {
  static State* state = new State;  // outlives the program's static objects
  return *state;
}

std::uint64_t Draw() {  // splitmix64
  std::uint64_t z = Driver().random += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

std::uint64_t ThreadNumber() {
  static std::atomic<std::uint64_t> next{1};
  static thread_local const std::uint64_t number = next++;
  return number;
}

void Report(const std::string& text) {
  auto& reports = Driver().reports;
  if (std::find(reports.begin(), reports.end(), text) != reports.end()) return;
  reports.push_back(text);
  if (const char* const path = std::getenv("STANDIN_REPORTS"))
    std::ofstream(path, std::ios::app) << text << '\n';
}

std::vector<CUcontext>& ThreadContexts() {
  // Kept by the driver: a thread's own objects are gone before the last call at the program's end.
  static thread_local std::vector<CUcontext>* contexts = nullptr;
  static thread_local std::uint64_t generation = 0;
  State& driver = Driver();
  if (contexts == nullptr) {
    const std::lock_guard<std::recursive_mutex> lock(driver.lock);
    contexts = &driver.thread_contexts.emplace_back();
  }
  if (generation != driver.generation) contexts->clear();
  generation = driver.generation;
  return *contexts;
}

CUcontext CurrentContext() { return ThreadContexts().empty() ? nullptr : ThreadContexts().back(); }

static thread_local bool in_host_function = false;

HostFunctionScope::HostFunctionScope() { in_host_function = true; }
HostFunctionScope::~HostFunctionScope() { in_host_function = false; }

Call::Call(const char* function, unsigned needs) : lock_(Driver().lock) {
  State& state = Driver();
  const std::string name = PlainName(function);
  ++state.calls[name];
  for (PlannedDelay& delay : state.delays) {
    if (delay.name == name && delay.n > 0 && --delay.n == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(delay.milliseconds));
  }
  for (PlannedFailure& failure : state.failures) {
    if (failure.name == name && failure.n > 0 && --failure.n == 0) error = failure.error;
  }
  if (error != CUDA_SUCCESS) return;
  if (in_host_function && name != "cuGetErrorString" && name != "cuGetErrorName") {
    Report("forbidden call: " + name + " in a host function of a stream");
    error = CUDA_ERROR_NOT_PERMITTED;
    return;
  }
  if ((needs & kInit) != 0 && !state.initialized) {
    error = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  CUcontext context = CurrentContext();
  if ((needs & kContext) == kContext) {
    if (context == nullptr || context->retained == 0) {
      Report("no context: " + name + " is called on a thread where " +
             (context == nullptr ? "no context is current" : "the current context was released"));
      error = context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
      return;
    }
    if (context->sticky != CUDA_SUCCESS) {
      error = context->sticky;
      return;
    }
  }
  if ((needs & kUnsafeInCapture) == 0) return;
  for (const auto& capture : state.captures) {
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) continue;
    const bool mine = capture->thread == ThreadNumber();
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        (capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !mine)) {
      continue;
    }
    BreakCapture(*capture, name);
    error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
}

}  // namespace standin
