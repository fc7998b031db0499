// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/function_inlining.h"

#include "core/plan/function_expansion.h"

namespace caesura {
namespace {

class FunctionInlining : public Pass {
 public:
  explicit FunctionInlining(ProviderList providers) : providers_(std::move(providers)) {}
  const char* name() const override { return "function_inlining"; }
  Result<bool> Run(Model& model) override { return ExpandMissingKernels(*model.graph, providers_); }

 private:
  ProviderList providers_;
};

}  // namespace

std::shared_ptr<Pass> MakeFunctionInliningPass(ProviderList providers) {
  return std::make_shared<FunctionInlining>(std::move(providers));
}

}  // namespace caesura
