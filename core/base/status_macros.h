// SPDX-License-Identifier: Apache-2.0
// Propagation of Status and Result. Include from sources and internal headers, not from public
// ones.
#ifndef CAESURA_CORE_BASE_STATUS_MACROS_H_
#define CAESURA_CORE_BASE_STATUS_MACROS_H_

#include "core/base/status.h"

// Returns from the enclosing function when `expr` (a Status) has failed.
#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    ::caesura::Status caesura_status_ = (expr);        \
    if (!caesura_status_.ok()) return caesura_status_; \
  } while (false)

#define CAESURA_CONCAT_(a, b) a##b
#define CAESURA_CONCAT(a, b) CAESURA_CONCAT_(a, b)
#define CAESURA_ASSIGN_OR_RETURN_(result, lhs, expr) \
  auto result = (expr);                              \
  if (!result.ok()) return result.status();          \
  lhs = *std::move(result)

// `lhs = value of expr` (a Result), or returns its Status.
#define ASSIGN_OR_RETURN(lhs, expr) \
  CAESURA_ASSIGN_OR_RETURN_(CAESURA_CONCAT(caesura_result_, __LINE__), lhs, expr)

#endif  // CAESURA_CORE_BASE_STATUS_MACROS_H_
