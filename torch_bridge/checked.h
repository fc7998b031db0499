// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_TORCH_BRIDGE_CHECKED_H_
#define CAESURA_TORCH_BRIDGE_CHECKED_H_

#include <c10/util/Exception.h>

#include <utility>

#include "core/base/status.h"

namespace caesura::torch {

// A failure becomes the exception that callers of LibTorch expect (c10::Error).
inline void Checked(const Status& status) { TORCH_CHECK(status.ok(), status.message()); }

// Returns what `result` holds; fails in the same way.
template <typename T>
T Checked(Result<T> result) {
  TORCH_CHECK(result.ok(), result.status().message());
  return *std::move(result);
}

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_CHECKED_H_
