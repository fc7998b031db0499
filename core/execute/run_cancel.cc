// SPDX-License-Identifier: Apache-2.0
#include "core/execute/run_cancel.h"

namespace caesura {

thread_local RunCancel::Flag RunCancel::current_;

}  // namespace caesura
