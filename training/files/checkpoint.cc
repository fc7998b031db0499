// SPDX-License-Identifier: Apache-2.0
#include "training/files/checkpoint.h"

#include <zlib.h>

#include <charconv>
#include <new>
#include <string_view>
#include <system_error>

#include "core/base/status_macros.h"
#include "core/files/safetensors.h"
#include "core/runtime/snapshot_file.h"

namespace caesura {
namespace {

constexpr int kFormatVersion = 2;
constexpr int kPlainFormatVersion = 1;               // of a checkpoint without a step that waits
constexpr char kFormatKey[] = "caesura.checkpoint";  // holds the format's version
constexpr char kChecksumKey[] = "caesura.crc32";
constexpr std::string_view kPropertyPrefix = "property/", kParameterPrefix = "parameter/",
                           kOptimizerPrefix = "optimizer/";

// "int:5", "double:0.1", "string:text"
std::string PropertyText(const Checkpoint::Property& property) {
  char digits[64];
  if (const auto* integer = std::get_if<int64_t>(&property))
    return "int:" + std::to_string(*integer);
  if (const auto* text = std::get_if<std::string>(&property)) return "string:" + *text;
  // The shortest text that reads back as the same bits, whatever the locale.
  const auto end = std::to_chars(digits, digits + sizeof(digits), std::get<double>(property)).ptr;
  return "double:" + std::string(digits, end);
}

template <typename T>
bool ParseNumber(std::string_view text, Checkpoint::Property* out) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  *out = number;
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseProperty(std::string_view text, Checkpoint::Property* out) {
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon),
                         rest = text.substr(colon == text.npos ? text.size() : colon + 1);
  if (colon == text.npos) return false;
  if (kind == "int") return ParseNumber<int64_t>(rest, out);
  if (kind == "double") return ParseNumber<double>(rest, out);
  *out = std::string(rest);
  return kind == "string";
}

// Over everything that the file says, in an order of its own, so that a damaged header is noticed
// as well.
std::string Checksum(const TensorFile& contents) {
  uLong crc = crc32_z(0, nullptr, 0);
  const auto add = [&crc](const void* data, size_t size) {
    if (size > 0)
      crc = crc32_z(crc, static_cast<const Bytef*>(data), size);  // null data would begin anew
  };
  for (const auto& [key, text] : contents.metadata) {
    if (key != kChecksumKey) {
      add(key.c_str(), key.size() + 1);
      add(text.c_str(), text.size() + 1);
    }
  }
  for (const auto& [name, tensor] : contents.tensors) {
    const std::string facts = name + '\0' + DTypeName(tensor.dtype()) + tensor.shape().ToString();
    add(facts.c_str(), facts.size() + 1);
    add(tensor.raw(), tensor.bytes());
  }
  return std::to_string(crc);
}

// Removes `prefix` from `text` if it begins with it.
bool ConsumePrefix(std::string_view prefix, std::string_view* text) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

Status CheckFormat(const TensorFile& contents) {
  const auto format = contents.metadata.find(kFormatKey),
             checksum = contents.metadata.find(kChecksumKey);
  Checkpoint::Property version;
  if (format == contents.metadata.end() || !ParseNumber<int64_t>(format->second, &version)) {
    return InvalidModel("is a safetensors file, but no checkpoint");
  }
  if (std::get<int64_t>(version) > kFormatVersion) {
    return Unsupported("was written in format " + format->second +
                       " by a newer caesura; this one reads up to format " +
                       std::to_string(kFormatVersion));
  }
  if (checksum == contents.metadata.end() || checksum->second != Checksum(contents)) {
    return InvalidModel("is damaged: its checksum does not fit its contents");
  }
  return {};
}

Result<Checkpoint> FromFile(TensorFile contents) {
  RETURN_IF_ERROR(CheckFormat(contents));
  Checkpoint out;
  if (HoldsSnapshot(contents)) {
    ASSIGN_OR_RETURN(out.step, TakeSnapshot(&contents));
  }
  for (auto& [key, tensor] : contents.tensors) {
    std::string_view name = key;
    if (ConsumePrefix(kParameterPrefix, &name))
      out.parameters[std::string(name)] = std::move(tensor);
    else if (ConsumePrefix(kOptimizerPrefix, &name))
      out.optimizer_state[std::string(name)] = std::move(tensor);
    else
      return InvalidModel("holds tensor '" + key + "', which belongs to no part of a checkpoint");
  }
  for (const auto& [key, text] : contents.metadata) {
    std::string_view name = key;
    if (!ConsumePrefix(kPropertyPrefix, &name)) continue;
    if (!ParseProperty(text, &out.properties[std::string(name)])) {
      return InvalidModel("property '" + std::string(name) + "' cannot be read: '" + text + "'");
    }
  }
  return out;
}

}  // namespace

Status SaveCheckpoint(const Checkpoint& checkpoint, const std::string& path,
                      FileSystem& files) try {
  TensorFile contents;
  for (const auto& [name, tensor] : checkpoint.parameters) {
    contents.tensors[std::string(kParameterPrefix) + name] = tensor;
  }
  for (const auto& [name, tensor] : checkpoint.optimizer_state) {
    contents.tensors[std::string(kOptimizerPrefix) + name] = tensor;
  }
  for (const auto& [name, property] : checkpoint.properties) {
    contents.metadata[std::string(kPropertyPrefix) + name] = PropertyText(property);
  }
  if (checkpoint.step) RETURN_IF_ERROR(AddSnapshot(*checkpoint.step, &contents));
  contents.metadata[kFormatKey] =
      std::to_string(checkpoint.step ? kFormatVersion : kPlainFormatVersion);
  contents.metadata[kChecksumKey] = Checksum(contents);
  return WriteSafetensors(path, contents, files);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was saved");
}

Result<Checkpoint> RestoreCheckpoint(const std::string& path, FileSystem& files) try {
  ASSIGN_OR_RETURN(TensorFile contents, ReadSafetensors(path, files));
  Result<Checkpoint> checkpoint = FromFile(std::move(contents));
  return checkpoint.ok() ? std::move(checkpoint)
                         : checkpoint.status().WithPrefix("'" + path + "' ");
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was restored");
}

}  // namespace caesura
