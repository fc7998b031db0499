// SPDX-License-Identifier: Apache-2.0
// `caesura env`: what a report of a fault needs to say about the machine and the installation.
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

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

// The versions of the Python packages that caesura works with, "torch 2.13.0" and the like, as far
// as they are installed.
std::string PythonPackages() {
  constexpr char kScript[] =
      "import importlib.metadata as m, sys\n"
      "print('Python', sys.version.split()[0])\n"
      "for name in 'caesura-train caesura torch numpy onnx onnxruntime safetensors transformers "
      "lightning accelerate'.split():\n"
      "    try: print(name, m.version(name))\n"
      "    except m.PackageNotFoundError: pass\n";
  const std::string command = "'" + env::Python() + "' -c \"" + kScript + "\" 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string out;
  for (char text[256]; std::fgets(text, sizeof(text), pipe) != nullptr;) {
    std::string line = text;
    while (line.ends_with('\n')) line.pop_back();
    out += (out.empty() ? "" : ", ") + line;
  }
  pclose(pipe);
  return out;
}

int RunEnv(const std::string& json) {
  std::vector<std::pair<std::string, std::string>> rows = BuildFacts();
  rows.emplace_back("processor", Processor());
  rows.emplace_back("cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
  rows.emplace_back("memory", std::to_string(env::MemoryBytes() >> 20) + " MiB, swap included");
  rows.emplace_back("system", SystemName());
  rows.emplace_back("program cache", env::ProgramCache().empty() ? "off" : env::ProgramCache());
  rows.emplace_back("Python packages", PythonPackages());
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
