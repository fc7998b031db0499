// SPDX-License-Identifier: Apache-2.0
#include "training/command/provider_choice.h"

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/plugin/plugin_provider.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/cuda/cuda_provider.h"
#include "training/kernels/training_ops.h"

namespace caesura::command {

void AddProviderOptions(CLI::App& app, ProviderChoice* choice, const std::string& group) {
  app.add_option("--provider", choice->name,
                 "A provider to ask before the CPU's: cuda (short for CUDAExecutionProvider), "
                 "OpenVINOExecutionProvider, or the path of a plug-in")
      ->group(group);
  app.add_option("--provider-option", choice->options, "KEY=VALUE for it; may be given again")
      ->group(group);
}

Result<ProviderList> MakeProviders(const ProviderChoice& choice) {
  ProviderList out;
  ProviderOptions options;
  for (const std::string& option : choice.options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--provider-option: expected KEY=VALUE, got '" + option + "'");
    options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  if (!choice.name.empty()) {
    const std::string name = choice.name == "cuda" ? kCudaProviderName : choice.name;
    ASSIGN_OR_RETURN(auto provider, ProviderByName(name, options));
    out.push_back(std::move(provider));
  } else if (!options.empty()) {
    return InvalidArgument("--provider-option needs --provider");
  }
  out.push_back(MakeCpuProvider(RegisterTrainingKernels));
  return out;
}

}  // namespace caesura::command
