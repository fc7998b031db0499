// SPDX-License-Identifier: Apache-2.0
// From values by name to a graph's inputs by position.
#ifndef CAESURA_CORE_RUNTIME_FEEDS_H_
#define CAESURA_CORE_RUNTIME_FEEDS_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/tensor/tensor.h"

namespace caesura {

// The part of an input's type that a fed value must match.
enum class FeedCheck {
  kType,   // the whole type of the input, with the dims that it names by number
  kDType,  // the dtype only: another batch size than the model's is fine
};

// The graph's inputs in its order, absent where an input has a default. `own` are inputs that the
// caller's caller does not know of (learning rate, step). kInvalidArgument names all inputs without
// a value at once, or all names that are no inputs, or the first value of a wrong type.
Result<std::vector<RuntimeValue>> BindFeeds(const Graph& graph, const NamedValues& feeds,
                                            FeedCheck check, const NamedValues& own = {});

// True if the tensor matches everything that the type specifies.
bool Fits(const ValueType& type, const Tensor& tensor);
// kInvalidArgument where the input cannot take the value, as far as that shows before a run.
Status CheckFeed(const Value& input, const RuntimeValue& value);
// Names the inputs, by position, that have neither a value nor a default.
Status CheckComplete(const Graph& graph, const std::vector<RuntimeValue>& feeds);

}  // namespace caesura

#endif  // CAESURA_CORE_RUNTIME_FEEDS_H_
