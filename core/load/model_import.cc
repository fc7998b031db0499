// SPDX-License-Identifier: Apache-2.0
#include "core/load/model_import.h"

#include "core/base/status_macros.h"
#include "core/graph/graph_check.h"
#include "core/graph/shape_inference.h"
#include "core/load/graph_import.h"
#include "core/load/opset_normalization.h"
#include "core/load/tensor_bank.h"

namespace caesura {
namespace {

// Before IR version 3 a model named no opsets: it meant the first.
void FillOpsets(onnx::ModelProto* proto) {
  if (proto->ir_version() >= 3 || proto->opset_import_size() > 0) return;
  proto->add_opset_import()->set_version(1);
}

Result<Model> ToModel(const onnx::ModelProto& proto, const ReadOptions& options, const TensorBank& bank) {
  Model model;
  model.opsets = OpsetsFromProto(proto.opset_import());
  model.ir_version = static_cast<int>(proto.ir_version());
  model.producer = proto.producer_name();
  model.producer_version = proto.producer_version();
  model.domain = proto.domain();
  model.version = proto.model_version();
  model.description = proto.doc_string();
  model.graph_description = proto.graph().doc_string();
  for (const auto& entry : proto.metadata_props()) model.metadata[entry.key()] = entry.value();
  GraphImporter importer({options.max_nodes, options.max_depth}, &bank.tensors());
  for (const auto& function : proto.functions()) importer.AddFunction(function);
  ASSIGN_OR_RETURN(model.graph, importer.Import(proto.graph(), model.opsets, proto.ir_version() < 4));
  return model;
}

}  // namespace

Result<Model> ImportModel(onnx::ModelProto* proto, const ReadOptions& options, ExternalFolder* folder) {
  FillOpsets(proto);
  RETURN_IF_ERROR(CheckModelProto(*proto, options));
  TensorBank bank({options.max_tensor_bytes, options.max_dense_bytes, options.max_depth}, folder);
  RETURN_IF_ERROR(bank.TakeFrom(proto));
  RETURN_IF_ERROR(RunOnnxChecker(*proto));
  ASSIGN_OR_RETURN(Model model, ToModel(*proto, options, bank));
  proto->Clear();
  RETURN_IF_ERROR(CheckGraph(*model.graph));
  RETURN_IF_ERROR(options.normalise_opsets ? NormalizeOpsets(model) : InferShapes(model));
  return model;
}

}  // namespace caesura
