// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/model_reader.h"

#include <new>

#include "core/base/status_macros.h"
#include "core/onnx/graph_export.h"
#include "core/onnx/model_import.h"
#include "onnx/defs/parser.h"
#include "onnx/defs/printer.h"

namespace caesura {
namespace {

// onnx's parser calls itself for every opening bracket.
constexpr int kMaxBrackets = 256;

Status CheckBrackets(const std::string& text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '(' || c == '{' || c == '<' || c == '[')) {
      if (++depth > kMaxBrackets)
        return InvalidModel("the text nests brackets deeper than " + std::to_string(kMaxBrackets));
    } else if (!quoted && (c == ')' || c == '}' || c == '>' || c == ']')) {
      --depth;
    }
  }
  return {};
}

}  // namespace

Result<Model> ParseModelText(const std::string& text, const TextOptions& options) try {
  RETURN_IF_ERROR(CheckBrackets(text));
  ArenaMessage<onnx::ModelProto> proto;
  try {
    onnx::OnnxParser parser(text);
    const auto status = parser.Parse(*proto);
    if (!status.IsOK()) return InvalidModel(status.ErrorMessage());
    if (!parser.EndOfInput()) return InvalidModel("text follows after the model's last bracket");
  } catch (const std::bad_alloc&) {
    throw;  // not the text's fault
  } catch (const std::exception& e) {
    return InvalidModel(std::string("the text cannot be parsed: ") + e.what());
  }
  ReadOptions read;
  read.normalise_opsets = options.normalise_opsets;
  return ImportModel(proto.get(), read, nullptr);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a model's text was parsed");
}

std::string ModelText(const Model& model) {
  ArenaMessage<onnx::ModelProto> proto;
  ExportOptions options;
  options.brief = true;
  Status status = ModelToProto(model, options, proto.get());
  return status.ok() ? onnx::ProtoToString(*proto) : status.ToString();
}

}  // namespace caesura
