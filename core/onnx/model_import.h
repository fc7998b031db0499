// SPDX-License-Identifier: Apache-2.0
// Private to core/onnx. What reading a file and parsing a text share: from a
// ModelProto to a Model.
#ifndef CAESURA_CORE_ONNX_MODEL_IMPORT_H_
#define CAESURA_CORE_ONNX_MODEL_IMPORT_H_

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/files/external_data.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/onnx_proto.h"

namespace caesura {

// Checks, imports, normalises and infers. Empties `proto` on the way. `folder` may be null:
// external data are an error then.
Result<Model> ImportModel(onnx::ModelProto* proto, const ReadOptions& options,
                          ExternalFolder* folder);

// Everything that can be wrong with a model before its tensors are looked at: names, order,
// versions, op types, attributes. All faults of a kind are listed in one message.
Status CheckModelProto(const onnx::ModelProto& model, const ReadOptions& options);
// onnx's own checker, for what CheckModelProto leaves. It looks at tensors, too, of which it would
// copy the bytes. REQUIRES: they are placeholders (tensor_bank.h).
Status RunOnnxChecker(const onnx::ModelProto& model);

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_MODEL_IMPORT_H_
