// SPDX-License-Identifier: Apache-2.0
// A pass rewrites a model; the runner runs a list of them, each timed, verified and named when it
// breaks something.
#ifndef CAESURA_CORE_GRAPH_PASS_H_
#define CAESURA_CORE_GRAPH_PASS_H_

#include <memory>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// One rewrite of a model.
class Pass {
 public:
  virtual ~Pass() = default;
  // snake_case, the stem of its file; what CAESURA_DISABLE_PASSES and logs call it.
  virtual const char* name() const = 0;
  // Returns whether it changed anything.
  virtual Result<bool> Run(Model& model) = 0;
};

// A record of one pass by the runner.
struct PassRecord {
  std::string name;
  bool skipped = false;  // switched off by name
  bool changed = false;
  double seconds = 0;
  size_t nodes_before = 0, nodes_after = 0;
};

// The names of caesura's passes: those that options may switch off in any session, whatever its own
// list is.
const std::vector<std::string>& PassNames();  // graph_transforms/pipeline.cc

// Runs the passes in order, skipping those in `disabled` and in CAESURA_DISABLE_PASSES. Fails with
// kInvalidArgument on names there that no pass has, in the list or in PassNames(). After each pass
// that changed something the graph is checked (core/graph/graph_check.h); a failure names the pass.
// A pass that claims to have changed nothing but changed the number of nodes is an error too.
Result<std::vector<PassRecord>> RunPasses(const PassList& passes, Model& model,
                                          const std::vector<std::string>& disabled = {});

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_PASS_H_
