// SPDX-License-Identifier: Apache-2.0
// The definition of CaesuraContext, which the C table for ops (caesura_op.h) only names.
#ifndef CAESURA_CORE_PLUGIN_OP_CONTEXT_H_
#define CAESURA_CORE_PLUGIN_OP_CONTEXT_H_

#include <memory>
#include <vector>

#include "core/kernels/kernel.h"
#include "core/plugin/caesura_op.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// Facts about a kernel's arguments that are the same in every run.
struct KernelFacts {
  struct Argument {
    bool present = false;
    int32_t dtype = 0;  // 0: an output that is sized at run time
    std::vector<int64_t> dims;
  };
  std::vector<Argument> inputs, outputs;
  int threads = 1;
  Device device;
  Allocator* allocator = nullptr;

  // REQUIRES: the kernel's outputs are set. kUnsupported where an argument is no tensor of numbers.
  static Result<KernelFacts> Of(const KernelInfo& info, const ExecutionProvider& provider);
};

}  // namespace caesura

struct CaesuraContext {
  CaesuraContext(caesura::KernelContext& context_of_run,
                 const caesura::KernelFacts& facts_of_kernel)
      : context(context_of_run), facts(facts_of_kernel), allocated(facts.outputs.size()) {}
  // Ok when every output that is present has memory.
  caesura::Status CheckOutputs() const;

  caesura::KernelContext& context;
  const caesura::KernelFacts& facts;
  std::vector<caesura::Tensor> allocated;  // by output
  std::vector<std::shared_ptr<caesura::Buffer>> scratch;
};

#endif  // CAESURA_CORE_PLUGIN_OP_CONTEXT_H_
