// SPDX-License-Identifier: Apache-2.0
#include "core/files/safetensors.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

constexpr uint64_t kMaxJsonBytes = 100'000'000;  // the limit that every reader of the format keeps
constexpr size_t kLengthBytes = 8;
constexpr char kMetadataKey[] = "__metadata__";

struct FileDType {
  const char* name;
  DType dtype;
};
constexpr FileDType kFileDTypes[] = {
    {"BOOL", DType::kBool},
    {"U8", DType::kUInt8},
    {"I8", DType::kInt8},
    {"F8_E5M2", DType::kFloat8E5M2},
    {"F8_E4M3", DType::kFloat8E4M3FN},
    {"F8_E8M0", DType::kFloat8E8M0},
    {"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
    {"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ},
    {"I16", DType::kInt16},
    {"U16", DType::kUInt16},
    {"F16", DType::kFloat16},
    {"BF16", DType::kBFloat16},
    {"I32", DType::kInt32},
    {"U32", DType::kUInt32},
    {"F32", DType::kFloat32},
    {"C64", DType::kComplex64},
    {"F64", DType::kFloat64},
    {"I64", DType::kInt64},
    {"U64", DType::kUInt64},
};

const char* FileName(DType dtype) {
  for (const FileDType& entry : kFileDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return nullptr;
}

// Takes the header's JSON apart as it is parsed, so that nothing but the entries is ever built.
// Anything but exactly {"name": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
// "__metadata__": {"key": "text"}} ends the parse.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Entry = SafetensorsReader::Entry;
  HeaderHandler(std::map<std::string, Entry>* entries, std::map<std::string, std::string>* metadata)
      : entries_(entries), metadata_(metadata) {}

  // Why the parse ended early.
  const Status& status() const { return status_; }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kTop: return GoTo(Place::kFile);
      case Place::kFile:
        if (name_ == kMetadataKey) return GoTo(Place::kMetadata);
        entry_ = {};
        dtype_.reset();
        shape_.reset();
        offsets_.reset();
        return GoTo(Place::kEntry);
      default: return Unexpected("an object");
    }
  }
  bool end_object() override {
    if (place_ == Place::kEntry) return FinishEntry() && GoTo(Place::kFile);
    return GoTo(place_ == Place::kMetadata ? Place::kFile : Place::kEnd);
  }
  bool key(std::string& key) override {
    if (place_ == Place::kFile) {
      name_ = key;
      return names_.insert(key).second || Fail("there are two entries '" + key + "'");
    }
    key_ = key;
    if (place_ == Place::kMetadata)
      return metadata_->count(key) == 0 || Fail("metadata holds '" + key + "' twice");
    return key == "dtype" || key == "shape" || key == "data_offsets" ||
           Fail(Here() + " is not known");
  }
  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) return metadata_->emplace(key_, text).second;
    if (place_ != Place::kEntry || key_ != "dtype" || dtype_) return Unexpected("a string");
    dtype_ = text;
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::kEntry || key_ == "dtype" || List()) return Unexpected("a list");
    List().emplace();
    return GoTo(Place::kList);
  }
  bool end_array() override { return GoTo(Place::kEntry); }
  bool number_unsigned(number_unsigned_t number) override {
    if (place_ != Place::kList) return Unexpected("a number");
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return Fail(Here() + " is too large");
    List()->push_back(static_cast<int64_t>(number));
    return true;
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a bool"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const std::string&) override {
    return Unexpected("a fraction");
  }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail("no JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { kTop, kFile, kMetadata, kEntry, kList, kEnd };

  bool GoTo(Place place) {
    place_ = place;
    return true;
  }
  bool Fail(std::string message, StatusCode code = StatusCode::kInvalidModel) {
    if (status_.ok()) status_ = Status(code, "header: " + std::move(message));
    return false;
  }
  std::string Here() const { return "'" + name_ + "', '" + key_ + "'"; }
  bool Unexpected(const char* what) {
    return Fail(std::string(what) + " where none belongs, after " + Here());
  }
  std::optional<std::vector<int64_t>>& List() { return key_ == "shape" ? shape_ : offsets_; }

  bool FinishEntry() {
    if (!dtype_ || !shape_ || !offsets_)
      return Fail("'" + name_ + "' lacks dtype, shape or data_offsets");
    for (const FileDType& known : kFileDTypes) {
      if (*dtype_ == known.name) entry_.dtype = known.dtype;
    }
    if (entry_.dtype == DType::kUndefined) {
      return Fail("'" + name_ + "' has dtype '" + *dtype_ + "', which is not supported",
                  StatusCode::kUnsupported);
    }
    Result<Shape> shape = CheckedShape(*std::move(shape_), entry_.dtype);
    if (!shape.ok()) return Fail("'" + name_ + "': " + shape.status().message());
    entry_.shape = *std::move(shape);
    if (offsets_->size() != 2 || (*offsets_)[0] > (*offsets_)[1])
      return Fail("'" + name_ + "' has no valid data_offsets");
    entry_.offset = static_cast<uint64_t>((*offsets_)[0]);
    entry_.bytes = static_cast<uint64_t>((*offsets_)[1]) - entry_.offset;
    const uint64_t needed =
        static_cast<uint64_t>(entry_.shape.elements()) * DTypeSize(entry_.dtype);
    if (entry_.bytes != needed) {
      return Fail("'" + name_ + "', " + DTypeName(entry_.dtype) + entry_.shape.ToString() +
                  ", takes " + std::to_string(needed) + " bytes, but " +
                  std::to_string(entry_.bytes) + " are stored");
    }
    entries_->emplace(name_, std::move(entry_));
    return true;
  }

  std::map<std::string, Entry>* entries_;
  std::map<std::string, std::string>* metadata_;
  Status status_;
  Place place_ = Place::kTop;
  std::string name_, key_;
  std::set<std::string> names_;
  Entry entry_;
  std::optional<std::string> dtype_;
  std::optional<std::vector<int64_t>> shape_, offsets_;
};

