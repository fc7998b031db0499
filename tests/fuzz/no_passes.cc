// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/bounded_run.h"

namespace caesura::fuzz {

PassMaker SessionPasses() { return nullptr; }

}  // namespace caesura::fuzz
