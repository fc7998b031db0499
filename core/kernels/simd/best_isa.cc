// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/simd/best_isa.h"

#include "core/base/env.h"

namespace caesura {
namespace {

Isa DetectIsa() {
#if defined(__x86_64__) && !defined(CAESURA_BASELINE_ONLY)
  const std::string most = env::MaxIsa();
  if (most == "x86-64") return Isa::kBaseline;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4") && most != "x86-64-v3") return Isa::kX86V4;
  if (__builtin_cpu_supports("x86-64-v3")) return Isa::kX86V3;
#endif
  return Isa::kBaseline;
}

}  // namespace

Isa BestIsa() {
  static const Isa isa = DetectIsa();
  return isa;
}

const char* BestIsaName() {
  switch (BestIsa()) {
    case Isa::kX86V4: return "x86-64-v4";
    case Isa::kX86V3: return "x86-64-v3";
    default: return "x86-64";
  }
}

}  // namespace caesura
