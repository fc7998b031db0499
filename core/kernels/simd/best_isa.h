// SPDX-License-Identifier: Apache-2.0
// Compiles a loop for the baseline and for newer x86-64 instruction sets (AVX2 with FMA; AVX-512),
// and runs the widest that the machine has. For loops that compute: one that only moves memory
// gains nothing.
//
//   OnBestIsa([&] {
//     for (int64_t i = first; i < last; ++i) y[i] = math::Exp(x[i]);
//   });
//
// All that the loop calls must inline. Where the machine has FMA, a * b + c is rounded once:
// results may differ in the last place from machine to machine, never on one machine.
#ifndef CAESURA_CORE_KERNELS_SIMD_BEST_ISA_H_
#define CAESURA_CORE_KERNELS_SIMD_BEST_ISA_H_

namespace caesura {

enum class Isa { kBaseline, kX86V3, kX86V4 };

// The machine's best, or CAESURA_MAX_ISA below that; decided once.
Isa BestIsa();
// "x86-64", "x86-64-v3", "x86-64-v4" (or "baseline" on other machines): part of what decides
// rounding.
const char* BestIsaName();

// CAESURA_BASELINE_ONLY: a build that needs no speed compiles each loop once.
#if defined(__x86_64__) && !defined(CAESURA_BASELINE_ONLY)

namespace isa_internal {

template <typename Loop>
[[gnu::target("arch=x86-64-v3"), gnu::flatten]] void RunV3(Loop& loop) {
  loop();
}
template <typename Loop>
[[gnu::target("arch=x86-64-v4"), gnu::flatten]] void RunV4(Loop& loop) {
  loop();
}

}  // namespace isa_internal

// The one of three loops that is written for the machine's best.
template <typename Wide, typename Middle, typename Baseline>
void OnBestIsa(Wide&& wide, Middle&& middle, Baseline&& baseline) {
  switch (BestIsa()) {
    case Isa::kX86V4: return isa_internal::RunV4(wide);
    case Isa::kX86V3: return isa_internal::RunV3(middle);
    case Isa::kBaseline: return baseline();
  }
}

#else

template <typename Wide, typename Middle, typename Baseline>
void OnBestIsa(Wide&&, Middle&&, Baseline&& baseline) {
  baseline();
}

#endif

template <typename Loop>
void OnBestIsa(Loop loop) {
  OnBestIsa(loop, loop, loop);
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SIMD_BEST_ISA_H_
