// SPDX-License-Identifier: Apache-2.0
// `caesura env`: what a report of a fault needs to say about the machine and the installation.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/build_facts.h"
#include "core/base/env.h"
#include "training/command/command.h"

namespace caesura::command {
namespace {

std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string SystemName() {
  utsname names = {};
  return uname(&names) == 0 ? std::string(names.sysname) + " " + names.release + " " + names.machine
                            : "unknown";
}

// The folder of captured programs and compiled kernels, and whether it can be written to; a folder
// that is not there yet is made in the nearest one that is.
std::string ProgramCache() {
  const std::string folder = env::ProgramCache();
  if (folder.empty()) {
    const std::vector<std::string> set = env::SetVariables();
    const bool by_user =
        std::find(set.begin(), set.end(), "CAESURA_PROGRAM_CACHE=off") != set.end();
    return by_user ? "off" : "off: neither HOME nor XDG_CACHE_HOME is set";
  }
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path())
    there = there.parent_path();
  if (!std::filesystem::is_directory(there, error)) errno = ENOTDIR;
  else if (access(there.c_str(), W_OK | X_OK) == 0) return folder + " (writable)";
  return folder + " (not writable: " + there.string() + ": " + std::strerror(errno) + ")";
}

// Rows of what Python says: the versions of the packages that caesura works with, "torch 2.13.0"
// and the like, as far as they are installed, and whether the library that calls PyTorch can be
// loaded.
std::vector<std::pair<std::string, std::string>> PythonRows() {
  constexpr char kScript[] =
      "import importlib.metadata as m, sys\n"
      "print('Python', sys.version.split()[0])\n"
      "for name in 'caesura-train caesura torch numpy onnx onnxruntime safetensors transformers "
      "lightning accelerate'.split():\n"
      "    try: print(name, m.version(name))\n"
      "    except m.PackageNotFoundError: pass\n"
      "try:\n"
      "    from caesura import torch_kernels\n"
      "    state = torch_kernels.state()\n"
      "except Exception as error: state = 'unknown: %s: %s' % (type(error).__name__, error)\n"
      "print('\\t', ' '.join(state.split()))\n";
  const std::string command = "'" + env::Python() + "' -c \"" + kScript + "\" 2>/dev/null";
  std::string packages, bridge = "unknown: '" + env::Python() + "' does not run";
  if (std::FILE* pipe = popen(command.c_str(), "r")) {
    std::string line;
    for (char text[256]; std::fgets(text, sizeof(text), pipe) != nullptr;) {
      line += text;
      if (!line.ends_with('\n')) continue;
      line.pop_back();
      if (line.starts_with("\t ")) bridge = line.substr(2);
      else packages += (packages.empty() ? "" : ", ") + line;
      line.clear();
    }
    pclose(pipe);
  }
  return {{"Python packages", packages}, {"PyTorch library", bridge}};
}

int RunEnv(const std::string& json) {
  std::vector<std::pair<std::string, std::string>> rows = BuildFacts();
  rows.emplace_back("processor", Processor());
  rows.emplace_back("cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
  rows.emplace_back("memory", std::to_string(env::MemoryBytes() >> 20) + " MiB, swap included");
  rows.emplace_back("system", SystemName());
  rows.emplace_back("program cache", ProgramCache());
  for (auto& row : PythonRows()) rows.push_back(std::move(row));
  for (const std::string& variable : env::SetVariables()) {
    const size_t equals = variable.find('=');
    rows.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
  }
  if (!OnlyJson(json)) {
    for (const auto& [name, value] : rows) std::printf("%-17s %s\n", name.c_str(), value.c_str());
  }
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : rows) object[name] = value;
  const Status written = WriteJson(object, json);
  return written.ok() ? kDone : Report(written);
}

}  // namespace

void AddEnv(CLI::App& app, RunFunction* run) {
  auto json = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand(
      "env", "Print what a bug report should say of this machine and installation");
  AddJsonOption(*sub, json.get());
  sub->callback([=] { *run = [=] { return RunEnv(*json); }; });
}

}  // namespace caesura::command
