// SPDX-License-Identifier: Apache-2.0
#include "core/execute/run_cancel.h"

#include "core/execute/parameter_writes.h"

namespace caesura {

thread_local RunCancel::Flag RunCancel::current_;

bool HasWritten(const ExecutionState& state) {
  bool written = false;
  for (int s = 0; s < state.program_counter() && !written; ++s)
    ForEachWrittenParameter(state.plan(), s, [&](int) { written = true; });
  return written;
}

}  // namespace caesura
