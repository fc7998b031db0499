// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/model_reader.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <new>

#include "core/base/status_macros.h"
#include "core/files/file_system.h"
#include "core/onnx/model_import.h"

namespace caesura {
namespace {

// Messages in each other: a body costs three (graph, node, attribute), and types and tensors a few
// below the last.
int RecursionLimit(const ReadOptions& options) { return 3 * options.max_depth + 16; }

Status CheckSize(uint64_t bytes, const ReadOptions& options) {
  if (bytes == 0) return InvalidModel("the model is empty");
  if (bytes <= options.max_model_bytes && bytes <= INT_MAX) return {};
  return InvalidModel("the model has " + std::to_string(bytes) + " bytes, more than the limit of " +
                      std::to_string(options.max_model_bytes));
}

// A file in pieces, so that no copy of all of it is held beside what is parsed.
class FilePieces : public google::protobuf::io::CopyingInputStream {
 public:
  static constexpr int kBytes = 1 << 20;
  explicit FilePieces(const ReadableFile& file) : file_(file) {}
  // -1: status() says why.
  int Read(void* out, int size) override {
    const uint64_t length =
        std::min<uint64_t>(file_.size() - position_, static_cast<uint64_t>(size));
    status_ = file_.Read(position_, static_cast<size_t>(length), out);
    position_ += length;
    return status_.ok() ? static_cast<int>(length) : -1;
  }
  const Status& status() const { return status_; }

 private:
  const ReadableFile& file_;
  uint64_t position_ = 0;
  Status status_;
};

Status ParseModel(google::protobuf::io::ZeroCopyInputStream& stream, const ReadOptions& options,
                  onnx::ModelProto* proto) {
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetTotalBytesLimit(INT_MAX);
  coded.SetRecursionLimit(RecursionLimit(options));
  if (proto->ParseFromCodedStream(&coded) && coded.ConsumedEntireMessage()) return {};
  return InvalidModel("the bytes are no ONNX model: damaged, cut off, or nested too deeply");
}

Result<Model> ReadFrom(google::protobuf::io::ZeroCopyInputStream& stream,
                       const ReadOptions& options, ExternalFolder* folder) {
  try {
    ArenaMessage<onnx::ModelProto> proto;
    RETURN_IF_ERROR(ParseModel(stream, options, proto.get()));
    return ImportModel(proto.get(), options, folder);
  } catch (const std::bad_alloc&) {
    return OutOfMemory("memory ran out while the model was read");
  } catch (const std::exception& e) {
    return InvalidModel(std::string("the model cannot be read: ") + e.what());
  }
}

Result<Model> ReadPath(const std::string& path, const ReadOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, PosixFileSystem().Open(path));
  RETURN_IF_ERROR(CheckSize(file->size(), options));
  const std::string folder_path =
      options.external_data_folder.empty() ? FolderOf(path) : options.external_data_folder;
  const bool is_own = options.external_data_folder.empty();
  ASSIGN_OR_RETURN(std::unique_ptr<ExternalFolder> folder,
                   ExternalFolder::Open(folder_path, is_own ? path : ""));
  FilePieces pieces(*file);
  google::protobuf::io::CopyingInputStreamAdaptor stream(&pieces, FilePieces::kBytes);
  Result<Model> model = ReadFrom(stream, options, folder.get());
  RETURN_IF_ERROR(pieces.status());
  if (model.ok()) model->folder = folder_path;
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
  RETURN_IF_ERROR(CheckSize(bytes.size(), options));
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  if (options.external_data_folder.empty()) return ReadFrom(stream, options, nullptr);
  ASSIGN_OR_RETURN(std::unique_ptr<ExternalFolder> folder,
                   ExternalFolder::Open(options.external_data_folder));
  ASSIGN_OR_RETURN(Model model, ReadFrom(stream, options, folder.get()));
  model.folder = options.external_data_folder;
  return model;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while the model was read");
}

}  // namespace caesura
