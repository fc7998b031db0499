// SPDX-License-Identifier: Apache-2.0
#include "training/command/command.h"

#include <cstdio>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/build_facts.h"
#include "core/files/file_system.h"

namespace caesura::command {

std::string VersionText() {
  std::string out;
  for (const auto& [name, value] : BuildFacts()) {
    out += (out.empty() ? "" : "\n") + name +
           std::string(name.size() < 17 ? 17 - name.size() : 1, ' ') + value;
  }
  return out;
}

int Report(const Status& status) {
  std::fprintf(stderr, "caesura: %s\n", status.message().c_str());
  return status.code() == StatusCode::kCancelled ? kStopped : kFailed;
}

void AddJsonOption(CLI::App& app, std::string* file) {
  app.add_option("--json", *file,
                 "Write the results to this file as JSON; '-' prints JSON in place of text");
}

Status WriteJson(const nlohmann::json& json, const std::string& file) {
  if (file.empty()) return {};
  const std::string text =
      json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (OnlyJson(file)) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  return WriteFileAtomically(PosixFileSystem(), file,
                             [&](WritableFile& out) { return out.Write(text); });
}

}  // namespace caesura::command
