// SPDX-License-Identifier: Apache-2.0
// The plug-in libcaesura_openvino.so: what its parts share. It links OpenVINO and nothing of caesura's.
#ifndef CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_PLUGIN_H_
#define CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_PLUGIN_H_

#include <memory>
#include <mutex>
#include <new>
#include <openvino/openvino.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/plugin/caesura_plugin.h"

namespace caesura_openvino {

// Set before anything else is called.
extern const CaesuraApi* api;

// A failure on its way to the border.
struct Failure : std::runtime_error {
  Failure(CaesuraCode failed, const std::string& what) : std::runtime_error(what), code(failed) {}
  CaesuraCode code;
};

// Throws what the status says.
void Check(CaesuraStatus* status);

// Runs `fn` and turns what it throws into a status; what OpenVINO throws is a provider failure.
template <typename Fn>
CaesuraStatus* Guard(const Fn& fn) {
  try {
    fn();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return api->make_status(CAESURA_OUT_OF_MEMORY, "memory ran out");
  } catch (const Failure& failure) {
    return api->make_status(failure.code, failure.what());
  } catch (const std::exception& error) {
    return api->make_status(CAESURA_PROVIDER_FAILURE, error.what());
  }
}

// By ONNX's number; throws where OpenVINO has no such type.
ov::element::Type ElementType(int32_t dtype);

// A model from an ONNX file's bytes. Reads nothing from disk.
std::shared_ptr<ov::Model> ReadOnnx(ov::Core& core, const void* bytes, size_t size);

// What is compiled on the CPU, in float32 throughout, and requests to run it with: as many as there are runs at the
// same time. Thread safety: all methods from any thread.
class CompiledModel {
 public:
  // `threads`: of a run.
  CompiledModel(ov::Core& core, const std::shared_ptr<ov::Model>& model, int threads);

  // Lends a request during fn(request), a fresh one where `fresh`.
  template <typename Fn>
  void WithRequest(bool fresh, const Fn& fn) {
    ov::InferRequest request;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!fresh && !idle_.empty()) {
        request = std::move(idle_.back());
        idle_.pop_back();
      } else {
        request = compiled_.create_infer_request();
      }
    }
    fn(request);
    if (fresh) return;
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(request));
  }
  const ov::CompiledModel& model() const { return compiled_; }

 private:
  ov::CompiledModel compiled_;
  std::mutex mutex_;
  std::vector<ov::InferRequest> idle_;
};

// openvino_provider.cc
const CaesuraProvider& Provider();

}  // namespace caesura_openvino

#endif  // CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_PLUGIN_H_
