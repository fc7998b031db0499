// SPDX-License-Identifier: Apache-2.0
// Profiles as Chrome-trace JSON, which ui.perfetto.dev and chrome://tracing open.
#ifndef CAESURA_CORE_PROFILE_CHROME_TRACE_H_
#define CAESURA_CORE_PROFILE_CHROME_TRACE_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/profile/memory_profile.h"
#include "core/profile/profiler.h"

namespace caesura {

// One complete event ("X") an event: a run, a step ("op node", args op_name, provider, graph_index,
// plan_index, activation_size, parameter_size, output_size, thread_statistics, batch_tag) and its
// fences; a counter ("C") a sample of `memory`, at the time of the sample.
std::string ChromeTrace(const std::vector<ProfileEvent>& events,
                        const std::vector<MemoryRecord>& memory = {});

// Fails with kIoError.
Status WriteChromeTrace(const std::string& path, const std::vector<ProfileEvent>& events,
                        const std::vector<MemoryRecord>& memory = {});

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_CHROME_TRACE_H_
