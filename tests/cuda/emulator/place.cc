// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <string>
#include "emulator/grid.h"

namespace caesura_emulator {

std::string PlaceName(const void* place) {
  Dl_info info{};
  link_map* map = nullptr;
  if (place == nullptr ||
      dladdr1(place, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) {
    return "an unknown place";
  }
  std::string file = info.dli_fname;
  const std::string own = "/proc/self/";
  if (file.starts_with(own))
    file = "/proc/" + std::to_string(getpid()) + "/" + file.substr(own.size());
  char command[1024];
  // The address after a call may be of the next line.
  std::snprintf(
      command, sizeof command, "addr2line -s -e '%s' 0x%llx 2>/dev/null", file.c_str(),
      static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(place) - map->l_addr - 1));
  std::string line;
  if (FILE* pipe = popen(command, "r"); pipe != nullptr) {
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) line += buffer;
    pclose(pipe);
  }
  if (const std::size_t end = line.find_first_of(" \n"); end != std::string::npos) line.resize(end);
  if (!line.empty() && line[0] != '?') return line;
  return info.dli_sname != nullptr ? info.dli_sname : "an unknown place";
}

}  // namespace caesura_emulator
