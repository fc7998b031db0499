// SPDX-License-Identifier: Apache-2.0
#include "core/profile/chrome_trace.h"

#include <map>
#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/files/file_system.h"

namespace caesura {
namespace {

using nlohmann::json;

json NodeEvent(const ProfileEvent& event) {
  const std::string name = event.op_type + " " + event.node;
  if (event.kind != ProfileEvent::Kind::kStep) {
    const bool before = event.kind == ProfileEvent::Kind::kFenceBefore;
    return {
        {"name", name + (before ? " fence_before" : " fence_after")},
        {"cat", "fence"},
        {"args",
         {{"op_name", event.op_type}, {"plan_index", event.plan_index}, {"batch_tag", event.tag}}}};
  }
  const ThreadStatistics& s = event.statistics;
  json statistics = {{"threads", s.threads},
                     {"thread_cpu_us", s.thread_cpu_ns * 1e-3},
                     {"process_cpu_us", s.process_cpu_ns * 1e-3},
                     {"context_switches", s.context_switches}};
  json args = {{"op_name", event.op_type},
               {"provider", event.provider},
               {"phase", PhaseName(event.phase)},
               {"graph_index", event.graph_index},
               {"plan_index", event.plan_index},
               {"activation_size", event.sizes.activation_bytes},
               {"parameter_size", event.sizes.parameter_bytes},
               {"output_size", event.sizes.output_bytes},
               {"thread_statistics", std::move(statistics)},
               {"batch_tag", event.tag}};
  if (event.failed) args["failed"] = true;
  return {{"name", name}, {"cat", PhaseName(event.phase)}, {"args", std::move(args)}};
}

json TraceEvent(const ProfileEvent& event) {
  json out;
  if (event.kind == ProfileEvent::Kind::kRun) {
    out = {{"name", event.tag},
           {"cat", "run"},
           {"args", {{"first_step", event.plan_index}, {"failed", event.failed}}}};
  } else {
    out = NodeEvent(event);
  }
  out["ph"] = "X";
  out["ts"] = event.begin_ns * 1e-3;
  out["dur"] = event.duration_ns * 1e-3;
  out["pid"] = 1;
  out["tid"] = event.thread;
  return out;
}

}  // namespace

std::string ChromeTrace(const std::vector<ProfileEvent>& events,
                        const std::vector<MemoryRecord>& memory) {
  json trace = json::array();
  trace.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "caesura"}}}});
  // When the step of a run began: that is when its memory sample counts.
  std::map<std::pair<std::string, int>, int64_t> begins;
  for (const ProfileEvent& event : events) {
    trace.push_back(TraceEvent(event));
    if (event.kind == ProfileEvent::Kind::kStep)
      begins.try_emplace({event.tag, event.plan_index}, event.begin_ns);
  }
  for (const MemoryRecord& record : memory) {
    for (const MemorySample& sample : record.samples) {
      auto begin = begins.find({record.tag, sample.step});
      if (begin == begins.end()) continue;
      trace.push_back({{"name", "memory"},
                       {"ph", "C"},
                       {"ts", begin->second * 1e-3},
                       {"pid", 1},
                       {"args",
                        {{"arena", sample.arena_bytes},
                         {"fetches", sample.fetch_bytes},
                         {"dynamic", sample.dynamic_bytes},
                         {"cached", sample.cached_bytes}}}});
    }
  }
  const json document = {{"traceEvents", std::move(trace)}, {"displayTimeUnit", "ns"}};
  return document.dump(1, ' ', false, json::error_handler_t::replace);
}

Status WriteChromeTrace(const std::string& path, const std::vector<ProfileEvent>& events,
                        const std::vector<MemoryRecord>& memory) {
  return WriteFileAtomically(PosixFileSystem(), path, [&](WritableFile& file) {
    return file.Write(ChromeTrace(events, memory));
  });
}

}  // namespace caesura
