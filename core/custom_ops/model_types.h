// SPDX-License-Identifier: Apache-2.0
// The types of a model op's inputs and outputs, as its attributes state them.
#ifndef CAESURA_CORE_CUSTOM_OPS_MODEL_TYPES_H_
#define CAESURA_CORE_CUSTOM_OPS_MODEL_TYPES_H_

#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// The inverse of ValueType::ToString for tensors: "float32[N, 3]", "int64[]", "float32[?]",
// "float32[...]". kInvalidArgument.
Result<ValueType> ParseTensorType(const std::string& text);

struct ModelTypes {
  std::vector<std::string> input_names, output_names;
  std::vector<ValueType> inputs, outputs;

  // kInvalidModel where the attributes are missing, unequal in number, or no types.
  static Result<ModelTypes> Of(const AttributeMap& attributes);
  void AddTo(AttributeMap* attributes) const;
  // The outputs' types for these inputs; symbols of the model's own that no input
  // settles are unknown dims. kInvalidArgument where an input does not fit.
  Result<std::vector<ValueType>> OutputsFor(const std::vector<ValueType>& given) const;
};

// Ok when the types do not contradict each other: each may leave open what the other says.
bool AreCompatible(const ValueType& a, const ValueType& b);

}  // namespace caesura

#endif  // CAESURA_CORE_CUSTOM_OPS_MODEL_TYPES_H_
