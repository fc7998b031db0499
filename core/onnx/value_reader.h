// SPDX-License-Identifier: Apache-2.0
// A value as ONNX stores one outside of a model: TensorProto, SequenceProto or OptionalProto, the
// .pb files that lie beside test models. As safe as reading a model (model_reader.h).
#ifndef CAESURA_CORE_ONNX_VALUE_READER_H_
#define CAESURA_CORE_ONNX_VALUE_READER_H_

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// The bytes do not say which of the three they are: the type of the model's input or output does.
// An optional that holds nothing is an empty value. Fails with kInvalidModel, or kUnsupported for
// maps and sparse tensors inside.
Result<RuntimeValue> ReadValueBytes(std::string_view bytes, const ValueType& type);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_VALUE_READER_H_
