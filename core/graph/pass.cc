// SPDX-License-Identifier: Apache-2.0
#include "core/graph/pass.h"

#include <algorithm>
#include <chrono>

#include "core/base/env.h"
#include "core/base/log.h"
#include "core/base/names.h"
#include "core/base/status_macros.h"
#include "core/graph/graph_check.h"

namespace caesura {

Result<std::vector<PassRecord>> RunPasses(const PassList& passes, Model& model,
                                          const std::vector<std::string>& disabled) {
  std::vector<std::string> off = env::DisabledPasses(), known = PassNames();
  for (const auto& pass : passes) {
    if (std::find(known.begin(), known.end(), pass->name()) == known.end())
      known.emplace_back(pass->name());
  }
  RETURN_IF_ERROR(CheckNames("CAESURA_DISABLE_PASSES: there is no pass", off, known));
  RETURN_IF_ERROR(CheckNames("disabled_passes: there is no pass", disabled, known));
  off.insert(off.end(), disabled.begin(), disabled.end());
  std::vector<PassRecord> records;
  for (const auto& pass : passes) {
    PassRecord record;
    record.name = pass->name();
    record.nodes_before = record.nodes_after = model.graph->nodes().size();
    record.skipped = std::find(off.begin(), off.end(), record.name) != off.end();
    if (!record.skipped) {
      const std::string culprit = "pass '" + record.name + "': ";
      const auto begin = std::chrono::steady_clock::now();
      auto changed = pass->Run(model);
      record.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (!changed.ok()) return changed.status().WithPrefix(culprit);
      record.changed = *changed;
      record.nodes_after = model.graph->nodes().size();
      if (!record.changed && record.nodes_after != record.nodes_before) {
        return Internal(culprit + "changed the graph and said that it did not");
      }
      if (record.changed) RETURN_IF_ERROR(CheckGraph(*model.graph).WithPrefix(culprit));
    }
    LogVerbose(1, "pass " + record.name +
                      (record.skipped   ? " skipped"
                       : record.changed ? " changed"
                                        : " unchanged") +
                      ", " + std::to_string(record.nodes_before) + " -> " +
                      std::to_string(record.nodes_after) + " nodes, " +
                      std::to_string(record.seconds) + " s");
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace caesura
