// SPDX-License-Identifier: Apache-2.0
#include "core/base/env.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace caesura::env {
namespace {

std::string Read(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

int ReadInt(const char* name) {
  return static_cast<int>(std::strtol(Read(name).c_str(), nullptr, 10));
}

std::vector<std::string> ReadList(const char* name, char separator) {
  std::vector<std::string> items;
  std::string current;
  for (char c : Read(name) + separator) {
    if (c != separator) {
      current += c;
    } else if (!current.empty()) {
      items.push_back(std::move(current));
      current.clear();
    }
  }
  return items;
}

}  // namespace

std::vector<std::string> DisabledPasses() { return ReadList("CAESURA_DISABLE_PASSES", ','); }
std::vector<std::string> PluginPath() { return ReadList("CAESURA_PLUGIN_PATH", ':'); }
int Verbosity() { return ReadInt("CAESURA_VERBOSE"); }

int LaunchedRanks() {
  const int ranks = ReadInt("OMPI_COMM_WORLD_SIZE");
  return std::max(1, ranks > 0 ? ranks : ReadInt("SLURM_STEP_NUM_TASKS"));
}

int NumThreads() { return ReadInt("CAESURA_NUM_THREADS"); }
std::string AggressiveCpuFallback() { return Read("CAESURA_AGGRESSIVE_CPU_FALLBACK"); }
std::string MaxIsa() { return Read("CAESURA_MAX_ISA"); }

std::string ProgramCache() {
  if (std::string folder = Read("CAESURA_PROGRAM_CACHE"); !folder.empty())
    return folder == "off" ? std::string() : folder;
  if (const std::string caches = Read("XDG_CACHE_HOME"); !caches.empty())
    return caches + "/caesura/programs";
  const std::string home = Read("HOME");
  return home.empty() ? home : home + "/.cache/caesura/programs";
}

int ProgramCacheMegabytes() {
  const int megabytes = ReadInt("CAESURA_PROGRAM_CACHE_MEGABYTES");
  return megabytes > 0 ? megabytes : 256;
}

std::string Python() {
  const std::string named = Read("CAESURA_PYTHON");
  return named.empty() ? "python3" : named;
}

std::vector<std::string> SetVariables() {
  std::vector<std::string> out;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string text = *variable;
    for (const char* prefix : {"CAESURA_", "OMP_", "GOMP_", "ONEDNN_", "DNNL_"}) {
      if (text.starts_with(prefix)) out.push_back(text);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

size_t MemoryBytes() {
  static const size_t bytes = [] {
    struct sysinfo machine = {};
    struct rlimit limit = {};
    uint64_t out = std::numeric_limits<uint64_t>::max();
    if (::sysinfo(&machine) == 0)
      out = (uint64_t{machine.totalram} + machine.totalswap) * machine.mem_unit;
    if (::getrlimit(RLIMIT_AS, &limit) == 0) out = std::min<uint64_t>(out, limit.rlim_cur);
    return out;
  }();
  return bytes;
}

}  // namespace caesura::env
