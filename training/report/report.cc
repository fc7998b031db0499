// SPDX-License-Identifier: Apache-2.0
#include "training/report/report.h"

#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/build_facts.h"
#include "core/base/env.h"
#include "core/base/status_macros.h"
#include "core/files/file_system.h"
#include "training/report/report_page.h"

namespace caesura {
namespace {

using nlohmann::json;

double Microseconds(int64_t ns) { return std::round(static_cast<double>(ns) * 1e-2) / 10; }

json Facts() {
  json out = json::array();
  for (const auto& [name, value] : BuildFacts()) out.push_back({name, value});
  for (const std::string& variable : env::SetVariables()) {
    const size_t equals = variable.find('=');
    out.push_back({variable.substr(0, equals), variable.substr(equals + 1)});
  }
  return out;
}

json CurvesJson(const TrainingCurves& curves) {
  json points = json::array(), validations = json::array();
  for (const auto& point : curves.points())
    points.push_back({point.update, point.loss, point.learning_rate});
  for (const auto& validation : curves.validations()) {
    const json metric = validation.metric ? json(*validation.metric) : json(nullptr);
    validations.push_back({validation.update, validation.loss, metric});
  }
  return {{"points", std::move(points)},
          {"validations", std::move(validations)},
          {"metric", curves.metric_name()}};
}

// Leaves empty fields out; the page reads a missing field as an empty one.
json StepJson(const RecordedStep& step) {
  json out = {{"op", step.op_type},
              {"node", step.node},
              {"phase", PhaseName(step.phase)},
              {"provider", step.provider}};
  if (step.kind != PlanStep::Kind::kCompute) out["kind"] = StepKindName(step.kind);
  if (!step.source.empty()) out["source"] = step.source;
  if (!step.inputs.empty()) out["inputs"] = step.inputs;
  if (!step.outputs.empty()) out["outputs"] = step.outputs;
  if (step.makes_shapes) out["shape"] = true;
  for (const FusedPart& part : step.parts) {
    out["parts"].push_back({{"op", part.op_type}, {"node", part.node}, {"source", part.source}});
  }
  if (step.begin_ns < 0) return out;
  out["begin"] = Microseconds(step.begin_ns);
  out["us"] = Microseconds(step.duration_ns);
  out["cpu_us"] = Microseconds(step.statistics.process_cpu_ns);
  out["bytes"] = {step.sizes.activation_bytes, step.sizes.parameter_bytes, step.sizes.output_bytes};
  return out;
}

json MemoryJson(const MemoryRecord& record) {
  json samples = json::array(), largest = json::array();
  for (const MemorySample& s : record.samples) {
    samples.push_back({s.step, s.arena_bytes, s.fetch_bytes, s.dynamic_bytes, s.cached_bytes});
  }
  for (const LiveValue& v : record.largest) {
    largest.push_back({{"name", v.name},
                       {"type", v.type},
                       {"kind", v.kind},
                       {"bytes", v.bytes},
                       {"first", v.first_step},
                       {"last", v.last_step}});
  }
  return {{"arena", record.arena_bytes},
          {"feeds", record.feed_bytes},
          {"parameters", record.parameter_bytes},
          {"constants", record.constant_bytes},
          {"peak", record.Peak()},
          {"samples", std::move(samples)},
          {"largest", std::move(largest)}};
}

json RunJson(const RecordedRun& run) {
  json steps = json::array();
  for (const RecordedStep& step : run.steps) steps.push_back(StepJson(step));
  json out = {{"tag", run.tag},
              {"begin", Microseconds(run.begin_ns)},
              {"us", Microseconds(run.duration_ns)},
              {"threads", run.threads},
              {"steps", std::move(steps)},
              {"memory", MemoryJson(run.memory)}};
  if (run.failed) out["error"] = run.error;
  return out;
}

json ShapesJson(const CpuFallbackReport& report) {
  const auto lines = [](const std::vector<CpuFallbackReport::Line>& from) {
    json out = json::array();
    for (const auto& line : from) out.push_back({line.value, line.what});
    return out;
  };
  return {{"active", report.mode != CpuFallbackMode::kOff},
          {"moved", lines(report.moved)},
          {"stopped", lines(report.stopped)},
          {"to_host", {report.to_host_before, report.to_host_after}},
          {"to_device", {report.to_device_before, report.to_device_after}}};
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts);
  return text;
}

// Text in HTML: as it is read, whatever is in it.
std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '&') out += "&amp;";
    else out += c;
  }
  return out;
}

void Replace(std::string* text, const std::string& mark, const std::string& by) {
  text->replace(text->find(mark), mark.size(), by);
}

}  // namespace

std::string ReportJson(const Report& report) {
  json out = {{"title", report.title}, {"made", Now()}, {"facts", Facts()}};
  json& options = out["options"] = json::array();
  for (const auto& [name, value] : report.options) options.push_back({name, value});
  out["curves"] = CurvesJson(report.curves);
  json& runs = out["runs"] = json::array();
  for (const RecordedRun& run : report.runs) runs.push_back(RunJson(run));
  json& fallbacks = out["fallbacks"] = json::array();
  for (const Fallback& f : report.fallbacks) {
    fallbacks.push_back({{"op", f.op}, {"reason", f.reason}, {"places", f.places}});
  }
  if (report.own_and_pytorch_seconds) {
    out["seconds"] = {report.own_and_pytorch_seconds->first,
                      report.own_and_pytorch_seconds->second};
  }
  out["shapes"] = ShapesJson(report.cpu_fallback);
  json& advice = out["advice"] = json::array();
  for (const Advice& a : FirstThingsToTry(report))
    advice.push_back({{"what", a.what}, {"why", a.why}});
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string ReportPage(const Report& report) {
  std::string data;
  for (const char c : ReportJson(
           report)) {  // no "</script>" or "<!--" in it: a model may name its nodes as it likes
    if (c == '<') data += "\\u003c";
    else data += c;
  }
  std::string page = report_page::kHtml;
  Replace(&page, "{{style}}", report_page::kStyle);
  Replace(&page, "{{script}}", report_page::kScript);
  Replace(&page, "{{data}}", data);
  Replace(&page, "{{title}}", Escaped(report.title));  // last: it may hold any text
  return page;
}

Status WriteReport(const Report& report, const std::string& path) {
  return WriteFileAtomically(PosixFileSystem(), path,
                             [&](WritableFile& file) { return file.Write(ReportPage(report)); });
}

Result<double> WriteStepReport(TrainingSession& session, const NamedValues& feeds,
                               const std::string& path, const std::string& title) {
  RunRecorder recorder;
  ASSIGN_OR_RETURN(const double loss, session.Step(feeds, {&recorder}));
  RETURN_IF_ERROR(WriteReport({.title = title,
                               .curves = session.runs().curves(),
                               .runs = recorder.Runs(),
                               .cpu_fallback = session.runs().cpu_fallback()},
                              path));
  return loss;
}

}  // namespace caesura
