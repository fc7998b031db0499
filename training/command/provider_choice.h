// SPDX-License-Identifier: Apache-2.0
// The provider that the user wants asked first.
#ifndef CAESURA_TRAINING_COMMAND_PROVIDER_CHOICE_H_
#define CAESURA_TRAINING_COMMAND_PROVIDER_CHOICE_H_

#include <string>
#include <vector>

#include "core/distributed/communicator.h"
#include "core/providers/execution_provider.h"

namespace CLI {
class App;
}

namespace caesura::command {

struct ProviderChoice {
  std::string name;                  // as ProviderByName takes it; empty: none
  std::vector<std::string> options;  // "KEY=VALUE"
};

// `group`: the heading in the help text.
void AddProviderOptions(CLI::App& app, ProviderChoice* choice,
                        const std::string& group = "Options");

// The chosen one, then the CPU's with training's kernels.
Result<ProviderList> MakeProviders(const ProviderChoice& choice);

// `ranks` themselves, unless the choice is CUDA's. Then ranks with a GPU each, which exchange its
// memory through NCCL. A choice without a device_id is given one: the first rank on a machine takes
// the first of its devices, and so on. All ranks call this together, and fail together.
Result<std::unique_ptr<Communicator>> JoinGpus(std::unique_ptr<Communicator> ranks,
                                               ProviderChoice* choice);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_PROVIDER_CHOICE_H_
