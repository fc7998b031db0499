// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/pipeline.h"
#include "tests/fuzz/bounded_run.h"

namespace caesura::fuzz {

PassMaker SessionPasses() {
  return [](const ProviderList& providers) { return InferencePasses(providers); };
}

}  // namespace caesura::fuzz
