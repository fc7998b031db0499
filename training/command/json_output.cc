// SPDX-License-Identifier: Apache-2.0
#include "training/command/json_output.h"

#include <cstdio>

#include <CLI/CLI.hpp>

#include "core/load/file_system.h"

namespace caesura::command {

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
