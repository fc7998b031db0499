// SPDX-License-Identifier: Apache-2.0
// The provider that the user wants asked first.
#ifndef CAESURA_TRAINING_COMMAND_PROVIDER_CHOICE_H_
#define CAESURA_TRAINING_COMMAND_PROVIDER_CHOICE_H_

#include <string>
#include <vector>

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

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_PROVIDER_CHOICE_H_
