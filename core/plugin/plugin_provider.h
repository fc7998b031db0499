// SPDX-License-Identifier: Apache-2.0
// Providers from shared libraries (caesura_provider.h), as sessions use them.
#ifndef CAESURA_CORE_PLUGIN_PLUGIN_PROVIDER_H_
#define CAESURA_CORE_PLUGIN_PLUGIN_PROVIDER_H_

#include <map>
#include <memory>
#include <string>

#include "core/plugin/caesura_provider.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// A provider's options by name.
using ProviderOptions = std::map<std::string, std::string>;

// The provider of a description. Options go to the plug-in but for "min_nodes", the smallest
// part that it gets. kInvalidArgument for options that nobody knows, kUnsupported where the
// description lacks what is required. What the description points at lives as long as the process.
Result<std::shared_ptr<const ExecutionProvider>> MakePluginProvider(
    const CaesuraProvider& description, const ProviderOptions& options = {});

// By name: "CPUExecutionProvider", "CUDAExecutionProvider", or "<Name>ExecutionProvider" from the
// plug-in libcaesura_<name>.so, looked for in the folders of CAESURA_PLUGIN_PATH, beside this
// library, and where the system looks. Or the path of a plug-in (it holds a
// '/'): its first provider. kNotFound says where was looked.
Result<std::shared_ptr<const ExecutionProvider>> ProviderByName(
    const std::string& name, const ProviderOptions& options = {});

// The table's part for providers.
const CaesuraProviderApi& PluginProviderApi();

}  // namespace caesura

#endif  // CAESURA_CORE_PLUGIN_PLUGIN_PROVIDER_H_
