// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_FUNCTION_INLINING_H_
#define CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_FUNCTION_INLINING_H_

#include <memory>

#include "core/graph/pass.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// Replaces every node that none of the providers has a kernel for by the body that its schema
// gives, also in bodies of control flow. A node without such a body stays.
std::shared_ptr<Pass> MakeFunctionInliningPass(ProviderList providers);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SIMPLIFY_FUNCTION_INLINING_H_