// The tensors must fill the `size` bytes after the header one after the other.
Status CheckNoGaps(const std::map<std::string, SafetensorsReader::Entry>& entries, uint64_t size) {
  std::vector<std::tuple<uint64_t, uint64_t, const std::string*>> ranges;
  for (const auto& [name, entry] : entries)
    ranges.emplace_back(entry.offset, entry.offset + entry.bytes, &name);
  std::sort(ranges.begin(), ranges.end());
  uint64_t at = 0;
  for (const auto& [begin, end, name] : ranges) {
    if (begin != at)
      return InvalidModel("header: there is a gap or an overlap before '" + *name + "'");
    at = end;
  }
  if (at == size) return {};
  return InvalidModel("the tensors take " + std::to_string(at) + " bytes, but " +
                      std::to_string(size) + " are stored");
}

bool IsUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80       ? 1
                          : lead >> 5 == 6  ? 2
                          : lead >> 4 == 14 ? 3
                          : lead >> 3 == 30 ? 4
                                            : 0;
    if (length == 0 || length > text.size() - i) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7f >> length);
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<uint8_t>(text[i + k]) & 0xc0) != 0x80) return false;
      code = code << 6 | (static_cast<uint8_t>(text[i + k]) & 0x3f);
    }
    constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      return false;
    i += length;
  }
  return true;
}

// Wide elements first, so that each tensor lies aligned to its element; then by name.
std::vector<std::pair<const std::string*, const Tensor*>> FileOrder(const TensorFile& contents) {
  std::vector<std::pair<const std::string*, const Tensor*>> order;
  for (const auto& [name, tensor] : contents.tensors) order.emplace_back(&name, &tensor);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return DTypeSize(a.second->dtype()) > DTypeSize(b.second->dtype());
  });
  return order;
}

std::string JsonString(const std::string& text) { return nlohmann::json(text).dump(); }

