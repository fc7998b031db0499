// SPDX-License-Identifier: Apache-2.0
// A plug-in's ops and providers, as its library has described them (caesura_plugin.h). Plain
// descriptions: plugin_op.h, model_op.h and plugin_provider.h make of them what sessions use.
#ifndef CAESURA_CORE_PLUGIN_PLUGIN_LIBRARY_H_
#define CAESURA_CORE_PLUGIN_PLUGIN_LIBRARY_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/plugin/caesura_op.h"
#include "core/plugin/caesura_provider.h"

namespace caesura {

// Immutable once loaded; what the descriptions point at lives as long as the process.
struct PluginLibrary {
  std::string path;
  std::vector<CaesuraOp> ops;
  std::vector<CaesuraModelRuntime> model_runtimes;
  std::vector<CaesuraProvider> providers;
};

// Opens the library and asks what it offers. kNotFound, kUnsupported (no plug-in, or one of a later
// version of which more than this process knows is needed), or what the plug-in itself reports,
// with the path in front.
Result<PluginLibrary> LoadPluginLibrary(const std::string& path);

// The path of the plug-in lib<stem>.so: in a folder of CAESURA_PLUGIN_PATH, beside this library, or
// in a folder that was added; else the file's name alone, for the system to look for.
std::string FindPluginLibrary(const std::string& stem);
// Thread-safe.
void AddPluginFolder(const std::string& folder);

// Asks a plug-in's function that is in the program already, as LoadPluginLibrary does one that it
// opens.
Result<PluginLibrary> CallPluginMain(CaesuraPluginMainFunction* main, const std::string& name);

// The table that plug-ins are handed. Lives as long as the process.
const CaesuraApi& PluginApi();

// The deleter of a plug-in's object whose description names none.
inline void KeepNothing(void*) {}

// Statuses across the border. TakeStatus releases its argument; NULL is ok.
CaesuraStatus* GiveStatus(Status status);
Status TakeStatus(CaesuraStatus* status);

}  // namespace caesura

#endif  // CAESURA_CORE_PLUGIN_PLUGIN_LIBRARY_H_
