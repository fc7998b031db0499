// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/model_writer.h"

#include <cstring>
#include <new>
#include <vector>

#include "core/base/status_macros.h"
#include "core/files/file_system.h"
#include "core/onnx/graph_export.h"

namespace caesura {
namespace {

constexpr size_t kMaxFileBytes = (size_t{1} << 31) - 1;
constexpr size_t kMaxInlineBytes = size_t{3}
                                   << 29;  // 1.5 GB of initializers leave room for the rest
constexpr size_t kAutomaticThreshold = 1024;
constexpr uint64_t kPage = 4096;
constexpr size_t kHashDigits = 16;
const char* const kDataSuffix = ".data";

// The place of each external tensor in the data file.
class DataLayout {
 public:
  explicit DataLayout(size_t threshold) : threshold_(threshold) {}

  bool Wants(const Tensor& tensor) const {
    return tensor.dtype() != DType::kString &&
           FileBytes(tensor.dtype(), tensor.elements()) > threshold_;
  }

  // Pages for tensors that fill one, so that readers can map them.
  uint64_t Add(const Tensor& tensor) {
    const uint64_t bytes = FileBytes(tensor.dtype(), tensor.elements());
    const uint64_t alignment = bytes >= kPage ? kPage : kBufferAlignment;
    const uint64_t offset = (end_ + alignment - 1) / alignment * alignment;
    pieces_.push_back({tensor, offset});
    end_ = offset + bytes;
    return offset;
  }

  bool empty() const { return pieces_.empty(); }

  // Hands out the file's bytes in order.
  Status ForEach(const std::function<Status(std::string_view)>& take) const {
    uint64_t at = 0;
    for (const Piece& piece : pieces_) {
      RETURN_IF_ERROR(take(std::string(static_cast<size_t>(piece.offset - at), '\0')));
      const uint64_t bytes = FileBytes(piece.tensor.dtype(), piece.tensor.elements());
      if (DTypeFileBits(piece.tensor.dtype()) >= 8) {
        RETURN_IF_ERROR(
            take({static_cast<const char*>(piece.tensor.raw()), static_cast<size_t>(bytes)}));
      } else {
        RETURN_IF_ERROR(take(TensorToFileBytes(piece.tensor)));
      }
      at = piece.offset + bytes;
    }
    return {};
  }

 private:
  struct Piece {
    Tensor tensor;
    uint64_t offset;
  };
  size_t threshold_;
  uint64_t end_ = 0;
  std::vector<Piece> pieces_;
};

// Tells contents apart; no defence against a forger.
class ContentHash {
 public:
  void Add(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
      state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
      state_ ^= state_ >> 29;
    }
    state_ = (state_ ^ bytes.size()) * 0xBF58476D1CE4E5B9u;
  }
  std::string Digits() const {
    static const char* const kHex = "0123456789abcdef";
    std::string out;
    for (size_t i = 0; i < kHashDigits; ++i) out += kHex[(state_ >> (60 - 4 * i)) & 15];
    return out;
  }

 private:
  uint64_t state_ = 0x243F6A8885A308D3u;
};

std::string FileNameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// True if `name` is a data file of the model file `model_name`.
bool IsDataFileOf(const std::string& name, const std::string& model_name) {
  const size_t digits = model_name.size() + 1;
  if (name.size() != digits + kHashDigits + std::strlen(kDataSuffix) ||
      name.compare(0, digits, model_name + ".") != 0) {
    return false;
  }
  return name.find_first_not_of("0123456789abcdef", digits) == digits + kHashDigits &&
         name.compare(digits + kHashDigits, std::string::npos, kDataSuffix) == 0;
}

size_t InitializerBytes(const Graph& graph) {
  size_t bytes = 0;
  for (const auto& [value, tensor] : graph.initializers()) bytes += tensor.bytes();
  return bytes;
}

void SetExternal(const std::string& key, const std::string& value, onnx::TensorProto* proto) {
  auto* entry = proto->add_external_data();
  entry->set_key(key);
  entry->set_value(value);
}

Result<std::string> ToBytes(const onnx::ModelProto& proto) {
  std::string bytes;
  if (proto.ByteSizeLong() > kMaxFileBytes || !proto.SerializeToString(&bytes)) {
    return Unsupported("the model has more than 2 GB without external data");
  }
  return bytes;
}

// The proto with all external tensors placed; their location is filled in when the data file has
// its name.
Status BuildProto(const Model& model, int opset, DataLayout* layout, onnx::ModelProto* proto) {
  ExportOptions options;
  options.opset = opset;
  options.store_externally = [&](const Tensor& tensor, onnx::TensorProto* out) -> Result<bool> {
    if (!layout->Wants(tensor)) return false;
    out->set_data_location(onnx::TensorProto::EXTERNAL);
    SetExternal("offset", std::to_string(layout->Add(tensor)), out);
    SetExternal("length", std::to_string(FileBytes(tensor.dtype(), tensor.elements())), out);
    return true;
  };
  return ModelToProto(model, options, proto);
}

Result<std::string> WriteDataFile(const DataLayout& layout, const std::string& path,
                                  FileSystem& files) {
  ContentHash hash;
  RETURN_IF_ERROR(
      layout.ForEach([&](std::string_view bytes) { return hash.Add(bytes), Status(); }));
  const std::string suffix = "." + hash.Digits() + kDataSuffix;
  RETURN_IF_ERROR(WriteFileAtomically(files, path + suffix, [&](WritableFile& file) {
    return layout.ForEach([&](std::string_view bytes) { return file.Write(bytes); });
  }));
  return FileNameOf(path) + suffix;
}

// Data files of earlier saves; that one of them stays is no failure.
void RemoveOldData(const std::string& path, const std::string& current, FileSystem& files) {
  const std::string folder = FolderOf(path);
  Result<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name == current || !IsDataFileOf(name, FileNameOf(path))) continue;
    Status removed = files.Remove(folder + "/" + name);
    (void)removed.ok();
  }
}

}  // namespace

Status WriteModel(const Model& model, const std::string& path, const WriteOptions& options) try {
  FileSystem& files = options.files != nullptr ? *options.files : PosixFileSystem();
  size_t threshold = options.external_above.value_or(static_cast<size_t>(-1));
  if (!options.external_above && InitializerBytes(*model.graph) > kMaxInlineBytes)
    threshold = kAutomaticThreshold;
  DataLayout layout(threshold);
  ArenaMessage<onnx::ModelProto> proto;
  RETURN_IF_ERROR(BuildProto(model, options.opset, &layout, proto.get()));
  std::string data_name;
  if (!layout.empty()) {
    ASSIGN_OR_RETURN(data_name, WriteDataFile(layout, path, files));
    for (auto& tensor : *proto->mutable_graph()->mutable_initializer()) {
      if (tensor.data_location() == onnx::TensorProto::EXTERNAL)
        SetExternal("location", data_name, &tensor);
    }
  }
  ASSIGN_OR_RETURN(const std::string bytes, ToBytes(*proto));
  RETURN_IF_ERROR(
      WriteFileAtomically(files, path, [&](WritableFile& file) { return file.Write(bytes); }));
  RemoveOldData(path, data_name, files);
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was written");
}

Result<std::string> SerializeModel(const Model& model) try {
  ArenaMessage<onnx::ModelProto> proto;
  RETURN_IF_ERROR(ModelToProto(model, {}, proto.get()));
  return ToBytes(*proto);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a model was written");
}

}  // namespace caesura
