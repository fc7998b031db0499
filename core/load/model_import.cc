// SPDX-License-Identifier: Apache-2.0
#include "core/load/model_import.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/status_macros.h"
#include "core/graph/graph_check.h"
#include "core/graph/shape_inference.h"
#include "core/load/graph_import.h"
#include "core/load/model_reader.h"
#include "core/load/opset_normalization.h"
#include "core/load/tensor_bank.h"

namespace caesura {
namespace {

using Json = nlohmann::json;

// Keys of the model's metadata: JSON lists of names.
constexpr char kBuffersKey[] = "ai.caesura.buffers";
constexpr char kFoldedKey[] = "ai.caesura.folded";

// Before IR version 3 a model named no opsets: it meant the first.
void FillOpsets(onnx::ModelProto* proto) {
  if (proto->ir_version() >= 3 || proto->opset_import_size() > 0) return;
  proto->add_opset_import()->set_version(1);
}

// What PyTorch's exporter says of its initializers, beside their types. It folds transposes into weights, and all that leads
// to a mask or a rotary table into one tensor, with the names that it was folded from as Python prints a list.
void KeepMarks(const onnx::GraphProto& proto, Model* model) {
  std::vector<std::string> buffers, folded;
  for (const auto& info : proto.value_info()) {
    for (const auto& entry : info.metadata_props()) {
      const bool is_kind = entry.key() == "pkg.torch.export.graph_signature.InputSpec.kind";
      const bool is_folded = entry.key() == "pkg.onnxscript.optimizer.folded_from";
      const bool is_computed = is_folded && entry.value().find(", ") != std::string::npos;
      const bool is_buffer = is_kind && (entry.value() == "BUFFER" || entry.value() == "CONSTANT_TENSOR");
      if (is_buffer || is_computed) buffers.push_back(info.name());
      if (is_folded) folded.push_back(info.name());
    }
  }
  for (const auto& [key, names] : {std::pair(kBuffersKey, &buffers), {kFoldedKey, &folded}}) {
    if (!names->empty()) model->metadata[key] = Json(*names).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

std::unordered_set<std::string> NamesUnder(const char* key, const Model& model) {
  auto found = model.metadata.find(key);
  if (found == model.metadata.end()) return {};
  std::unordered_set<std::string> names;
  for (const Json& name : Json::parse(found->second, nullptr, /*allow_exceptions=*/false)) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
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
  KeepMarks(proto.graph(), &model);
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

std::unordered_set<std::string> MarkedBuffers(const Model& model) { return NamesUnder(kBuffersKey, model); }

std::unordered_set<std::string> FoldedInitializers(const Model& model) { return NamesUnder(kFoldedKey, model); }

}  // namespace caesura
