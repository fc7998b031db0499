// SPDX-License-Identifier: Apache-2.0
// The plug-in libcaesura_openvino.so: what its parts share. It links OpenVINO and nothing of
// caesura's.
#ifndef CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_PLUGIN_H_
#define CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_PLUGIN_H_

#include <memory>
#include <mutex>
#include <vector>

#include "core/plugin/caesura_provider.h"
#include "core/providers/openvino/openvino_tensor.h"

namespace caesura_openvino {

inline const CaesuraProviderApi& ProviderApi() { return *caesura::plugin::Api().provider; }

// A model from an ONNX file's bytes. Reads nothing from disk.
std::shared_ptr<ov::Model> ReadOnnx(ov::Core& core, const void* bytes, size_t size);

// A part compiled on the CPU, in float32 throughout, and requests to run it with: as many as there
// are runs at the same time. Thread safety: all methods from any thread.
class CompiledModel {
 public:
  // `threads`: of a run.
  CompiledModel(ov::Core& core, const std::shared_ptr<ov::Model>& model, int threads);

  // Lends a request during fn(request, infer), a fresh one where `fresh`; infer() runs it.
  template <typename Fn>
  void WithRequest(bool fresh, const Fn& fn) {
    ov::InferRequest request;
    if (!fresh) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        request = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!request) request = requests_.Make(compiled_);
    fn(request, [&] { requests_.Infer(request); });
    if (fresh) return;
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(request));
  }
  const ov::CompiledModel& model() const { return compiled_; }

 private:
  ov::CompiledModel compiled_;
  Requests requests_;
  std::mutex mutex_;
  std::vector<ov::InferRequest> idle_;
};

// openvino_provider.cc
const CaesuraProvider& Provider();

}  // namespace caesura_openvino

#endif  // CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_PLUGIN_H_
