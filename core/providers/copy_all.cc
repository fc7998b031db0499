// SPDX-License-Identifier: Apache-2.0
#include "core/providers/copy_all.h"

#include "core/base/status_macros.h"

namespace caesura {

Status CopyAll(const ExecutionProvider& provider, const std::vector<DeviceCopy>& copies) {
  if (const auto* together = dynamic_cast<const CopiesTogether*>(&provider))
    return together->CopyAll(copies);
  for (const DeviceCopy& copy : copies)
    RETURN_IF_ERROR(provider.Copy(CopyKind::kWithin, copy.to, copy.from, copy.bytes));
  return {};
}

}  // namespace caesura
