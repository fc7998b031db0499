// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/model_import.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/graph/graph_check.h"
#include "core/onnx/buffer_marks.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/graph_import.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/opsets/opset_normalization.h"
#include "core/onnx/tensor_bank.h"

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

// The text between single quotes.
std::vector<std::string> Quoted(std::string_view text) {
  std::vector<std::string> out;
  for (size_t from = text.find('\''); from != text.npos; from = text.find('\'', from)) {
    const size_t end = text.find('\'', from + 1);
    if (end == text.npos) break;
    out.emplace_back(text.substr(from + 1, end - from - 1));
    from = end + 1;
  }
  return out;
}

// The module's parameters, of whose names an exported program's signature has a line each: "p_w:
// PARAMETER target='w'".
std::unordered_set<std::string> ParametersOf(const onnx::GraphProto& proto) {
  std::unordered_set<std::string> out;
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() != "pkg.torch.export.ExportedProgram.graph_signature") continue;
    std::istringstream lines(entry.value());
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find(": PARAMETER target=");
      if (at == line.npos) continue;
      for (std::string& name : Quoted(std::string_view(line).substr(at)))
        out.insert(std::move(name));
    }
  }
  return out;
}

// PyTorch's exporter describes its initializers beside their types. Where it optimises it folds
// what is known into one tensor (a weight and its transpose; all that leads to a mask or a rotary
// table), and lists what that was made from.
void KeepMarks(const onnx::GraphProto& proto, Model* model) {
  std::vector<std::string> buffers, folded;
  const std::unordered_set<std::string> parameters = ParametersOf(proto);
  for (const auto& info : proto.value_info()) {
    for (const auto& entry : info.metadata_props()) {
      if (entry.key() == "pkg.torch.export.graph_signature.InputSpec.kind") {
        if (entry.value() == "BUFFER" || entry.value() == "CONSTANT_TENSOR")
          buffers.push_back(info.name());
      } else if (entry.key() == "pkg.onnxscript.optimizer.folded_from") {
        folded.push_back(info.name());
        const std::vector<std::string> from = Quoted(entry.value());
        const auto is_parameter = [&](const std::string& name) {
          return parameters.count(name) > 0;
        };
        if (!parameters.empty() && std::none_of(from.begin(), from.end(), is_parameter))
          buffers.push_back(info.name());
      }
    }
  }
  for (const auto& [key, names] : {std::pair(kBuffersKey, &buffers), {kFoldedKey, &folded}}) {
    if (!names->empty())
      model->metadata[key] = Json(*names).dump(-1, ' ', false, Json::error_handler_t::replace);
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

Result<Model> ToModel(const onnx::ModelProto& proto, const ReadOptions& options,
                      const TensorBank& bank) {
  Model model;
  model.opsets = OpsetsFromProto(proto.opset_import());
  model.ir_version = static_cast<int>(proto.ir_version());
  model.producer = EscapedToUtf8(proto.producer_name());
  model.producer_version = EscapedToUtf8(proto.producer_version());
  model.domain = EscapedToUtf8(proto.domain());
  model.version = proto.model_version();
  model.description = EscapedToUtf8(proto.doc_string());
  model.graph_description = EscapedToUtf8(proto.graph().doc_string());
  for (const auto& entry : proto.metadata_props())
    model.metadata[entry.key()] = EscapedToUtf8(entry.value());
  KeepMarks(proto.graph(), &model);
  GraphImporter importer({options.max_nodes, options.max_depth}, &bank.tensors());
  for (const auto& function : proto.functions()) importer.AddFunction(function);
  ASSIGN_OR_RETURN(model.graph,
                   importer.Import(proto.graph(), model.opsets, proto.ir_version() < 4));
  return model;
}

}  // namespace

Result<Model> ImportModel(onnx::ModelProto* proto, const ReadOptions& options,
                          ExternalFolder* folder) {
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

std::unordered_set<std::string> MarkedBuffers(const Model& model) {
  return NamesUnder(kBuffersKey, model);
}

void SetMarkedBuffers(const std::unordered_set<std::string>& names, Model* model) {
  const std::set<std::string> sorted(names.begin(), names.end());
  model->metadata[kBuffersKey] = Json(sorted).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::unordered_set<std::string> FoldedInitializers(const Model& model) {
  return NamesUnder(kFoldedKey, model);
}

}  // namespace caesura
