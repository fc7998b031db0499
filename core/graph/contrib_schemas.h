// SPDX-License-Identifier: Apache-2.0
// Schemas of onnxruntime's own ops (domain com.microsoft) that have a kernel here. The domain stays
// open: its other ops may be a user's custom ops.
#ifndef CAESURA_CORE_GRAPH_CONTRIB_SCHEMAS_H_
#define CAESURA_CORE_GRAPH_CONTRIB_SCHEMAS_H_

#include <vector>

#include "core/graph/op_schema.h"

namespace caesura {

inline constexpr char kContribDomain[] = "com.microsoft";

std::vector<OpSchemaSpec> ContribOpSchemas();

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_CONTRIB_SCHEMAS_H_
