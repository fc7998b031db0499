// SPDX-License-Identifier: Apache-2.0
#include "core/providers/copy_all.h"

#include <algorithm>
#include <cassert>
#include <functional>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

// True if no copy writes what another one reads or writes.
[[maybe_unused]] bool AreApart(const std::vector<DeviceCopy>& copies) {
  struct Bytes {
    const char *begin, *end;
    const DeviceCopy* copy;
  };
  const auto is_below = [](const Bytes& a, const Bytes& b) {
    return std::less<>()(a.begin, b.begin);
  };
  std::vector<Bytes> writes;
  for (const DeviceCopy& copy : copies) {
    const char* to = static_cast<const char*>(copy.to);
    if (copy.bytes > 0) writes.push_back({to, to + copy.bytes, &copy});
  }
  std::sort(writes.begin(), writes.end(), is_below);
  for (size_t i = 1; i < writes.size(); ++i) {
    if (writes[i].begin < writes[i - 1].end) return false;
  }
  for (const DeviceCopy& copy : copies) {
    const char* from = static_cast<const char*>(copy.from);
    const Bytes read = {from, from + copy.bytes, &copy};
    auto it = std::upper_bound(writes.begin(), writes.end(), read, is_below);
    if (it != writes.begin()) --it;  // the last one that begins at `from` or below
    for (; it != writes.end() && it->begin < read.end; ++it) {
      if (it->end > read.begin && it->copy != &copy) return false;
    }
  }
  return true;
}

}  // namespace

Status CopyAll(const ExecutionProvider& provider, const std::vector<DeviceCopy>& copies) {
  assert(AreApart(copies));
  if (const auto* together = dynamic_cast<const CopiesTogether*>(&provider))
    return together->CopyAll(copies);
  for (const DeviceCopy& copy : copies)
    RETURN_IF_ERROR(provider.Copy(CopyKind::kWithin, copy.to, copy.from, copy.bytes));
  return {};
}

}  // namespace caesura
