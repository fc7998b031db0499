// SPDX-License-Identifier: Apache-2.0
// `caesura cache`: the captured programs that Python keeps on disk (docs/guides/caching.md).
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/env.h"
#include "training/command/command.h"
#include "training/command/json_output.h"

namespace caesura::command {
namespace {

struct Entry {
  std::string path, name;
  uint64_t bytes = 0;
  int64_t used = 0;  // seconds since 1970
};

// Files that the cache writes: programs, whose names are 64 hexadecimal digits, and what a crash
// left half written.
bool IsOurs(const std::string& name) {
  return name.starts_with(".part-") ||
         (name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos);
}

// Used last first; nothing where there is no cache. Links are not followed.
std::vector<Entry> Entries() {
  std::vector<Entry> out;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(env::ProgramCache(), error)) {
    struct stat status = {};
    const std::string name = file.path().filename();
    if (!IsOurs(name) || lstat(file.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode))
      continue;
    out.push_back({file.path(), name, static_cast<uint64_t>(status.st_size), status.st_mtime});
  }
  std::sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.used > b.used; });
  return out;
}

std::string TimeText(int64_t seconds) {
  const std::time_t time = seconds;
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", std::localtime(&time));
  return text;
}

int List(const std::string& json) {
  const std::vector<Entry> entries = Entries();
  uint64_t total = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const Entry& entry : entries) {
    total += entry.bytes;
    list.push_back({{"name", entry.name}, {"bytes", entry.bytes}, {"used", entry.used}});
    if (OnlyJson(json)) continue;
    std::printf("%s  %8.1f KiB  last used %s\n", entry.name.substr(0, 16).c_str(),
                static_cast<double>(entry.bytes) / 1024, TimeText(entry.used).c_str());
  }
  if (!OnlyJson(json)) {
    std::printf("%zu programs, %.1f of %d MiB in '%s'\n", entries.size(),
                static_cast<double>(total) / (1 << 20), env::ProgramCacheMegabytes(),
                env::ProgramCache().c_str());
  }
  const Status written = WriteJson({{"folder", env::ProgramCache()}, {"programs", list}}, json);
  return written.ok() ? kDone : Report(written);
}

int Clear(double days) {
  const int64_t before = std::time(nullptr) - static_cast<int64_t>(days * 24 * 60 * 60);
  size_t removed = 0;
  uint64_t bytes = 0;
  for (const Entry& entry : Entries()) {
    if (entry.used > before || std::remove(entry.path.c_str()) != 0) continue;
    ++removed;
    bytes += entry.bytes;
  }
  std::printf("%zu programs removed, %.1f MiB\n", removed, static_cast<double>(bytes) / (1 << 20));
  return kDone;
}

}  // namespace

void AddCache(CLI::App& app, RunFunction* run) {
  CLI::App* sub =
      app.add_subcommand("cache", "List or remove the captured programs that Python keeps on disk");
  sub->require_subcommand(1);
  sub->footer(
      "CAESURA_PROGRAM_CACHE says where they are kept ('off': nowhere); removing them at any time "
      "is safe.");
  auto json = std::make_shared<std::string>();
  CLI::App* list = sub->add_subcommand("ls", "List them, used last first");
  AddJsonOption(*list, json.get());
  list->callback([=] { *run = [=] { return List(*json); }; });
  auto days = std::make_shared<double>(0);
  CLI::App* clear = sub->add_subcommand("clear", "Remove them");
  clear->add_option("--unused-days", *days, "Only those not used for so many days")
      ->check(CLI::NonNegativeNumber);
  clear->callback([=] { *run = [=] { return Clear(*days); }; });
}

}  // namespace caesura::command
