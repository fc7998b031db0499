// SPDX-License-Identifier: Apache-2.0
// From a model's bytes to one run, with bounds on what the run takes.
#ifndef CAESURA_TESTS_FUZZ_BOUNDED_RUN_H_
#define CAESURA_TESTS_FUZZ_BOUNDED_RUN_H_

#include <string_view>

#include "core/session/session.h"

namespace caesura::fuzz {

// Reads the model, makes a session, runs it once on small feeds made for its inputs. Errors are
// fine.
void ReadAndRun(std::string_view bytes);

// The passes of sessions here: all (all_passes.cc), or none where the passes are not built
// (no_passes.cc).
PassMaker SessionPasses();

}  // namespace caesura::fuzz

#endif  // CAESURA_TESTS_FUZZ_BOUNDED_RUN_H_
