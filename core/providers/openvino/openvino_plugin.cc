// SPDX-License-Identifier: Apache-2.0
#include "core/providers/openvino/openvino_plugin.h"

namespace caesura_openvino {

const CaesuraApi* api = nullptr;

void Check(CaesuraStatus* status) {
  if (status == nullptr) return;
  const Failure failure(static_cast<CaesuraCode>(api->status_code(status)), api->status_message(status));
  api->release_status(status);
  throw failure;
}

ov::element::Type ElementType(int32_t dtype) {
  switch (dtype) {
    case 1: return ov::element::f32;
    case 2: return ov::element::u8;
    case 3: return ov::element::i8;
    case 4: return ov::element::u16;
    case 5: return ov::element::i16;
    case 6: return ov::element::i32;
    case 7: return ov::element::i64;
    case 9: return ov::element::boolean;
    case 10: return ov::element::f16;
    case 11: return ov::element::f64;
    case 12: return ov::element::u32;
    case 13: return ov::element::u64;
    case 16: return ov::element::bf16;
    default: throw Failure(CAESURA_UNSUPPORTED, "OpenVINO has no element type " + std::to_string(dtype));
  }
}

std::shared_ptr<ov::Model> ReadOnnx(ov::Core& core, const void* bytes, size_t size) {
  return core.read_model(std::string(static_cast<const char*>(bytes), size), ov::Tensor());
}

CompiledModel::CompiledModel(ov::Core& core, const std::shared_ptr<ov::Model>& model, int threads)
    : compiled_(core.compile_model(model, "CPU",
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

extern "C" __attribute__((visibility("default"))) CaesuraStatus* CaesuraPluginMain(const CaesuraApi* table,
                                                                                   CaesuraPlugin* plugin) {
  caesura_openvino::api = table;
  return table->add_provider(plugin, &caesura_openvino::Provider());
}
