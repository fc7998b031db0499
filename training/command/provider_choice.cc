// SPDX-License-Identifier: Apache-2.0
#include "training/command/provider_choice.h"

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/distributed/machine.h"
#include "core/plugin/plugin_provider.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/cuda/cuda_provider.h"

namespace caesura::command {

void AddProviderOptions(CLI::App& app, ProviderChoice* choice, const std::string& group) {
  app.add_option("--provider", choice->name,
                 "A provider to ask before the CPU's: cuda (short for CUDAExecutionProvider), "
                 "OpenVINOExecutionProvider, or the path of a plug-in")
      ->group(group);
  app.add_option("--provider-option", choice->options, "KEY=VALUE for it; may be given again")
      ->group(group);
}

namespace {

bool IsCuda(const ProviderChoice& choice) {
  return choice.name == "cuda" || choice.name == kCudaProviderName;
}

Result<ProviderOptions> ReadOptions(const ProviderChoice& choice) {
  ProviderOptions options;
  for (const std::string& option : choice.options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--provider-option: expected KEY=VALUE, got '" + option + "'");
    options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  return options;
}

}  // namespace

Result<ProviderList> MakeProviders(const ProviderChoice& choice) {
  ProviderList out;
  ASSIGN_OR_RETURN(const ProviderOptions options, ReadOptions(choice));
  if (!choice.name.empty()) {
    const std::string name = IsCuda(choice) ? kCudaProviderName : choice.name;
    ASSIGN_OR_RETURN(auto provider, ProviderByName(name, options));
    out.push_back(std::move(provider));
  } else if (!options.empty()) {
    return InvalidArgument("--provider-option needs --provider");
  }
  out.push_back(MakeCpuProvider());
  return out;
}

Result<std::unique_ptr<Communicator>> JoinGpus(std::unique_ptr<Communicator> ranks,
                                               ProviderChoice* choice) {
  if (!IsCuda(*choice)) return ranks;
  ASSIGN_OR_RETURN(const ProviderOptions given, ReadOptions(*choice));
  ASSIGN_OR_RETURN(CudaOptions options, ParseCudaOptions(given));
  ASSIGN_OR_RETURN(const int number, RankOnMachine(*ranks));
  if (!given.contains("device_id")) {
    // A rank without a device learns so where all ranks do.
    const Result<int> count = CudaDeviceCount(options.libraries);
    options.device_id = count.ok() ? number % *count : 0;
    choice->options.push_back("device_id=" + std::to_string(options.device_id));
  }
  return NcclCommunicator(std::move(ranks), options);
}

}  // namespace caesura::command
