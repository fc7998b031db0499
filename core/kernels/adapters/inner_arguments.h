// SPDX-License-Identifier: Apache-2.0
// The arguments of a kernel that another kernel runs on memory of its own choice.
#ifndef CAESURA_CORE_KERNELS_ADAPTERS_INNER_ARGUMENTS_H_
#define CAESURA_CORE_KERNELS_ADAPTERS_INNER_ARGUMENTS_H_

#include <array>

#include "core/kernels/kernel.h"

namespace caesura {

// Begins as the outer kernel's own addresses; what is replaced stays so for the call. Lives on the
// stack of a run.
class InnerArguments {
 public:
  static constexpr int kMax = 32;  // inputs and outputs together
  InnerArguments(const KernelContext& outer, int inputs, int outputs) : inputs_(inputs) {
    for (int i = 0; i < inputs; ++i) slots_[i] = const_cast<void*>(outer.Input<void>(i));
    for (int i = 0; i < outputs; ++i) slots_[inputs + i] = outer.Output<void>(i);
  }
  void*& input(int i) { return slots_[i]; }
  void*& output(int i) { return slots_[inputs_ + i]; }
  // For a kernel that asks its host for nothing: no random numbers, no outputs that are sized in
  // the run.
  KernelContext Context(void* scratch) {
    return KernelContext(slots_.data(), kIds.data(), static_cast<uint32_t>(inputs_), scratch, 0,
                         nullptr);
  }

 private:
  static constexpr std::array<uint32_t, kMax> kIds = [] {
    std::array<uint32_t, kMax> ids{};
    for (uint32_t i = 0; i < kMax; ++i) ids[i] = i;
    return ids;
  }();
  std::array<void*, kMax> slots_;
  int inputs_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_ADAPTERS_INNER_ARGUMENTS_H_
