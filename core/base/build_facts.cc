// SPDX-License-Identifier: Apache-2.0
// The macros CAESURA_* come from core/CMakeLists.txt.
#include "core/base/build_facts.h"

#include <google/protobuf/stubs/common.h>
#include <omp.h>
#include <onnx/common/version.h>

#include <oneapi/dnnl/dnnl.hpp>

namespace caesura {
namespace {

std::string OneDnnVersion() {
  const dnnl_version_t* v = dnnl_version();
  return std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
         std::to_string(v->patch) + " (" + std::string(v->hash).substr(0, 10) + ")";
}

// The widest set of instructions that kernels will use on this machine, under oneDNN's name for it.
std::string InstructionSet() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41: return "SSE4.1";
    case dnnl::cpu_isa::avx: return "AVX";
    case dnnl::cpu_isa::avx2: return "AVX2";
    case dnnl::cpu_isa::avx2_vnni: return "AVX2, VNNI";
    case dnnl::cpu_isa::avx2_vnni_2: return "AVX2, VNNI 2 (bfloat16, float16 conversions)";
    case dnnl::cpu_isa::avx512_core: return "AVX-512";
    case dnnl::cpu_isa::avx512_core_vnni: return "AVX-512, VNNI";
    case dnnl::cpu_isa::avx512_core_bf16: return "AVX-512, VNNI, bfloat16";
    case dnnl::cpu_isa::avx512_core_fp16: return "AVX-512, VNNI, bfloat16, float16";
    case dnnl::cpu_isa::avx512_core_amx: return "AVX-512, VNNI, bfloat16, float16, AMX";
    case dnnl::cpu_isa::avx512_core_amx_fp16:
      return "AVX-512, VNNI, bfloat16, float16, AMX (float16)";
    default: return "the machine's basic set";
  }
}

}  // namespace

const char* Version() { return CAESURA_VERSION; }

bool HasAsserts() {
#ifdef NDEBUG
  return false;
#else
  return true;
#endif
}

std::vector<std::pair<std::string, std::string>> BuildFacts() {
  return {{"caesura", Version()},
          {"build", CAESURA_BUILD_TYPE},
          {"asserts", HasAsserts() ? "on" : "off"},
          {"compiler", CAESURA_COMPILER},
          {"oneDNN", OneDnnVersion()},
          {"ONNX", ONNX_VERSION_STRING},
          {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)},
          {"instruction set", InstructionSet()},
          {"threads", std::to_string(omp_get_max_threads()) + " (OpenMP)"},
          {"options", CAESURA_BUILD_OPTIONS}};
}

}  // namespace caesura