Result<std::string> MakeHeader(const TensorFile& contents) {
  // Put together as text: json values allocate in their destructors, which ends the process where
  // there is no memory.
  std::string metadata;
  std::map<std::string, std::string> entries;
  for (const auto& [key, text] : contents.metadata) {
    if (!IsUtf8(key) || !IsUtf8(text))
      return InvalidArgument("metadata '" + key + "' is not UTF-8");
    metadata += (metadata.empty() ? "" : ",") + JsonString(key) + ":" + JsonString(text);
  }
  if (!metadata.empty()) entries[kMetadataKey] = "{" + metadata + "}";
  uint64_t at = 0;
  for (const auto& [name, tensor] : FileOrder(contents)) {
    const char* dtype = FileName(tensor->dtype());
    if (dtype == nullptr) {
      return Unsupported("tensor '" + *name + "': safetensors has no " +
                         DTypeName(tensor->dtype()));
    }
    if (*name == kMetadataKey || !IsUtf8(*name))
      return InvalidArgument("no tensor can be named '" + *name + "'");
    entries[*name] = "{\"data_offsets\":[" + std::to_string(at) + "," +
                     std::to_string(at + tensor->bytes()) + "],\"dtype\":" + JsonString(dtype) +
                     ",\"shape\":" + tensor->shape().ToString() + "}";
    at += tensor->bytes();
  }
  std::string text;
  for (const auto& [key, entry] : entries)
    text += (text.empty() ? "{" : ",") + JsonString(key) + ":" + entry;
  text += text.empty() ? "{}" : "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxJsonBytes)
    return InvalidArgument("the names take more than the format's 100 MB of header");
  return text;
}

std::string LittleEndian(uint64_t value) {
  std::string out(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(value >> (8 * i));
  return out;
}

}  // namespace

Result<SafetensorsReader> SafetensorsReader::Open(const std::string& path, FileSystem& files) {
  SafetensorsReader reader;
  reader.path_ = path;
  ASSIGN_OR_RETURN(reader.file_, files.Open(path));
  const Status status = reader.Parse();
  if (!status.ok()) return status.WithPrefix("'" + path + "': ");
  return reader;
}

Status SafetensorsReader::Parse() {
  const uint64_t size = file_->size();
  if (size < kLengthBytes) return InvalidModel("is too short to be a safetensors file");
  uint8_t length_bytes[kLengthBytes];
  RETURN_IF_ERROR(file_->Read(0, kLengthBytes, length_bytes));
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | length_bytes[i];
  if (length > kMaxJsonBytes || length > size - kLengthBytes) {
    return InvalidModel("a header of " + std::to_string(length) +
                        " bytes is declared in a file of " + std::to_string(size));
  }
  std::string header(static_cast<size_t>(length), '\0');
  RETURN_IF_ERROR(file_->Read(kLengthBytes, header.size(), header.data()));
  if (header.empty() || header[0] != '{') return InvalidModel("the header does not begin with '{'");
  HeaderHandler handler(&entries_, &metadata_);
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &handler)) return handler.status();
  const uint64_t data = kLengthBytes + length;
  RETURN_IF_ERROR(CheckNoGaps(entries_, size - data));
  for (auto& [name, entry] : entries_) entry.offset += data;
  return {};
}

Result<Tensor> SafetensorsReader::Read(const std::string& name) const {
  auto it = entries_.find(name);
  if (it == entries_.end()) return NotFound("'" + path_ + "' has no tensor '" + name + "'");
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(it->second.dtype, it->second.shape));
  RETURN_IF_ERROR(file_->Read(it->second.offset, out.bytes(), out.raw()));
  if (out.dtype() == DType::kBool) {
    auto* bytes = static_cast<uint8_t*>(out.raw());
    std::transform(bytes, bytes + out.bytes(), bytes, [](uint8_t b) { return b != 0; });
  }
  return out;
}

Result<TensorFile> ReadSafetensors(const std::string& path, FileSystem& files) {
  ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::Open(path, files));
  TensorFile out;
  out.metadata = reader.metadata();
  for (const auto& [name, entry] : reader.entries()) {
    ASSIGN_OR_RETURN(out.tensors[name], reader.Read(name));
  }
  return out;
}

Status WriteSafetensors(const std::string& path, const TensorFile& contents, FileSystem& files) {
  ASSIGN_OR_RETURN(const std::string header, MakeHeader(contents));
  return WriteFileAtomically(files, path, [&](WritableFile& file) -> Status {
    RETURN_IF_ERROR(file.Write(LittleEndian(header.size())));
    RETURN_IF_ERROR(file.Write(header));
    for (const auto& [name, tensor] : FileOrder(contents)) {
      assert(tensor->device().is_host());
      RETURN_IF_ERROR(
          file.Write(std::string_view(static_cast<const char*>(tensor->raw()), tensor->bytes())));
    }
    return {};
  });
}

}  // namespace caesura
