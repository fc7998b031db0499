// SPDX-License-Identifier: Apache-2.0
// `caesura conformance`: the ONNX node tests, as folders NAME/model.onnx,
// NAME/test_data_set_0/input_0.pb, ...
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/graph/op_schema.h"
#include "core/files/file_system.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/value_reader.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "training/command/command.h"
#include "training/command/isolated.h"
#include "training/command/provider_choice.h"
#include "training/command/value_compare.h"
#include "training/files/progress_bar.h"

namespace caesura::command {

// ONNX's node tests, written out; CMakeLists.txt makes the source.
extern const char* const kNodeTestsFolder;

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 31;
constexpr int kSecondsPerCase = 60;
constexpr size_t kMaxReasonLength = 300;

struct ConformanceOptions {
  std::string folder = kNodeTestsFolder;
  std::string filter;
  std::string json;
  ProviderChoice provider;
  bool fallback = true;
  bool quiet = false;
};

// Case name to what is wrong; empty: it passed.
using Results = std::map<std::string, std::string>;

Tolerance ReadTolerance(const std::string& path) {
  Tolerance out;
  const Result<std::string> text = ReadWholeFile(PosixFileSystem(), path, kMaxFileBytes);
  if (!text.ok()) return out;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return out;
  if (const auto it = json.find("rtol"); it != json.end() && it->is_number())
    out.relative = it->get<double>();
  if (const auto it = json.find("atol"); it != json.end() && it->is_number())
    out.absolute = it->get<double>();
  return out;
}

// The values in `folder`/ROLE_0.pb and so on, one for each of `values`, as far as there are files.
Result<std::vector<RuntimeValue>> ReadValues(const std::string& folder, const char* role,
                                             const std::vector<Value*>& values) {
  std::vector<RuntimeValue> out;
  for (const Value* value : values) {
    const std::string path = folder + "/" + role + "_" + std::to_string(out.size()) + ".pb";
    ASSIGN_OR_RETURN(const bool exists, PosixFileSystem().Exists(path));
    if (!exists) break;
    ASSIGN_OR_RETURN(const std::string bytes,
                     ReadWholeFile(PosixFileSystem(), path, kMaxFileBytes));
    Result<RuntimeValue> read = ReadValueBytes(bytes, value->type());
    if (!read.ok()) return read.status().WithPrefix("'" + path + "': ");
    out.push_back(*std::move(read));
  }
  return out;
}

// Runs the session on one data set; what differs, or empty.
Result<std::string> RunDataSet(Session& session, const std::string& folder,
                               const Tolerance& tolerance) {
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> inputs,
                   ReadValues(folder, "input", session.inputs()));
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> wanted,
                   ReadValues(folder, "output", session.outputs()));
  NamedValues feeds;
  for (size_t i = 0; i < inputs.size(); ++i) feeds[session.inputs()[i]->name()] = inputs[i];
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> got, session.Run(feeds));
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string difference =
        Difference(got[i], wanted[i], tolerance, "output " + std::to_string(i));
    if (!difference.empty()) return difference;
  }
  return std::string();
}

Result<std::string> RunCase(const std::string& folder, const ConformanceOptions& choice) {
  SessionOptions options;
  // In the process that uses them: those from outside may start threads.
  ASSIGN_OR_RETURN(options.providers, MakeProviders(choice.provider));
  options.fallback = choice.fallback;
  options.passes = InferencePasses;
  ASSIGN_OR_RETURN(Model model, ReadModel(folder + "/model.onnx"));
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   Session::Create(std::move(model), std::move(options)));
  const Tolerance tolerance = ReadTolerance(folder + "/tolerance.json");
  for (int n = 0;; ++n) {
    const std::string data_set = folder + "/test_data_set_" + std::to_string(n);
    ASSIGN_OR_RETURN(const bool exists, PosixFileSystem().Exists(data_set));
    if (!exists) return n > 0 ? std::string() : "there is no data set";
    ASSIGN_OR_RETURN(std::string difference, RunDataSet(*session, data_set, tolerance));
    if (!difference.empty()) return difference;
  }
}

