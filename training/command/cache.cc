// SPDX-License-Identifier: Apache-2.0
// `caesura cache`: captured programs and compiled kernels on disk (docs/guides/caching.md).
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/disk_cache.h"
#include "core/base/env.h"
#include "training/command/command.h"

namespace caesura::command {
namespace {

struct Counts {
  size_t programs = 0, kernels = 0;
  uint64_t bytes = 0;

  void Add(const CacheFile& file, bool is_kernel) {
    ++(is_kernel ? kernels : programs);
    bytes += file.bytes;
  }
  std::string ToString() const {
    return std::to_string(programs) + " programs and " + std::to_string(kernels) + " kernels";
  }
  double megabytes() const { return static_cast<double>(bytes) / (1 << 20); }
};

std::string TimeText(int64_t seconds) {
  const std::time_t time = seconds;
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", std::localtime(&time));
  return text;
}

int List(const std::string& json) {
  Counts counts;
  nlohmann::json list = nlohmann::json::array();
  for (const CacheFile& file : CacheFiles()) {
    const bool is_kernel = IsKernelFile(file);
    counts.Add(file, is_kernel);
    const char* kind = is_kernel ? "kernel" : "program";
    list.push_back(
        {{"name", file.name}, {"kind", kind}, {"bytes", file.bytes}, {"used", file.used}});
    if (OnlyJson(json)) continue;
    std::printf("%s  %-7s  %8.1f KiB  last used %s\n", file.name.substr(0, 16).c_str(), kind,
                static_cast<double>(file.bytes) / 1024, TimeText(file.used).c_str());
  }
  if (!OnlyJson(json)) {
    std::printf("%s, %.1f of %d MiB in '%s'\n", counts.ToString().c_str(), counts.megabytes(),
                env::ProgramCacheMegabytes(), env::ProgramCache().c_str());
  }
  const Status written = WriteJson({{"folder", env::ProgramCache()}, {"programs", list}}, json);
  return written.ok() ? kDone : Report(written);
}

int Clear(double days) {
  const int64_t before = std::time(nullptr) - static_cast<int64_t>(days * 24 * 60 * 60);
  Counts removed;
  for (const CacheFile& file : CacheFiles()) {
    if (file.used > before) continue;
    const bool is_kernel = IsKernelFile(file);
    if (std::remove(file.path.c_str()) == 0) removed.Add(file, is_kernel);
  }
  std::printf("%s removed, %.1f MiB\n", removed.ToString().c_str(), removed.megabytes());
  return kDone;
}

}  // namespace

void AddCache(CLI::App& app, RunFunction* run) {
  CLI::App* sub =
      app.add_subcommand("cache", "List or remove captured programs and compiled kernels on disk");
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
