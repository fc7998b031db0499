// SPDX-License-Identifier: Apache-2.0
#include "core/load/model_reader.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <climits>
#include <exception>
#include <new>

#include "core/base/status_macros.h"
#include "core/load/file_system.h"
#include "core/load/model_import.h"

namespace caesura {
namespace {

// Messages in each other: a body costs three (graph, node, attribute), and types and tensors a few below the last.
int RecursionLimit(const ReadOptions& options) { return 3 * options.max_depth + 16; }

Status Parse(std::string_view bytes, const ReadOptions& options, onnx::ModelProto* proto) {
  if (bytes.size() > options.max_model_bytes || bytes.size() > INT_MAX) {
    return InvalidModel("the model has " + std::to_string(bytes.size()) + " bytes, more than the limit of " +
                        std::to_string(options.max_model_bytes));
  }
  google::protobuf::io::ArrayInputStream array(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedInputStream coded(&array);
  coded.SetTotalBytesLimit(INT_MAX);
  coded.SetRecursionLimit(RecursionLimit(options));
  if (bytes.empty()) return InvalidModel("the model is empty");
  if (proto->ParseFromCodedStream(&coded) && coded.ConsumedEntireMessage()) return {};
  return InvalidModel("the bytes are no ONNX model: damaged, cut off, or nested too deeply");
}

Result<Model> ReadFrom(std::string_view bytes, const ReadOptions& options, ExternalFolder* folder) {
  try {
    ArenaMessage<onnx::ModelProto> proto;
    RETURN_IF_ERROR(Parse(bytes, options, proto.get()));
    return ImportModel(proto.get(), options, folder);
  } catch (const std::bad_alloc&) {
    return OutOfMemory("memory ran out while the model was read");
  } catch (const std::exception& e) {
    return InvalidModel(std::string("the model cannot be read: ") + e.what());
  }
}

Result<Model> ReadPath(const std::string& path, const ReadOptions& options) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(PosixFileSystem(), path, options.max_model_bytes));
  const std::string folder_path =
      options.external_data_folder.empty() ? FolderOf(path) : options.external_data_folder;
  ASSIGN_OR_RETURN(std::unique_ptr<ExternalFolder> folder, ExternalFolder::Open(folder_path));
  ASSIGN_OR_RETURN(Model model, ReadFrom(bytes, options, folder.get()));
  model.folder = folder_path;
  return model;
}

}  // namespace

Result<Model> ReadModel(const std::string& path, const ReadOptions& options) try {
  Result<Model> model = ReadPath(path, options);
  return model.ok() ? std::move(model) : Result<Model>(model.status().WithPrefix(path + ": "));
} catch (const std::bad_alloc&) {
  return OutOfMemory(path + ": memory ran out while the model was read");
}

Result<Model> ReadModelBytes(std::string_view bytes, const ReadOptions& options) try {
  if (options.external_data_folder.empty()) return ReadFrom(bytes, options, nullptr);
  ASSIGN_OR_RETURN(std::unique_ptr<ExternalFolder> folder, ExternalFolder::Open(options.external_data_folder));
  ASSIGN_OR_RETURN(Model model, ReadFrom(bytes, options, folder.get()));
  model.folder = options.external_data_folder;
  return model;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while the model was read");
}

}  // namespace caesura