Result<Results> RunAll(const ConformanceOptions& options) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, PosixFileSystem().List(options.folder));
  std::erase_if(names, [&](const std::string& name) {
    return name.find(options.filter) == std::string::npos;
  });
  // Made once, before the processes that use it.
  static_cast<void>(FindOpSchema("Add", ""));
  std::optional<ProgressBar> bar;
  if (!options.quiet) {
    bar.emplace(
        ProgressBarOptions{.label = "conformance", .total = static_cast<int64_t>(names.size())});
  }
  Results results;
  for (const std::string& name : names) {
    results[name] = RunIsolated(
        [&] {
          Result<std::string> reason = RunCase(options.folder + "/" + name, options);
          return reason.ok() ? *reason : reason.status().ToString();
        },
        kSecondsPerCase);
    if (bar) bar->Update(static_cast<int64_t>(results.size()), name);
  }
  if (bar) bar->Finish();
  return results;
}

// The last line, as `python -m caesura.conformance` prints it; returns the number of crashes.
int PrintSummary(const Results& results, std::FILE* out) {
  int passed[2] = {0, 0}, all[2] = {0, 0}, crashed = 0;
  for (const auto& [name, reason] : results) {
    const int expanded = name.find("_expanded") != std::string::npos;
    ++all[expanded];
    passed[expanded] += reason.empty();
    crashed += reason == kCrashed;
  }
  std::fprintf(out, "plain: %d of %d pass; expanded: %d of %d pass; %d crashed; total %d of %d\n",
               passed[0], all[0], passed[1], all[1], crashed, passed[0] + passed[1],
               all[0] + all[1]);
  return crashed;
}

int RunConformance(const ConformanceOptions& options) {
  if (const Result<bool> there = PosixFileSystem().Exists(options.folder); !there.ok() || !*there) {
    return Report(NotFound("there is no folder '" + options.folder +
                           "'; the tests are written by\n  python -m "
                           "caesura.conformance --write " +
                           options.folder));
  }
  const Result<Results> results = RunAll(options);
  if (!results.ok()) return Report(results.status());
  for (const auto& [name, reason] : *results) {
    if (reason.empty() || options.quiet || OnlyJson(options.json)) continue;
    std::printf("%s: %s\n", name.c_str(),
                reason.substr(0, std::min(reason.find('\n'), kMaxReasonLength)).c_str());
  }
  const int crashed = PrintSummary(*results, OnlyJson(options.json) ? stderr : stdout);
  const Status written = WriteJson(*results, options.json);
  if (!written.ok()) return Report(written);
  return crashed > 0 ? kFailed : kDone;
}

}  // namespace

void AddConformance(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<ConformanceOptions>();
  CLI::App* sub = app.add_subcommand("conformance", "Run the ONNX node tests on caesura's kernels");
  sub->add_option("folder", options->folder,
                  "Test folders, as 'python -m caesura.conformance --write FOLDER' makes them")
      ->capture_default_str();
  sub->add_option("--filter", options->filter, "Only tests whose name contains this");
  AddProviderOptions(*sub, &options->provider);
  sub->add_flag("!--no-fallback", options->fallback,
                "A provider that fails is not replaced by the CPU's");
  AddJsonOption(*sub, &options->json);
  sub->add_flag("--quiet", options->quiet, "Only the summary");
  sub->footer(
      "A line for each test that does not pass, then the summary; as JSON, test -> reason (empty: "
      "passed).\n"
      "Each test runs in a process of its own. Exit code 1 when one crashed; tests that are "
      "refused or differ are listed, not failures.");
  sub->callback([=] { *run = [=] { return RunConformance(*options); }; });
}

}  // namespace caesura::command
