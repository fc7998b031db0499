// SPDX-License-Identifier: Apache-2.0
#include "core/providers/openvino/openvino_plugin.h"

namespace caesura_openvino {

std::shared_ptr<ov::Model> ReadOnnx(ov::Core& core, const void* bytes, size_t size) {
  return core.read_model(std::string(static_cast<const char*>(bytes), size), ov::Tensor());
}

CompiledModel::CompiledModel(ov::Core& core, const std::shared_ptr<ov::Model>& model, int threads)
    : compiled_(
          core.compile_model(model, "CPU",
                             {
                                 ov::hint::inference_precision(ov::element::f32),
                                 ov::hint::execution_mode(ov::hint::ExecutionMode::ACCURACY),
                                 ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
                                 ov::num_streams(1),
                                 ov::inference_num_threads(threads),
                                 // The cores are also those of the session's own kernels.
                                 ov::hint::enable_cpu_pinning(false),
                             })) {}

}  // namespace caesura_openvino

extern "C" __attribute__((visibility("default"))) CaesuraStatus* CaesuraPluginMain(
    const CaesuraApi* table, CaesuraPlugin* plugin) {
  caesura::plugin::Use(table);
  return table->add_provider(plugin, &caesura_openvino::Provider());
}
